// Lossy operations: which groups can have them, and how they are driven beside the others.
#include <algorithm>
#include <cstring>

#include "engine/engine_active.h"
#include "engine/lossy/lossy_group.h"
#include "wire/siphash.h"

namespace unisono {

namespace {

// Groups of one job, and one group before and after it was re-formed, have keys and epochs of their own.
DatagramGroup datagram_group(const GroupCore& group, const DatagramSecret& secret) {
  DatagramGroup what{
      .run_id = secret.run_id, .epoch = 0, .self = group.self, .world = group.world(), .auth = secret.auth, .key = {}};
  const auto own = link_key(secret.key, group.number & 0xFFFF, group.number >> 16, group.epoch, secret.run_id);
  std::memcpy(what.key.data(), &own.k0, sizeof(own.k0));
  std::memcpy(what.key.data() + sizeof(own.k0), &own.k1, sizeof(own.k1));
  what.epoch = static_cast<uint32_t>(siphash_2_4(own, std::as_bytes(std::span("epoch", 5))));
  return what;
}

}  // namespace

std::shared_ptr<const DeliveryReport> GroupCore::reliable_because(const OperationRequest& request) const {
  if (request.delivery != Delivery::automatic) return nullptr;
  std::string why(request.reliable_because);
  if (why.empty() && lossy == nullptr) why = no_datagrams;
  if (why.empty()) why = lossy->fits(request).message();
  if (why.empty()) return nullptr;
  auto report = std::make_shared<DeliveryReport>();
  report->used = Delivery::reliable;
  report->note = std::move(why);
  report->effective_contributors = world();
  return report;
}

void GroupCore::others_began(PeerIndex from, const FrameHeader& header) const {
  const auto rank = rank_of(from);
  const bool ordered = (header.operation & (user_id_bit | message_id_bit)) == 0;
  if (ordered && rank >= 0 && header.group == number && header.epoch == epoch && lossy != nullptr)
    lossy->others_began(static_cast<Rank>(rank));
}

void Engine::open_lossy(GroupCore& group) {
  group.lossy.reset();
  group.no_datagrams = "not all links between ranks carry datagrams, as those of the transport \"udp\" do";
  if (!datagrams_ || group.world() < 2 || group.world() > UINT16_MAX) return;
  DatagramService* service = nullptr;
  LossyGroupSetup setup{.number = group.number,
                        .datagrams = datagram_group(group, *datagrams_),
                        .peers = group.members,
                        .datagram_bytes = datagrams_->datagram_bytes,
                        .place = {},
                        .tell = {}};
  for (const auto peer : group.members) {
    if (peer == self_peer) continue;
    auto* own = peers_[peer].route->datagrams();
    if (own == nullptr)
      group.no_datagrams = "the link to rank " + std::to_string(group.rank_of(peer)) + " (" + peers_[peer].label +
                           ") carries no datagrams, as one of the transport \"udp\" would";
    if (own == nullptr || (service != nullptr && own != service)) return;
    service = own;
  }
  setup.place = [this, members = group.members](Rank rank) {
    return members[rank] == self_peer ? std::string("this process") : peers_[members[rank]].label;
  };
  setup.tell = [this, &group](Rank to, uint32_t op, const CallDescriptor& call) {
    const auto peer = group.members[to];
    FrameHeader header{.kind = FrameKind::lossy,
                       .epoch = group.epoch,
                       .group = group.number,
                       .operation = op,
                       .sender = group.self,
                       .amount = call.amount,
                       .descriptor = call.bits};
    if (peers_[peer].lost.ok()) peers_[peer].route->send(peer, header, {}, 0);
  };
  setup.say = [this, &group](Rank to, Bytes news) {
    const auto payload = std::make_shared<Bytes>(std::move(news));
    const FrameHeader header{.kind = FrameKind::lossy,
                             .epoch = group.epoch,
                             .group = group.number,
                             .sender = group.self,
                             .payload_bytes = static_cast<uint32_t>(payload->size())};
    send_owned(group.members[to], header, payload);
  };
  setup.reliable = {.begun = [&group] { return group.next_operation; },
                    .under_way = [this, &group](uint64_t number) -> std::optional<CallDescriptor> {
                      const auto* active = find(group.number, number, self_peer);
                      if (active == nullptr || active->operation.done()) return {};
                      return active->operation.descriptor();
                    },
                    .fail =
                        [this, &group](uint64_t number, const Status& why) {
                          if (auto* active = find(group.number, number, self_peer))
                            attempt(active->operation, [&] { active->operation.fail_and_tell(why, now_); });
                        }};
  if (auto made = LossyGroup::make(*service, std::move(setup))) group.lossy = std::move(*made);
}

void Engine::received_call(PeerIndex from, const FrameHeader& header, ByteView payload) {
  const auto it = groups_.find(header.group);
  if (it == groups_.end() || it->second->lossy == nullptr || it->second->epoch != header.epoch) {
    ++counters_.frames_unknown_group;
    return;
  }
  const auto rank = it->second->rank_of(from);
  if (rank < 0) return;
  auto& lossy = *it->second->lossy;
  if (payload.empty())
    return lossy.heard_call(static_cast<Rank>(rank), static_cast<uint32_t>(header.operation),
                            {header.descriptor, header.amount}, now_);
  if (!lossy.heard(static_cast<Rank>(rank), payload, now_)) ++counters_.frames_refused;
}

std::shared_ptr<Completion> Engine::start_lossy(GroupCore& group, OperationRequest&& request, Nanos now) {
  if (group.lossy == nullptr)
    return refuse(request, {Code::unsupported,
                            "delivery=lossy needs links of the transport \"udp\" between all ranks: " + group.no_datagrams});
  auto completion = take_completion();
  group.lossy->submit(std::move(request), completion, now);
  for (const auto& u : unexpected_) group.others_began(u.from, u.header);
  settle_all();
  step_lossy(now);
  return completion;
}

bool Engine::step_lossy(Nanos now) {
  bool progress = false;
  for (auto& [number, group] : groups_) {
    if (group->lossy != nullptr) progress |= group->lossy->step(now);
  }
  return progress;
}

bool Engine::has_pending() const {
  if (std::any_of(transports_.begin(), transports_.end(), [](const auto* transport) { return transport->has_pending(); }))
    return true;
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) {
    return entry.second->ended.ok() && entry.second->lossy != nullptr && entry.second->lossy->has_pending();
  });
}

size_t Engine::active() const {
  auto active = active_.size() + any_source_.size();
  for (const auto& [number, group] : groups_) {
    if (group->lossy != nullptr) active += group->lossy->active();
  }
  return active;
}

}  // namespace unisono

#include "engine/lossy/lossy_groups.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "engine/lossy/lossy_group.h"
#include "wire/siphash.h"

namespace unisono {

namespace {

// Returns the parameters of a group's datagrams, such as the key and the epoch. Each group of a job has its own. Re-forming
// gives it new ones.
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

void GroupCore::on_call_begun_elsewhere(PeerIndex from, const FrameHeader& header) const {
  const auto rank = rank_of(from);
  const bool ordered = is_in_order(header.operation);
  if (ordered && rank >= 0 && header.group == number && header.epoch == epoch && lossy != nullptr)
    lossy->on_call_begun_elsewhere(static_cast<Rank>(rank));
}

// Returns the transport that carries datagrams to all other members. If there is none, returns null, and sets
// group.no_datagrams to the reason.
DatagramService* LossyGroups::service_of(GroupCore& group) const {
  group.no_datagrams = "not all links between ranks carry datagrams; those of the transport \"udp\" do";
  if (!secret_ || group.world() < 2 || group.world() > UINT16_MAX) return nullptr;
  DatagramService* service = nullptr;
  for (const auto peer : group.members) {
    if (peer == self_peer) continue;
    auto* own = parts_.peers[peer].route->datagrams();
    if (own == nullptr)
      group.no_datagrams = concat("the link to rank ", group.rank_of(peer), " (", parts_.peers[peer].label,
                                  ") carries no datagrams; the transport \"udp\" does");
    if (own == nullptr || (service != nullptr && own != service)) return nullptr;
    service = own;
  }
  return service;
}

void LossyGroups::open(GroupCore& group) const {
  group.lossy.reset();
  auto* service = service_of(group);
  if (service == nullptr) return;
  LossyGroupSetup setup{.number = group.number,
                        .datagrams = datagram_group(group, *secret_),
                        .peers = group.members,
                        .datagram_bytes = secret_->datagram_bytes,
                        .location = {},
                        .announce_call = {}};
  auto& peers = parts_.peers;
  auto& control = parts_.control;
  auto& operations = parts_.operations;
  setup.location = [&peers, members = group.members](Rank rank) {
    return members[rank] == self_peer ? std::string("this process") : peers[members[rank]].label;
  };
  setup.link_state = [&peers, members = group.members](Rank rank) {
    const auto peer = members[rank];
    return peer == self_peer || !peers[peer].lost.ok() ? std::string() : peers[peer].route->link_state(peer);
  };
  setup.send_message = [&control, &group](Rank to, Bytes message) {
    const auto payload = std::make_shared<Bytes>(std::move(message));
    const FrameHeader header{.kind = FrameKind::lossy,
                             .epoch = group.epoch,
                             .group = group.number,
                             .sender = frame_sender(group.self),
                             .payload_bytes = static_cast<uint32_t>(payload->size())};
    control.send(group.members[to], header, payload);
  };
  setup.announce_call = [&peers, &group, send = setup.send_message](Rank to, const AnnouncedCall& call) {
    if (peers[group.members[to]].lost.ok()) send(to, call.encode());
  };
  setup.reliable = {.begun = [&group] { return group.numbers.next(); },
                    .running_call = [&operations, &group](uint64_t number) -> std::optional<CallDescriptor> {
                      const auto* active = operations.find(group.number, number, self_peer);
                      if (active == nullptr || active->operation.done()) return {};
                      return active->operation.descriptor();
                    },
                    .fail =
                        [this, &operations, &group](uint64_t number, const Status& why) {
                          if (auto* active = operations.find(group.number, number, self_peer)) fail_(*active, why);
                        }};
  if (auto made = LossyGroup::make(*service, std::move(setup))) group.lossy = std::move(*made);
}

void LossyGroups::on_frame(PeerIndex from, const FrameHeader& header, ByteView payload, Nanos now) const {
  const auto it = parts_.groups.find(header.group);
  if (it == parts_.groups.end() || it->second->lossy == nullptr || it->second->epoch != header.epoch) {
    ++parts_.counters.frames_unknown_group;
    return;
  }
  const auto rank = it->second->rank_of(from);
  if (rank < 0) return;
  auto& lossy = *it->second->lossy;
  if (!lossy.on_message(static_cast<Rank>(rank), payload, now)) ++parts_.counters.frames_refused;
}

bool LossyGroups::step(Nanos now) const {
  bool progress = false;
  for (const auto& [number, group] : parts_.groups) {
    if (group->lossy != nullptr) progress |= group->lossy->step(now);
  }
  return progress;
}

Nanos LossyGroups::next_deadline() const {
  Nanos next = never;
  for (const auto& [number, group] : parts_.groups) {
    if (group->lossy != nullptr) next = std::min(next, group->lossy->next_deadline());
  }
  return next;
}

bool LossyGroups::has_pending() const {
  return std::any_of(parts_.groups.begin(), parts_.groups.end(), [](const auto& entry) {
    return entry.second->ended.ok() && entry.second->lossy != nullptr && entry.second->lossy->has_pending();
  });
}

size_t LossyGroups::active() const {
  size_t active = 0;
  for (const auto& [number, group] : parts_.groups) {
    if (group->lossy != nullptr) active += group->lossy->active();
  }
  return active;
}

}  // namespace unisono

#include "cli/doctor/doctor_probe.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cli/common/monotonic.h"
#include "cli/doctor/doctor_machine.h"
#include "cli/doctor/doctor_measure.h"
#include "cli/doctor/doctor_security.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono::cli {
namespace {

constexpr size_t dialled_at_once = 256;  // this limits how many descriptors are in use
constexpr Nanos greeting_timeout = second;

// Receives the events of the shared-memory transport. No frames are sent, so the only event that matters is the loss of a link.
class LinkWatch final : public unisono::Sink {
 public:
  explicit LinkWatch(ShmTransport& transport) : transport_(transport) {}
  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View& view) override {
    if (view.handle != 0) transport_.release(view);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex peer, const Status& why, PeerFate) override { errors[peer] = why.message(); }
  void credit(PeerIndex) override {}
  std::map<PeerIndex, std::string> errors;

 private:
  ShmTransport& transport_;
};

std::string endpoint_of(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return fmt::format("tcp://{}:{}", v6 ? "[" + address + "]" : address, port);
}

// Returns the source address that the transport would use because of --interface. Returns nullopt if there is none.
std::optional<TcpAddress> source_for(const TcpAddress& target, const MachineFacts& own) {
  for (const auto& offer : own.offers) {
    const auto address = parse_tcp_address(offer.address);
    if (!offer.offered || !address.ok()) continue;
    const bool same_kind = address->family() == target.family() && address->is_link_local() == target.is_link_local() &&
                           address->is_loopback() == target.is_loopback() && address->scope() == target.scope();
    if (same_kind) return *address;
  }
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Prober>> Prober::make(const ResolvedOptions& options) {
  std::unique_ptr<Prober> prober(new Prober());
  const auto id = random_peer_id();
  const auto key = random_peer_id();
  if (!id.ok()) return id.status();
  if (!key.ok()) return key.status();
  auto responder = Responder::make(fmt::format("{:016x}{:016x}", key->low, key->high));
  if (!responder.ok()) return responder.status();
  prober->responder_ = std::move(*responder);
  auto& facts = prober->facts_;
  facts.rank = options.rank;
  facts.world_size = options.world_size;
  facts.job = options.job;
  facts.transport = options.transport;
  facts.pid = ::getpid();
  facts.port = prober->responder_->port();
  facts.key = prober->responder_->key();
  facts.id = *id;
  facts.security = read_security(options);
  facts.machine = read_machine(options.interface);
  if (options.transport == "tcp") return prober;
  auto memory = ShmTransport::make({.self = *id});
  if (!memory.ok()) {
    facts.machine.arena_error = memory.status().message();
    return prober;
  }
  prober->memory_ = std::move(*memory);
  facts.memory = prober->memory_->endpoints().front();
  facts.machine.memory_place = facts.memory.substr(0, facts.memory.rfind('/') + 1);
  return prober;
}

void Prober::set_ranks(std::vector<RankFacts> ranks, const JobKey& key) {
  ranks_ = std::move(ranks);
  if (memory_) memory_->set_job(key);
}

const RankFacts* Prober::find(uint32_t rank) const {
  const auto at = std::find_if(ranks_.begin(), ranks_.end(), [&](const RankFacts& facts) { return facts.rank == rank; });
  return at == ranks_.end() ? nullptr : &*at;
}

std::vector<Prober::Target> Prober::targets_of(const RankFacts& other) const {
  const auto own = list_interfaces();
  std::vector<Target> targets;
  for (const auto& offer : other.machine.offers) {
    const auto endpoint = parse_tcp_endpoint(endpoint_of(offer.address, other.port));
    if (!endpoint.ok() || !own.ok()) continue;
    // A loopback address leads back to this host. So it cannot be used to reach a rank on another host.
    if (endpoint->is_loopback() && !same_host(facts_, other)) continue;
    for (const auto& address : dial_addresses(*endpoint, *own)) {
      Target target{.rank = other.rank, .known = {}, .dial = {.to = address, .source = {}, .segment_bytes_max = 0}};
      target.known.interface = offer.interface;
      target.known.offered = offer.offered;
      if (!facts_.machine.interface_asked.empty()) {
        target.dial.source = source_for(address, facts_.machine);
        if (offer.offered) targets.push_back(target);
        // Dials the address once more, and lets the kernel choose the source address. This shows whether --interface prevents
        // the connection.
        target.dial.source.reset();
        target.known.offered = false;
      }
      targets.push_back(std::move(target));
    }
  }
  return targets;
}

Nanos Prober::reach_timeout() const {
  size_t offers = 0;
  for (const auto& rank : ranks_) offers += 2 * rank.machine.offers.size();
  return static_cast<Nanos>(offers / dialled_at_once + 1) * (dial_timeout + greeting_timeout) + 2 * second;
}

std::vector<Reach> Prober::reach_others() const {
  std::vector<Target> targets;
  std::vector<Reach> reaches;
  for (const auto& other : ranks_) {
    if (other.rank == facts_.rank) continue;
    reaches.push_back({.from = facts_.rank, .to = other.rank, .tries = {}});
    for (auto& target : targets_of(other)) targets.push_back(std::move(target));
  }
  for (size_t begin = 0; begin < targets.size(); begin += dialled_at_once) {
    const auto end = std::min(targets.size(), begin + dialled_at_once);
    std::vector<DialRequest> requests;
    for (size_t i = begin; i < end; ++i) requests.push_back(targets[i].dial);
    auto dialled = dial_all(requests, monotonic_now() + dial_timeout);
    const auto greeted_by = monotonic_now() + greeting_timeout;
    for (size_t i = 0; i < dialled.size(); ++i) {
      const auto& target = targets[begin + i];
      auto& attempt = dialled[i].attempt;
      attempt.interface = target.known.interface;
      attempt.offered = target.known.offered;
      if (attempt.outcome == Outcome::reached) greet(dialled[i], *find(target.rank), greeted_by);
      const auto reach = std::find_if(reaches.begin(), reaches.end(), [&](const Reach& r) { return r.to == target.rank; });
      reach->tries.push_back(std::move(attempt));
    }
  }
  return reaches;
}

Measured Prober::measure(const Reach& reach) const {
  const auto* other = find(reach.to);
  const auto* address = first_reached(reach);
  Measured nothing{.from = reach.from, .to = reach.to};
  nothing.error = "no address answered";
  if (other == nullptr || address == nullptr) return nothing;
  for (const auto& target : targets_of(*other)) {
    if (target.known.offered && target.dial.to.to_string() == address->address)
      return measure_pair(facts_.rank, *other, target.dial);
  }
  return nothing;
}

Shared Prober::share(uint32_t with) {
  Shared shared{.from = facts_.rank, .to = with, .error = {}};
  const auto* other = find(with);
  if (other == nullptr || !memory_) {
    shared.error = facts_.machine.arena_error.empty() ? "it has no shared memory" : facts_.machine.arena_error;
    return shared;
  }
  const auto began = monotonic_now();
  LinkWatch watch(*memory_);
  auto status = memory_->add_peer({.peer = with,
                                   .id = other->id,
                                   .label = name_of(*other),
                                   .endpoints = {other->memory},
                                   .dial = facts_.id > other->id,
                                   .deadline = began + share_timeout});
  if (!status.ok()) {
    shared.error = status.message();
    return shared;
  }
  // Polls at least once every millisecond, because no descriptor becomes ready for some of the transport's work.
  for (auto now = began; now < began + share_timeout + second / 10; now = monotonic_now()) {
    (void)memory_->poll(now, watch);
    if (memory_->state(with) == LinkState::up) return shared;
    if (const auto lost = watch.errors.find(with); lost != watch.errors.end()) {
      shared.error = lost->second;
      return shared;
    }
    pollfd ready{memory_->wait_handle(), POLLIN, 0};
    (void)::poll(&ready, 1, 1);
  }
  shared.error = "no link in time";
  return shared;
}

}  // namespace unisono::cli

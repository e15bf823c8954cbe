#include "sim/udp/udp_cluster.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/concat.h"

namespace unisono::sim {
namespace {

// After the last link is up, the transports have this time to measure the datagram size and the rate of each path.
constexpr Nanos probing = 400 * millisecond;

JobKey job_of(uint64_t seed) {
  JobKey key;
  Random random(mix64(seed ^ 0x6A6F62));
  for (auto& each : key) each = static_cast<std::byte>(random.next());
  return key;
}

PeerId id_of(PeerIndex process) { return {process + 1, 1}; }
std::string label_of(PeerIndex process) { return concat("process ", process); }

}  // namespace

UdpCluster::UdpCluster(const UdpClusterSettings& settings)
    : settings_(settings), event_queue_(settings.network.processes), network_(settings.network, event_queue_) {
  for (PeerIndex self = 0; self < settings.network.processes; ++self) {
    processes_.push_back(std::make_unique<Process>(settings_, event_queue_, self));
    auto& process = *processes_.back();
    auto options = settings.udp;
    options.self = id_of(self);
    options.clock = [this] { return event_queue_.now(); };
    DatagramSockets sockets;
    sockets.push_back(network_.make_socket(self));
    process.transport = UdpTransport::from_sockets(options, std::move(sockets));
    process.transport->set_job(job_of(settings.network.seed));
    process.engine.add_transport(*process.transport);
    for (PeerIndex peer = 0; peer < settings.network.processes; ++peer) {
      if (peer != self) process.engine.add_peer(peer, *process.transport, label_of(peer));
    }
  }
}

// The processes are destroyed before the network: transports still send their last messages through its sockets.
UdpCluster::~UdpCluster() = default;

Status UdpCluster::first_missing_link() const {
  for (PeerIndex a = 0; a < size(); ++a) {
    for (PeerIndex b = 0; b < size(); ++b) {
      if (a != b && processes_[a]->transport->state(b) != LinkState::up)
        return {Code::unavailable, label_of(a) + " has no link to " + label_of(b)};
    }
  }
  return {};
}

Status UdpCluster::link_all(Nanos within) {
  const auto until = now() + within;
  for (PeerIndex self = 0; self < size(); ++self) {
    for (PeerIndex peer = 0; peer < size(); ++peer) {
      if (peer == self) continue;
      LinkRequest request{.peer = peer,
                          .id = id_of(peer),
                          .label = label_of(peer),
                          .endpoints = {"udp://" + SocketNetwork::address_of(peer).to_string()},
                          .dial = self < peer,
                          .deadline = until};
      if (auto status = processes_[self]->transport->add_peer(request); !status.ok()) return status;
    }
    request_turn(self, now());
  }
  while (now() < until && !first_missing_link().ok()) run_until(std::min(until, now() + 5 * millisecond));
  if (auto status = first_missing_link(); !status.ok()) return status;
  run_until(now() + probing);
  return {};
}

Status UdpCluster::make_group(const std::vector<PeerIndex>& members, uint32_t epoch) {
  DatagramSecret secret{
      .run_id = mix64(settings_.network.seed ^ 0x72756E), .key = {}, .auth = DatagramAuth::mac, .datagram_bytes = UINT32_MAX};
  const auto key = job_of(settings_.network.seed ^ uint64_t{epoch} << 32);
  std::copy(key.begin(), key.end(), secret.key.begin());
  for (const auto member : members) {
    std::vector<PeerIndex> others;
    std::copy_if(members.begin(), members.end(), std::back_inserter(others), [&](PeerIndex peer) { return peer != member; });
    secret.datagram_bytes = std::min(secret.datagram_bytes, processes_[member]->transport->datagram_bytes(others));
  }
  datagram_bytes_ = secret.datagram_bytes;
  for (const auto member : members) {
    auto& process = *processes_[member];
    process.engine.end_all_groups({Code::unavailable, "the group was formed again"}, now());
    process.engine.set_epoch(epoch);
    process.engine.set_datagrams(secret);
    auto peers = members;
    std::replace(peers.begin(), peers.end(), member, self_peer);
    process.group = &process.engine.make_group(group_number, epoch, std::move(peers), std::vector<uint32_t>(members.size()));
    if (process.group->lossy == nullptr) return {Code::unavailable, label_of(member) + " lacks a link that the group needs"};
    request_turn(member, now());
  }
  return {};
}

std::shared_ptr<Completion> UdpCluster::submit(PeerIndex process, OperationRequest&& request) {
  auto& p = *processes_[process];
  UNISONO_CHECK(p.group != nullptr && !p.dead);
  auto completion = p.engine.submit(*p.group, std::move(request), 0, now());
  request_turn(process, now());
  return completion;
}

void UdpCluster::at(Nanos time, std::function<void()> action) {
  actions_.push_back(std::move(action));
  event_queue_.add(time, EventKind::act, 0, actions_.size() - 1);
}

void UdpCluster::stop(PeerIndex process, Nanos until) {
  auto& p = *processes_[process];
  p.stopped_until = std::max(p.stopped_until, until);
  request_turn(process, p.stopped_until);
}

void UdpCluster::kill(PeerIndex process) {
  processes_[process]->dead = true;
  network_.kill(process);
}

void UdpCluster::request_turn(PeerIndex process, Nanos at) {
  const auto& p = *processes_[process];
  if (!p.dead && at != never)
    event_queue_.request_poll(process, std::max({at, p.turned_at + settings_.turn, p.stopped_until, now()}));
}

void UdpCluster::take_turn(PeerIndex process) {
  auto& p = *processes_[process];
  if (p.dead) return;
  if (p.stopped_until > now()) return event_queue_.request_poll(process, p.stopped_until);
  p.turned_at = now();
  p.engine.poll(now());
  request_turn(process, std::min(p.engine.next_deadline(), network_.readable_at(process)));
  if (on_turn_) on_turn_(process);
}

bool UdpCluster::step() {
  if (event_queue_.empty()) return false;
  ++events_;
  const auto event = event_queue_.pop();
  switch (event.kind) {
    case EventKind::arrive:
      if (const auto readable = network_.arrive(event.index); readable != never) request_turn(event.rank, readable);
      break;
    case EventKind::poll:
      if (event_queue_.take_poll(event)) take_turn(event.rank);
      break;
    case EventKind::computed: processes_[event.rank]->engine.computed(event.index, now()); break;
    case EventKind::act: std::exchange(actions_[event.index], nullptr)(); break;
    case EventKind::timer:
    case EventKind::credit:
    case EventKind::lose: break;  // used by sim/cluster.h only
  }
  return true;
}

void UdpCluster::run_until(Nanos time) {
  bool over = false;
  at(time, [&over] { over = true; });
  while (!over && step()) continue;
}

}  // namespace unisono::sim

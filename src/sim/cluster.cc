#include "sim/cluster.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono::sim {

Cluster::Cluster(const ClusterSettings& settings, Trace& trace)
    : event_queue_(settings.processes),
      network_(settings.network, settings.processes, settings.seed, event_queue_, trace),
      random_(mix64(settings.seed ^ 0x636C)) {
  for (PeerIndex self = 0; self < settings.processes; ++self) {
    processes_.push_back(std::make_unique<Process>(settings, network_, event_queue_, self));
    auto& process = *processes_.back();
    process.engine.add_transport(process.transport);
    process.engine.set_topology(settings.topology);
    process.engine.set_epoch(sim_epoch);
    for (PeerIndex peer = 0; peer < settings.processes; ++peer) {
      if (peer != self) process.engine.add_peer(peer, process.transport, concat("process ", peer));
    }
  }
}

Cluster::~Cluster() = default;

GroupCore& Cluster::make_group(PeerIndex process, uint32_t number, const std::vector<PeerIndex>& members,
                               const std::vector<uint32_t>& host_groups) {
  auto peers = members;
  std::replace(peers.begin(), peers.end(), process, self_peer);
  return engine(process).make_group(number, sim_epoch, std::move(peers), host_groups);
}

void Cluster::at(Nanos time, std::function<void()> action) {
  actions_.push_back(std::move(action));
  event_queue_.add(time, EventKind::act, 0, actions_.size() - 1);
}

void Cluster::touched(PeerIndex process) {
  set_timer(process);
  if (progress_) progress_(process);
}

Nanos Cluster::awake_at(PeerIndex process) const {
  const auto& p = *processes_[process];
  return p.dead ? never : std::max({event_queue_.now(), p.stopped_until, p.compute.busy_until()});
}

void Cluster::stop(PeerIndex process, Nanos until) {
  processes_[process]->stopped_until = std::max(processes_[process]->stopped_until, until);
}

void Cluster::kill(PeerIndex process, Nanos notice) {
  auto& p = *processes_[process];
  if (p.dead) return;
  p.dead = true;
  network_.kill(process);
  for (PeerIndex peer = 0; peer < size() && notice != never; ++peer) {
    if (peer == process) continue;
    const auto later = notice + static_cast<Nanos>(random_.below(static_cast<uint64_t>(notice / 2 + 1)));
    at(now() + later, [this, peer, process] { network_.cut(peer, process, 0, never, "the process died"); });
  }
}

void Cluster::slow_down(PeerIndex process, double compute, double link) {
  processes_[process]->compute.slow_down(compute);
  network_.slow_link(process, link);
}

bool Cluster::run_until(Nanos time) {
  while (!event_queue_.empty()) {
    if (event_queue_.next_at() > time) return false;
    step();
  }
  return true;
}

bool Cluster::step() {
  if (event_queue_.empty()) return false;
  ++events_;
  dispatch(event_queue_.pop());
  return true;
}

void Cluster::dispatch(const Event& event) {
  switch (event.kind) {
    case EventKind::arrive: return network_.arrive(event.index);
    case EventKind::credit: return network_.credit_again(event.rank);
    case EventKind::lose: return network_.lose(event.index);
    case EventKind::act: return std::exchange(actions_[event.index], nullptr)();
    case EventKind::poll:
      if (event_queue_.take_poll(event)) poll(event.rank);
      return;
    case EventKind::timer:
      if (processes_[event.rank]->timer_at != event.at) return;
      processes_[event.rank]->timer_at = never;
      if (now() >= engine(event.rank).next_deadline()) poll(event.rank);
      else set_timer(event.rank);
      return;
    case EventKind::computed: {
      auto& process = *processes_[event.rank];
      if (process.dead) return;
      if (process.stopped_until > now())
        return event_queue_.add(process.stopped_until, EventKind::computed, event.rank, event.index);
      process.engine.computed(event.index, now());
      return touched(event.rank);
    }
  }
}

void Cluster::poll(PeerIndex process) {
  auto& p = *processes_[process];
  if (p.dead) return;
  const auto awake = awake_at(process);
  if (awake > now()) return event_queue_.request_poll(process, awake);
  p.engine.poll(now());
  touched(process);
}

// Schedules a timer event for the engine's next deadline. If the process already has a timer event at that time or earlier,
// nothing is done.
void Cluster::set_timer(PeerIndex process) {
  auto& p = *processes_[process];
  const auto deadline = p.engine.next_deadline();
  if (deadline == never || p.timer_at <= deadline || p.dead) return;
  p.timer_at = std::max(deadline, now());
  event_queue_.add(p.timer_at, EventKind::timer, process, 0);
}

}  // namespace unisono::sim

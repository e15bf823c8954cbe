// Virtual processes on a virtual network in virtual time. Each process has the real engine. This class drives the engines, as
// group/lifecycle does in production. A cluster is single-threaded. Equal settings and equal calls give identical runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sim/event_queue.h"
#include "sim/network.h"
#include "sim/sim_compute.h"
#include "sim/sim_transport.h"
#include "sim/trace.h"

namespace unisono::sim {

inline constexpr uint32_t sim_epoch = 7;

struct ClusterSettings {
  uint32_t processes = 2;
  uint64_t seed = 1;
  NetworkSettings network;
  ComputeSettings compute;
  EngineLimits limits;
  Topology topology;
};

class Cluster {
 public:
  Cluster(const ClusterSettings& settings, Trace& trace);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(processes_.size()); }
  Nanos now() const { return event_queue_.now(); }
  Engine& engine(PeerIndex process) { return processes_[process]->engine; }
  Network& network() { return network_; }
  // `members` lists all processes of the group in rank order, including `process`.
  GroupCore& make_group(PeerIndex process, uint32_t number, const std::vector<PeerIndex>& members,
                        const std::vector<uint32_t>& host_groups);

  // Schedules an action of the scenario. It is executed even while a process is stopped; see awake_at().
  void at(Nanos time, std::function<void()> action);
  // Calls `call` after every event of a process, because an operation of the process may have ended.
  void on_progress(std::function<void(PeerIndex)> call) { progress_ = std::move(call); }
  // Call this after the engine of a process was used outside an event.
  void touched(PeerIndex process);

  // Stops the process: it neither polls nor computes until the given time.
  void stop(PeerIndex process, Nanos until);
  // Kills the process. The other processes notice this after about `notice`. If `notice` is `never`, they notice it only when
  // their deadlines pass.
  void kill(PeerIndex process, Nanos notice);
  void slow_down(PeerIndex process, double compute, double link);
  bool alive(PeerIndex process) const { return !processes_[process]->dead; }
  // Returns the time at which the process can act again, or the current time if it can act now.
  Nanos awake_at(PeerIndex process) const;

  // Runs until no event is left, or until `time`. Returns whether no event is left. Afterwards, now() may be earlier than
  // `time`.
  bool run_until(Nanos time);
  bool step();
  uint64_t events() const { return events_; }

 private:
  struct Process {
    Process(const ClusterSettings& settings, Network& network, EventQueue& event_queue, PeerIndex self)
        : transport(network, self), compute(settings.compute, event_queue, self), engine(settings.limits, compute) {}
    SimTransport transport;
    SimCompute compute;
    Engine engine;
    bool dead = false;
    Nanos stopped_until = 0;
    Nanos timer_at = never;
  };

  void dispatch(const Event& event);
  void poll(PeerIndex process);
  void set_timer(PeerIndex process);

  EventQueue event_queue_;
  Network network_;
  Random random_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::function<void()>> actions_;
  std::function<void(PeerIndex)> progress_;
  uint64_t events_ = 0;
};

}  // namespace unisono::sim

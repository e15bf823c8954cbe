// Virtual processes over a SocketNetwork in virtual time. Each process has the real engine and the real UDP transport. A
// cluster is single-threaded. Equal settings and equal calls give identical runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sim/event_queue.h"
#include "sim/sim_compute.h"
#include "sim/udp/socket_network.h"
#include "transports/udp/udp_transport.h"

namespace unisono::sim {

struct UdpClusterSettings {
  SocketNetworkSettings network;
  Nanos turn = 10 * microsecond;  // minimum time between two polls of a process
  EngineLimits limits{};
  UdpOptions udp{};  // of all processes; `self` and `clock` are set by the cluster
};

class UdpCluster {
 public:
  static constexpr uint32_t group_number = 1;

  explicit UdpCluster(const UdpClusterSettings& settings);
  ~UdpCluster();
  UdpCluster(const UdpCluster&) = delete;
  UdpCluster& operator=(const UdpCluster&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(processes_.size()); }
  Nanos now() const { return event_queue_.now(); }
  SocketNetwork& network() { return network_; }
  Engine& engine(PeerIndex process) { return processes_[process]->engine; }
  const UdpTransport& transport(PeerIndex process) const { return *processes_[process]->transport; }
  uint64_t events() const { return events_; }

  // Connects all processes with each other and lets the transports measure the paths. Fails with Code::unavailable if some
  // links are not up in time; the message lists them.
  Status link_all(Nanos within);
  // Makes a group of these processes, which are listed in rank order. If they formed a group before, it must have ended. The
  // call takes no virtual time.
  Status make_group(const std::vector<PeerIndex>& members, uint32_t epoch);
  // Returns the size of the group's datagrams.
  uint32_t datagram_bytes() const { return datagram_bytes_; }
  GroupCore& group(PeerIndex process) { return *processes_[process]->group; }
  std::shared_ptr<Completion> submit(PeerIndex process, OperationRequest&& request);

  void at(Nanos time, std::function<void()> action);
  // Calls `call` after every turn (poll) of a process, because operations may have ended.
  void on_turn(std::function<void(PeerIndex)> call) { on_turn_ = std::move(call); }
  // Processes the next event. Returns false if no event is left.
  bool step();
  void run_until(Nanos time);

  // Stops the process: it does nothing until time `until`, while its socket buffer fills up.
  void stop(PeerIndex process, Nanos until);
  // Kills the process; its host refuses datagrams and notifies their senders.
  void kill(PeerIndex process);
  bool alive(PeerIndex process) const { return !processes_[process]->dead; }

 private:
  struct Process {
    Process(const UdpClusterSettings& settings, EventQueue& event_queue, PeerIndex self)
        : compute({}, event_queue, self), engine(settings.limits, compute) {}
    std::unique_ptr<UdpTransport> transport;
    SimCompute compute;
    Engine engine;
    GroupCore* group = nullptr;
    bool dead = false;
    Nanos stopped_until = 0, turned_at = -second;
  };

  void take_turn(PeerIndex process);
  void request_turn(PeerIndex process, Nanos at);
  Status first_missing_link() const;

  UdpClusterSettings settings_;
  EventQueue event_queue_;
  SocketNetwork network_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::function<void()>> actions_;
  std::function<void(PeerIndex)> on_turn_;
  uint32_t datagram_bytes_ = 0;
  uint64_t events_ = 0;
};

}  // namespace unisono::sim

// Virtual hosts, processes and connections in virtual time, for simulations of the TCP transport. virtual_streams.h gives a
// process its sockets; here are the clock and the faults.
//
// A run depends only on the settings, the seed in them, and the calls. advance() alone moves the clock: during other calls
// nothing arrives, except just before a socket is closed (StreamSettings::late_arrival).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "sim/tcp/virtual_connection.h"

namespace unisono::sim {

class StreamWorld final : private StreamKernel {
 public:
  explicit StreamWorld(const StreamSettings& settings) : settings_(settings), random_(settings.seed) {}

  // `addresses`: IPv4 or IPv6 addresses as texts.
  HostIndex add_host(const std::vector<std::string>& addresses);
  ProcessIndex add_process(HostIndex host);

  Nanos now() const override { return now_; }
  // Returns the time of the next event, or `never`. At that time it may turn out that nothing happens.
  Nanos next_event() const { return events_.empty() ? never : events_.top().at; }
  // Lets everything happen that is due until `to`.
  void advance(Nanos to);

  // Faults of connections. An unknown id changes nothing.
  std::vector<ConnectionId> open_connections() const;
  void reset(ConnectionId id, bool tell_dialler, bool tell_acceptor);
  // Segments from this side are lost until `until`.
  void block(ConnectionId id, int from, Nanos until);
  void slow_down(ConnectionId id, double bytes_per_second);
  void alter(ConnectionId id, int from);

  // Returns how many bytes have arrived at the kernel of this side, whether they can be read or not.
  uint64_t received_bytes(ConnectionId id, int side) const;

  // Faults of hosts. Segments from one host to another are lost until `until`.
  void block(HostIndex from, HostIndex to, Nanos until) { blocked_[{from, to}] = until; }
  // The host is gone, with all its processes. It answers nothing.
  void remove_host(HostIndex host);
  // The host loses its addresses and gets others. Connections from and to the old ones stay, but nothing gets through.
  void change_addresses(HostIndex host, const std::vector<std::string>& addresses);

  // Faults of processes. crash(): the process is gone, and its kernel closes its sockets.
  void crash(ProcessIndex process);
  bool alive(ProcessIndex process) const { return processes_[process].alive; }
  // stop() only sets a mark: the caller must not run a stopped process. Its kernel goes on.
  void stop(ProcessIndex process) { processes_[process].stopped = true; }
  void resume(ProcessIndex process) { processes_[process].stopped = false; }
  bool runs(ProcessIndex process) const { return processes_[process].alive && !processes_[process].stopped; }

  // Returns the number of connections that sockets of the process hold, and of those that wait for accept().
  size_t held_connections(ProcessIndex process) const;
  // Returns the number of connections that any kernel knows.
  size_t connection_count() const { return connections_.size(); }
  // Returns how many connections were dialled.
  uint64_t dials() const { return next_connection_ - 1; }

  // From now on, the trace holds the last `lines_max` events.
  void keep_trace(size_t lines_max) { trace_max_ = lines_max; }
  void note(const std::string& text);
  std::string trace() const;

  // For virtual_streams.cc.
  struct Listener {
    ProcessIndex process = 0;
    std::vector<TcpAddress> addresses{};  // empty: all addresses of the host
    uint16_t port = 0;
    std::deque<ConnectionId> waiting{};
  };
  const std::vector<TcpAddress>& addresses_of(ProcessIndex process) const { return hosts_[host_of(process)].addresses; }
  // Returns the number of the new listener, or 0 if the port is taken. Port 0: chooses one, and sets listener.port.
  uint64_t add_listener(Listener& listener);
  void remove_listener(uint64_t number);
  bool has_waiting(uint64_t listener) const;
  std::shared_ptr<VirtualConnection> accept(uint64_t listener);
  std::shared_ptr<VirtualConnection> dial(ProcessIndex process, const TcpAddress& from, const TcpAddress& to);
  void forget_finished();

 private:
  struct Host {
    std::vector<TcpAddress> addresses;
    bool up = true;
    uint16_t next_port = 40'000;
    bool has(const TcpAddress& address) const;
  };
  struct Process {
    HostIndex host = 0;
    bool alive = true, stopped = false;
  };
  struct Event {
    Nanos at = 0;
    uint64_t sequence = 0, number = 0;
    ConnectionId connection = 0;
    int side = 0;
    Alarm alarm = Alarm::arrival;
    bool operator<(const Event& other) const { return std::pair(at, sequence) > std::pair(other.at, other.sequence); }
  };

  // Functions of StreamKernel.
  Random& random() override { return random_; }
  const StreamSettings& settings() const override { return settings_; }
  void set_alarm(Nanos at, VirtualConnection& connection, int side, Alarm alarm, uint64_t number) override;
  bool carries(const VirtualConnection& connection, int from) const override;
  Answer answer_syn(VirtualConnection& connection) override;
  bool queue_for_accept(VirtualConnection& connection) override;
  void note(const VirtualConnection& connection, const char* what, int side, const Segment& segment) override;

  HostIndex host_of(ProcessIndex process) const { return processes_[process].host; }
  VirtualConnection* find(ConnectionId id) const;
  uint64_t find_listener(HostIndex host, const TcpAddress& to) const;
  bool port_is_taken(const Listener& listener, uint16_t port) const;
  void close_sockets(ProcessIndex process, bool silently);

  StreamSettings settings_;
  Random random_;
  Nanos now_ = 0;
  uint64_t next_sequence_ = 0;
  ConnectionId next_connection_ = 1;
  uint64_t next_listener_ = 1;
  std::priority_queue<Event> events_;
  std::vector<Host> hosts_;
  std::vector<Process> processes_;
  std::map<uint64_t, Listener> listeners_;
  std::map<ConnectionId, std::shared_ptr<VirtualConnection>> connections_;
  std::map<std::pair<HostIndex, HostIndex>, Nanos> blocked_;
  size_t trace_max_ = 0;
  std::deque<std::string> trace_;
};

}  // namespace unisono::sim

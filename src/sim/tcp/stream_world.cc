#include "sim/tcp/stream_world.h"

#include <algorithm>

#include "base/check.h"
#include "base/concat.h"

namespace unisono::sim {
namespace {

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::syn: return "SYN";
    case SegmentKind::syn_reply: return "SYN reply";
    case SegmentKind::bytes: return "bytes";
    case SegmentKind::acknowledgement: return "acknowledgement";
    case SegmentKind::probe: return "probe";
    case SegmentKind::reset: return "reset";
  }
  return "?";
}

std::vector<TcpAddress> parse_all(const std::vector<std::string>& texts) {
  std::vector<TcpAddress> addresses;
  for (const auto& text : texts) {
    auto address = parse_tcp_address(text);
    UNISONO_CHECK(address.ok());
    addresses.push_back(*address);
  }
  return addresses;
}

bool is_open(const StreamEnd& end) { return end.state == EndState::open; }

}  // namespace

bool StreamWorld::Host::has(const TcpAddress& address) const {
  return std::any_of(addresses.begin(), addresses.end(), [&](const auto& own) { return own.same_host(address); });
}

HostIndex StreamWorld::add_host(const std::vector<std::string>& addresses) {
  hosts_.emplace_back().addresses = parse_all(addresses);
  return static_cast<HostIndex>(hosts_.size() - 1);
}

ProcessIndex StreamWorld::add_process(HostIndex host) {
  processes_.emplace_back().host = host;
  return static_cast<ProcessIndex>(processes_.size() - 1);
}

void StreamWorld::advance(Nanos to) {
  while (!events_.empty() && events_.top().at <= to) {
    const auto event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    const auto found = connections_.find(event.connection);
    if (found == connections_.end()) continue;
    auto& connection = *found->second;
    switch (event.alarm) {
      case Alarm::arrival: connection.arrive_due(event.side); break;
      case Alarm::timer: connection.timer_due(event.side, event.number); break;
      case Alarm::acknowledgement: connection.acknowledgement_due(event.side); break;
    }
    if (connection.is_over()) connections_.erase(found);
  }
  now_ = std::max(now_, to);
}

void StreamWorld::forget_finished() {
  std::erase_if(connections_, [](const auto& entry) { return entry.second->is_over(); });
}

// Faults ------------------------------------------------------------------------------------------------------------

VirtualConnection* StreamWorld::find(ConnectionId id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

std::vector<ConnectionId> StreamWorld::open_connections() const {
  std::vector<ConnectionId> ids;
  for (const auto& [id, connection] : connections_) {
    if (is_open(connection->end(0)) || is_open(connection->end(1))) ids.push_back(id);
  }
  return ids;
}

void StreamWorld::reset(ConnectionId id, bool tell_dialler, bool tell_acceptor) {
  auto* connection = find(id);
  if (connection == nullptr) return;
  note(concat("connection ", id, " is reset; the dialler is ", tell_dialler ? "" : "not ", "told, the acceptor is ",
              tell_acceptor ? "" : "not ", "told"));
  connection->reset(tell_dialler, tell_acceptor);
}

void StreamWorld::block(ConnectionId id, int from, Nanos until) {
  if (auto* connection = find(id)) connection->end(from).blocked_until = until;
}

uint64_t StreamWorld::received_bytes(ConnectionId id, int side) const {
  const auto* connection = find(id);
  if (connection == nullptr) return 0;
  const auto& pipe = connection->pipe(1 - side);
  return std::min(pipe.received(), pipe.written());
}

void StreamWorld::slow_down(ConnectionId id, double bytes_per_second) {
  if (auto* connection = find(id)) connection->slow_down(bytes_per_second);
}
void StreamWorld::alter(ConnectionId id, int from) {
  if (auto* connection = find(id)) connection->alter(from);
}

// Ends all sockets of a process. The connections that wait in its listeners are among them.
void StreamWorld::close_sockets(ProcessIndex process, bool silently) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second.process == process; });
  for (const auto& [id, connection] : connections_) {
    for (const int side : {0, 1}) {
      if (!connection->end(side).held || connection->end(side).process != process) continue;
      if (silently) connection->vanish(side);
      else connection->close(side);
    }
  }
  forget_finished();
}

void StreamWorld::crash(ProcessIndex process) {
  note(concat("process ", process, " crashes"));
  processes_[process].alive = false;
  close_sockets(process, false);
}

void StreamWorld::remove_host(HostIndex host) {
  note(concat("host ", host, " is gone"));
  hosts_[host].up = false;
  for (ProcessIndex process = 0; process < processes_.size(); ++process) {
    if (processes_[process].host != host) continue;
    processes_[process].alive = false;
    close_sockets(process, true);
  }
  for (const auto& [id, connection] : connections_) {
    for (const int side : {0, 1}) {
      if (connection->end(side).host == host && connection->end(side).state != EndState::none) connection->vanish(side);
    }
  }
}

void StreamWorld::change_addresses(HostIndex host, const std::vector<std::string>& addresses) {
  note(concat("host ", host, " moves to ", addresses.empty() ? "nowhere" : addresses.front()));
  hosts_[host].addresses = parse_all(addresses);
}

size_t StreamWorld::held_connections(ProcessIndex process) const {
  size_t count = 0;
  for (const auto& [id, connection] : connections_) {
    for (const int side : {0, 1}) count += connection->end(side).held && connection->end(side).process == process ? 1 : 0;
  }
  return count;
}

// Trace -------------------------------------------------------------------------------------------------------------

void StreamWorld::note(const std::string& text) {
  if (trace_max_ == 0) return;
  if (trace_.size() == trace_max_) trace_.pop_front();
  trace_.push_back(concat(seconds_of(now_), " s: ", text));
}

void StreamWorld::note(const VirtualConnection& connection, const char* what, int side, const Segment& segment) {
  if (trace_max_ == 0) return;
  note(concat("connection ", connection.id(), ", side ", side, " ", what, " ", name(segment.kind), " ", segment.from, " to ",
              segment.to, ", has ", segment.acknowledged, ", takes ", segment.window));
}

std::string StreamWorld::trace() const {
  std::string text;
  for (const auto& line : trace_) text += line + "\n";
  return text;
}

// Kernel ------------------------------------------------------------------------------------------------------------

void StreamWorld::set_alarm(Nanos at, VirtualConnection& connection, int side, Alarm alarm, uint64_t number) {
  events_.push(
      {.at = at, .sequence = next_sequence_++, .number = number, .connection = connection.id(), .side = side, .alarm = alarm});
}

bool StreamWorld::carries(const VirtualConnection& connection, int from) const {
  const auto& sender = connection.end(from);
  const auto& receiver = connection.end(1 - from);
  const auto& source = hosts_[sender.host];
  const auto& target = hosts_[receiver.host];
  if (!source.up || !target.up || now_ < sender.blocked_until) return false;
  if (!source.has(sender.address) || !target.has(receiver.address)) return false;
  const auto blocked = blocked_.find({sender.host, receiver.host});
  return blocked == blocked_.end() || now_ >= blocked->second;
}

uint64_t StreamWorld::find_listener(HostIndex host, const TcpAddress& to) const {
  for (const auto& [number, listener] : listeners_) {
    if (host_of(listener.process) != host || listener.port != to.port()) continue;
    const auto& at = listener.addresses;
    if (at.empty() || std::any_of(at.begin(), at.end(), [&](const auto& one) { return one.same_host(to); })) return number;
  }
  return 0;
}

StreamKernel::Answer StreamWorld::answer_syn(VirtualConnection& connection) {
  auto& end = connection.end(1);
  const auto found = listeners_.find(find_listener(end.host, end.address));
  if (found == listeners_.end()) return Answer::refusal;
  if (found->second.waiting.size() >= settings_.backlog) return Answer::silence;
  end.process = found->second.process;
  return Answer::welcome;
}

bool StreamWorld::queue_for_accept(VirtualConnection& connection) {
  auto& end = connection.end(1);
  const auto found = listeners_.find(find_listener(end.host, end.address));
  if (found == listeners_.end() || found->second.process != end.process) return false;
  found->second.waiting.push_back(connection.id());
  return end.held = true;
}

// Sockets -----------------------------------------------------------------------------------------------------------

bool StreamWorld::port_is_taken(const Listener& listener, uint16_t port) const {
  auto at = listener.addresses.empty() ? hosts_[host_of(listener.process)].addresses : listener.addresses;
  return std::any_of(at.begin(), at.end(), [&](auto& address) {
    address.set_port(port);
    return find_listener(host_of(listener.process), address) != 0;
  });
}

uint64_t StreamWorld::add_listener(Listener& listener) {
  auto& host = hosts_[host_of(listener.process)];
  if (listener.port == 0) {
    while (port_is_taken(listener, host.next_port)) ++host.next_port;
    listener.port = host.next_port++;
  } else if (port_is_taken(listener, listener.port)) {
    return 0;
  }
  listeners_[next_listener_] = listener;
  return next_listener_++;
}

void StreamWorld::remove_listener(uint64_t number) {
  const auto found = listeners_.find(number);
  if (found == listeners_.end()) return;  // the process has crashed
  const auto waiting = std::move(found->second.waiting);
  listeners_.erase(found);
  for (const auto id : waiting) {
    if (auto* connection = find(id)) connection->close_unaccepted();
  }
  forget_finished();
}

bool StreamWorld::has_waiting(uint64_t listener) const {
  const auto found = listeners_.find(listener);
  return found != listeners_.end() && !found->second.waiting.empty();
}

std::shared_ptr<VirtualConnection> StreamWorld::accept(uint64_t listener) {
  if (!has_waiting(listener)) return nullptr;
  auto& waiting = listeners_[listener].waiting;
  const auto id = waiting.front();
  waiting.pop_front();
  const auto found = connections_.find(id);
  UNISONO_CHECK(found != connections_.end());  // the queue holds it
  return found->second;
}

std::shared_ptr<VirtualConnection> StreamWorld::dial(ProcessIndex process, const TcpAddress& from, const TcpAddress& to) {
  StreamKernel& kernel = *this;
  auto connection = std::make_shared<VirtualConnection>(kernel, next_connection_++);
  auto& dialler = connection->end(0);
  auto& acceptor = connection->end(1);
  dialler.host = host_of(process);
  dialler.process = process;
  dialler.address = from;
  dialler.address.set_port(hosts_[dialler.host].next_port++);
  acceptor.address = to;
  // Where no host has the address, no answer comes: the host of the dialler stands in, which does not have it either.
  acceptor.host = dialler.host;
  for (HostIndex host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].up && hosts_[host].has(to)) acceptor.host = host;
  }
  connections_[connection->id()] = connection;
  note(concat("process ", process, " dials ", to.to_string(), " as connection ", connection->id()));
  connection->dial();
  return connection;
}

}  // namespace unisono::sim

// The listening port that the transports of one process share. It accepts connections and reads the preamble of each: a few
// bytes in clear that name the member that is called. The port hands the connection to that member, which reads the rest.
//
// Each member steps the port in its own poll(), from its own thread. Whoever comes first accepts for all. A member that sleeps
// is woken: the connection that it got is in its watcher. A connection whose preamble is not there yet costs little memory, and
// the number of such connections is limited.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "net/stream_socket.h"
#include "transports/tcp/tcp_greeting.h"

namespace unisono {

class TcpPort;

struct TcpPortMember {
  PeerId id{};                  // the id by which this member is called
  bool answers_anyone = false;  // it also gets connections whose preamble calls no one (PeerId{})
  bool shares = true;           // false: opens a port of its own, which no other member joins
  // It reports the tag 0 while the port has work, or a connection has arrived for this member. It must live as long as the
  // membership.
  StreamWatcher* watcher = nullptr;
  Nanos preamble_timeout = 5 * second;  // a connection must send its preamble within this time
  // At most this many connections without a preamble may wait. If there are more, the oldest is closed.
  size_t without_preamble_max = 64;
};

// A connection whose preamble calls a member.
struct TcpArrival {
  std::unique_ptr<StreamSocket> socket;
  TcpPreamble preamble;
};

// What the port has refused since it was opened.
struct TcpPortRefusals {
  uint64_t count = 0;
  std::string last{};       // "10.0.0.1:4 (another protocol than Unisono)"; empty: none
  std::string exhausted{};  // why the last step could not accept: no descriptor was free. Empty: it could
};

// A membership of a port; its end ends it. Move-only.
class TcpPortMembership {
 public:
  TcpPortMembership() = default;
  TcpPortMembership(TcpPortMembership&& other) noexcept;
  TcpPortMembership& operator=(TcpPortMembership&& other) noexcept;
  ~TcpPortMembership() { leave(); }

  // Joins the port of this process for `listen`. If no member has it open, opens it. Returns the error unavailable if the port
  // is taken or cannot be bound. A fixed port, or one at other addresses, is another port.
  static Result<TcpPortMembership> join(StreamNetwork& network, const StreamListenRequest& listen, const TcpPortMember& member);
  // The last member to leave closes the port.
  void leave();
  bool joined() const { return port_ != nullptr; }

  uint16_t port() const;
  // From now on this member also gets connections whose preamble calls no one.
  void answer_anyone();
  // Accepts connections, reads preambles, and moves the connections that call this member to the end of `arrived`. Returns true
  // if anything happened.
  bool step(Nanos now, std::vector<TcpArrival>& arrived);
  // At this time step() must be called even if the watcher reports nothing.
  Nanos next_deadline() const;
  // Returns the number of connections whose preamble is not there yet.
  size_t waiting() const;
  TcpPortRefusals refusals() const;

 private:
  std::shared_ptr<TcpPort> port_;
  uint64_t number_ = 0;
};

}  // namespace unisono

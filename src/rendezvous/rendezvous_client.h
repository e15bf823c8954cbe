// The part of the rendezvous that belongs to one process, as a state machine. Its inputs are connections, received bytes and
// the time; its outputs are bytes to send.
//
// The driver (the owner of the socket) dials the address repeatedly, with growing pauses, and tells the client about each
// connection. The client sends a hello. From the answers, it decides whether to wait, to dial again or to fail. Then it
// receives the table of ranks. After that, the client of the attending rank (the rank that answers joiners) stays connected,
// and keeps a list of the processes that want to join.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "rendezvous/rendezvous_messages.h"

namespace unisono::rendezvous {

class Client {
 public:
  enum class Phase : uint8_t {
    unconnected,      // There is no connection, so the driver must dial.
    greeting,         // The hello was sent, and there is no answer yet.
    waiting,          // This process is registered, and the table has not arrived yet.
    linking,          // The client has the table. It stays connected until its join has ended, and learns if others fail.
    leaving,          // The client needs the connection no longer, and waits until the server closes it.
    attending,        // The client has the table, and receives announcements of joiners.
    met,              // The client has the table, and needs the connection no longer.
    refused,          // The server has refused this process; error() says why.
    unauthenticated,  // The other end is not a rendezvous server; error() guesses what it is.
  };

  // For each connection, connected() computes hello.remaining_ms from the deadline.
  Client(Hello hello, Nanos deadline) : hello_(std::move(hello)), deadline_(deadline) {}

  // Tells the client that a connection is open. Returns the bytes that must be sent first.
  Bytes connected(Nanos now);
  // Handles received bytes. They may change the phase, so the driver must call phase() afterwards to learn what to do next.
  void received(ByteView bytes, Nanos now);
  // Ends the client. refuse(): the server is refused because of its key. refuse_program(): the other end is this program.
  void refuse(Status why) { fail(Phase::refused, std::move(why)); }
  void refuse_program(const std::string& program) { fail(Phase::unauthenticated, {Code::unavailable, program}); }
  // Tells the client that the connection has ended. Returns false if no byte had arrived on it.
  bool disconnected();

  Phase phase() const { return phase_; }
  // Returns when the client sent its hello. The result is valid only in phase greeting.
  Nanos greeting_since() const { return greeting_since_; }
  // Returns the identity of the server that has registered this process.
  const std::optional<PeerId>& server() const { return server_; }
  const Status& error() const { return error_; }
  std::optional<Roster> take_roster() { return std::exchange(roster_, std::nullopt); }
  uint32_t times_registered() const { return times_registered_; }

  // After the table, the members link up with each other. Returns why that failed at this member or at another one, as soon as
  // the server has said so. Returns ok otherwise, and after joined().
  Status formation_error() const;
  // Say how this process's join has ended. They return the bytes to send, and nothing if the server need not know. The server
  // answers a failure: formation_error() is then the first failure of any member. A member may also fail before it has the
  // table; the server then refuses all members.
  std::optional<Bytes> joined();
  std::optional<Bytes> failed(const Status& why) const;

  // Makes this process the attending member of the running group, which receives the announcements of joiners. If a connection
  // is open, returns the bytes to send on it. Otherwise returns nothing, and the driver must dial.
  std::optional<Bytes> attend(const Roster& roster, Rank self);
  std::vector<MemberRecord> joiners() const;
  // Returns a message that answers a joiner. Returns nothing if the joiner is gone.
  std::optional<Bytes> answer(const PeerId& joiner, const Result<Roster>& answer);

 private:
  void on_message(const Message& message);
  void fail(Phase phase, Status why);

  Hello hello_;
  Nanos deadline_;
  Phase phase_ = Phase::unconnected;
  Nanos greeting_since_ = 0;
  bool received_any_ = false;
  uint32_t times_registered_ = 0;
  MessageStream stream_;
  std::optional<PeerId> server_;
  std::optional<Roster> roster_;
  Status error_;
  Status formation_error_;  // used in phase attending
  bool forming_ = false;    // true: the table has come, and this process's join has not ended
  std::map<PeerId, MemberRecord> joiners_;
};

}  // namespace unisono::rendezvous

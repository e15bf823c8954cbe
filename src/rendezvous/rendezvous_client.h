// One process's side of the rendezvous as a state machine: connections and bytes are inputs, bytes are outputs, time is an
// argument.
//
// The driver dials the address repeatedly, with back-off, and tells the client of each connection. The client sends a hello,
// and decides from the answers whether to wait, to dial again or to fail. After the table has come, the client of an attending
// rank stays connected and keeps the list of processes that want to join.
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
    apart,            // no connection: dial
    greeting,         // hello sent, no answer yet
    waiting,          // registered
    attending,        // gets announcements of joiners
    met,              // has the table and needs no connection any more
    refused,          // the server refused this process; error() says why
    unauthenticated,  // the program there is not a rendezvous server; error() says what it is
  };

  // connected() fills in hello.remaining_ms from the deadline for each connection.
  Client(Hello hello, Nanos deadline) : hello_(std::move(hello)), deadline_(deadline) {}

  // A connection is up. Returns the bytes to send first.
  Bytes connected(Nanos now);
  // Handles received bytes; may end in any phase, and phase() says what to do next.
  void received(ByteView bytes, Nanos now);
  // The connection ended. False if it ended before a single byte came.
  bool disconnected();

  Phase phase() const { return phase_; }
  // Since when the client has waited for an answer to its hello; valid only while greeting.
  Nanos greeting_since() const { return greeting_since_; }
  // The identity of the server that welcomed this process.
  const std::optional<PeerId>& server() const { return server_; }
  const Status& error() const { return error_; }
  std::optional<Roster> take_roster() { return std::exchange(roster_, std::nullopt); }
  uint32_t times_registered() const { return times_registered_; }

  // Makes this process the attending member of the running group: it will get announcements of joiners. Returns the bytes to
  // send on a connection that attends already, or nothing if the driver must dial.
  std::optional<Bytes> attend(const Roster& roster, Rank self);
  std::vector<MemberRecord> joiners() const;
  // The message that tells the joiner the answer; nothing if the joiner is gone.
  std::optional<Bytes> answer(const PeerId& joiner, const Result<Roster>& answer);

 private:
  void on_message(const Message& message);
  void fail(Phase phase, Status why);

  Hello hello_;
  Nanos deadline_;
  Phase phase_ = Phase::apart;
  Nanos greeting_since_ = 0;
  bool heard_ = false;
  uint32_t times_registered_ = 0;
  MessageStream stream_;
  std::optional<PeerId> server_;
  std::optional<Roster> roster_;
  Status error_;
  std::map<PeerId, MemberRecord> joiners_;
};

}  // namespace unisono::rendezvous

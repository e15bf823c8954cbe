// One process's side of the rendezvous as a state machine: connections and bytes in, bytes out, time as an argument.
//
// The driver dials the address (again and again, with back-off) and tells the client of each connection; the client says
// hello, and knows from the answers whether to wait, to dial again or to give up. After the table has come, the
// client of an attending rank stays connected and keeps the list of processes that want to join.
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
    greeting,         // hello said, no answer yet
    waiting,          // registered
    attending,        // told of joiners
    met,              // has the table and needs no connection any more
    refused,          // the server turned this process away: error() says why
    unauthenticated,  // what answers there is not a rendezvous server: error() says what it is
  };

  // hello.remaining_ms is filled in from the deadline at each greeting.
  Client(Hello hello, Nanos deadline) : hello_(std::move(hello)), deadline_(deadline) {}

  // A connection is up. Returns what to send first.
  Bytes connected(Nanos now);
  // May end in any phase; phase() says what to do next.
  void received(ByteView bytes, Nanos now);
  // The connection ended; false if it ended before a single byte came.
  bool disconnected();

  Phase phase() const { return phase_; }
  // How long the server has said nothing since hello; only while greeting.
  Nanos greeting_since() const { return greeting_since_; }
  // The identity of the server that welcomed this process.
  const std::optional<PeerId>& server() const { return server_; }
  const Status& error() const { return error_; }
  std::optional<Roster> take_roster() { return std::exchange(roster_, std::nullopt); }
  uint32_t times_registered() const { return times_registered_; }

  // From now on a member of this running group that is told of joiners. Returns what to send on a connection that
  // attends already; nothing if the driver must dial.
  std::optional<Bytes> attend(const Roster& roster, Rank self);
  std::vector<MemberRecord> joiners() const;
  // What to send so that the joiner is told; nothing if it is gone.
  std::optional<Bytes> answer(const PeerId& joiner, const Result<Roster>& answer);

 private:
  void on_message(const Message& message);
  void give_up(Phase phase, Status why);

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

// The verdict on a round: for each chunk, one bit says whether all members of the group apply it. The members agree on these
// bits even if some members crash. The protocol is single-decree Paxos (Lamport 1998), with one state machine for each member
// and group. Messages go in and out, and time is an argument.
//
// No two members ever decide differently, even if messages are lost, late or repeated. A bit is 1 only if a majority of all
// listed members held the chunk's result. Therefore every living majority has a member that holds the result. Without faults,
// the decision comes three one-way delays after the last have(). All members decide if a majority is alive, a living member may
// propose, and delays are below ballot_timeout/4.
//
// Only crashes are tolerated: a member that lies can break the agreement. If a process has destroyed its state machine for a
// group, it must never make another one for that group.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "elastic/round/chunk_bits.h"
#include "elastic/round/verdict_messages.h"

namespace unisono {

struct VerdictOptions {
  uint32_t members = 0;  // the group's descriptor lists so many members
  uint32_t self = 0;     // this member's rank
  // For each rank: true unless the member is a client. Dead members are no exception. All members must pass the same vector.
  std::vector<bool> proposer;
  size_t chunks = 0;
  Nanos ballot_timeout = 1 * second;
};

struct VerdictSend {
  uint32_t to = 0;  // rank of the receiver, never this member
  VerdictMessage message;
};

class Verdict {
 public:
  // Requires self < members, one entry of `proposer` per member, and a ballot_timeout of at least 2 ns.
  explicit Verdict(VerdictOptions options);

  // Call when this member's repair (the fetching of missing results) has ended. `mine` says which chunks' results this member
  // holds. The member must keep these results until the verdict is applied. Only the first call counts.
  void have(const ChunkBits& mine, Nanos now);
  // Handles a message. May be called before have(). A message that no correct member sends is only counted.
  void message(uint32_t from, const VerdictMessage& message, Nanos now);
  // Call when a member is dead or has declined the group. This state machine then no longer waits for that member, nor for its
  // ballots. Messages from that member still count.
  void member_gone(uint32_t rank, Nanos now);
  void woke(Nanos now);
  // Returns when woke() must be called next, or `never` before have() and after the decision.
  Nanos next_deadline() const;
  std::vector<VerdictSend> take_sends() { return std::exchange(sends_, {}); }

  // Returns the decision, or null if there is none yet. Keep the state machine until the round is over, because it answers
  // HAVE, PROPOSE, PREPARE and PROMISE with the decision. The caller may answer other messages of the round with
  // decided_message().
  const ChunkBits* decided() const { return decided_ ? &*decided_ : nullptr; }
  VerdictMessage decided_message() const { return VerdictDecided{*decided_}; }  // call it after the decision only
  // Returns true if there is no decision, and the members that are left are no majority.
  bool hopeless() const { return !decided_ && options_.members - gone_count_ < majority(); }
  uint32_t majority() const { return options_.members / 2 + 1; }
  uint64_t ignored() const { return ignored_; }

 private:
  enum class Phase : uint8_t { idle, preparing, proposing };

  void on(uint32_t from, const VerdictHave& have, Nanos now);
  void on(uint32_t from, const VerdictPropose& propose, Nanos now);
  void on(uint32_t from, const VerdictAccept& accept, Nanos now);
  void on(uint32_t from, const VerdictPrepare& prepare, Nanos now);
  void on(uint32_t from, const VerdictPromise& promise, Nanos now);
  void on(uint32_t from, const VerdictDecided& decided, Nanos now);

  void send(uint32_t to, VerdictMessage message, Nanos now);
  void broadcast(const VerdictMessage& message, Nanos now);
  void handle(uint32_t from, const VerdictMessage& message, Nanos now);
  bool fits(uint32_t from, const VerdictMessage& message) const;
  void begin_due_ballot(Nanos now);
  void open_ballot(uint32_t ballot, Nanos now);
  void propose(uint32_t ballot, ChunkBits value, Nanos now);
  void propose_first(Nanos now);
  void promise_to(uint32_t proposer, uint32_t ballot, Nanos now);
  void decide(const ChunkBits& value, Nanos now);
  ChunkBits held_by_majority() const;
  uint32_t proposer_of(uint32_t ballot) const;

  VerdictOptions options_;
  std::vector<uint32_t> proposers_;  // ranks that may propose, in the order of their ballots
  std::vector<bool> gone_;           // by rank: true if member_gone() was called for the member
  uint32_t gone_count_ = 0;
  std::vector<std::optional<ChunkBits>> haves_;  // by rank: the chunks whose results the member holds, as it reported
  // By rank: the member's accept with the highest ballot. After a decision, higher ballots propose the decided value again.
  std::vector<std::optional<VerdictAccept>> accepts_;

  std::optional<Nanos> have_at_;  // when this member's repair ended
  uint32_t ballots_timed_ = 0;    // so many ballot_timeouts have passed since have_at_
  uint32_t ballots_due_ = 0;      // the highest ballot that was due so far
  bool awaits_all_ = true;        // true: the proposer of ballot 0 still waits for all members
  uint32_t promised_ = 0;         // this member takes part in no lower ballot
  // This member's accept in the highest ballot in which it has accepted a value.
  std::optional<VerdictAccept> accepted_;
  // The ballot of a PREPARE that this member has not answered yet, because it had nothing to report.
  std::optional<uint32_t> unanswered_;

  Phase phase_ = Phase::idle;  // the state of this member's own ballot
  uint32_t ballot_ = 0;
  ChunkBits value_;  // this member proposes it; no ballot proposes two values
  Nanos repeat_at_ = never;
  std::vector<bool> promises_;
  // The promises to this member report accepts. This is the one with the highest ballot.
  std::optional<VerdictAccept> newest_accepted_;

  std::optional<ChunkBits> decided_;
  std::vector<VerdictSend> sends_;
  uint64_t ignored_ = 0;
};

}  // namespace unisono

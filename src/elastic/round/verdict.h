// The verdict on a round: one bit per chunk that says whether all members of the group apply it. The members agree on it
// although some crash. Single-decree Paxos (Lamport 1998), one machine per member and group: messages go in and out, time is an
// argument.
//
// No two members ever decide differently, whatever is lost, late or repeated. A bit is 1 only if a majority of all listed
// members held the chunk, so every living majority has a holder. Without faults the decision comes three one-way delays after
// the last have(). All members decide if a majority lives, one member of it may propose, and delays stay below
// ballot_timeout/4.
//
// Only crash faults are tolerated: a member that lies can break this. A process that has dropped a machine must never make
// another one for that group.
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
  uint32_t members = 0;        // all members that the group's descriptor lists
  uint32_t self = 0;           // this member's rank
  std::vector<bool> proposer;  // by rank: true for all but clients, dead or alive. Must be equal at all members
  size_t chunks = 0;
  Nanos ballot_timeout = 1 * second;
};

struct VerdictSend {
  uint32_t to = 0;  // never this member
  VerdictMessage message;
};

class Verdict {
 public:
  // Requires self < members, one entry of `proposer` per member, and ballot_timeout of at least 2 ns.
  explicit Verdict(VerdictOptions options);

  // Call when this member's repair has ended, with the chunks whose results it holds. It must keep these until the verdict is
  // applied. Only the first call counts.
  void have(const ChunkBits& mine, Nanos now);
  // May be called at any time, also before have(). A message that no correct member sends is ignored and counted.
  void message(uint32_t from, const VerdictMessage& message, Nanos now);
  // The member is dead or declined the group: neither it nor its ballots are waited for. Its messages still count.
  void member_gone(uint32_t rank, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` before have() and after the decision.
  Nanos next_deadline() const;
  std::vector<VerdictSend> take_sends() { return std::exchange(sends_, {}); }

  // Null until decided. Afterwards HAVE, PROPOSE, PREPARE and PROMISE are answered with the decision, so keep the machine until
  // the round is over. The caller may answer the round's other messages with decided_message().
  const ChunkBits* decided() const { return decided_ ? &*decided_ : nullptr; }
  VerdictMessage decided_message() const { return VerdictDecided{*decided_}; }  // requires a decision
  // So many members are gone that no majority of all listed ones can form any more.
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
  std::vector<uint32_t> proposers_;  // ranks that may propose
  std::vector<bool> gone_;           // by rank, like the next three
  uint32_t gone_count_ = 0;
  std::vector<std::optional<ChunkBits>> haves_;        // as reported to this member
  std::vector<std::optional<VerdictAccept>> accepts_;  // each member's newest; a newer ballot carries a decided value on

  std::optional<Nanos> have_at_;           // when this member's repair ended
  uint32_t ballots_timed_ = 0;             // how many ballot timeouts have passed since
  uint32_t ballots_due_ = 0;               // the newest ballot whose time had come
  bool patient_ = true;                    // the first proposer still waits for all members
  uint32_t promised_ = 0;                  // this member takes part in no ballot below
  std::optional<VerdictAccept> accepted_;  // the newest
  // A ballot that was promised but not answered, because this member has nothing to report yet.
  std::optional<uint32_t> unanswered_;

  Phase phase_ = Phase::idle;  // of this member's own ballot
  uint32_t ballot_ = 0;
  ChunkBits value_;  // the value that it proposes; one per ballot, ever
  Nanos repeat_at_ = never;
  std::vector<bool> promises_;
  std::optional<VerdictAccept> newest_accepted_;  // among the promises

  std::optional<ChunkBits> decided_;
  std::vector<VerdictSend> sends_;
  uint64_t ignored_ = 0;
};

}  // namespace unisono

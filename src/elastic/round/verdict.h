// Which chunks of a round all members of a group apply: one value, a bit per chunk, on which they agree although some of them
// crash. Single-decree Paxos (Lamport 1998), one machine per member and group: messages in, messages out, time as an argument.
//
// No two members ever decide differently, whatever is lost, late, or said twice. A bit is 1 only if a majority of all listed
// members held the chunk, so every living majority has a holder. Without faults it is decided three one-way delays after the
// last have(). With a living majority, one that may propose among them, and delays below ballot_timeout/4, everybody decides.
// Only crash faults: who lies can break this. Who has let go of a machine must never make one for that group again.
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
  uint32_t members = 0;        // all that the group's descriptor lists
  uint32_t self = 0;           // own rank in it
  std::vector<bool> proposer;  // by rank: not a client. Dead or alive: all members must have the same list
  size_t chunks = 0;
  Nanos ballot_timeout = 1 * second;
};

struct VerdictSend {
  uint32_t to = 0;  // never this member itself
  VerdictMessage message;
};

class Verdict {
 public:
  // self < members, one entry of `proposer` per member, ballot_timeout at least 2 ns.
  explicit Verdict(VerdictOptions options);

  // Own repair is over, and these are the chunks whose results this member holds, and keeps until the verdict is applied.
  // Only the first call counts.
  void have(const ChunkBits& mine, Nanos now);
  // At any time, also before have(). What no member would send is ignored and counted.
  void message(uint32_t from, const VerdictMessage& message, Nanos now);
  // Dead, or it declined the group: nobody waits for it, nor for the ballots that it would run. Should it speak all the same,
  // it is heard.
  void member_gone(uint32_t rank, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` before have() and after the decision.
  Nanos next_deadline() const;
  std::vector<VerdictSend> take_sends() { return std::exchange(sends_, {}); }

  // Null until decided. From then on HAVE, PROPOSE, PREPARE and PROMISE are answered with it, so keep the machine for `linger`;
  // the owner may answer the round's other messages with decided_message().
  const ChunkBits* decided() const { return decided_ ? &*decided_ : nullptr; }
  VerdictMessage decided_message() const { return VerdictDecided{*decided_}; }  // once decided
  // So many members are gone that no majority of all that are listed can come about any more.
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
  std::vector<uint32_t> proposers_;  // ranks of those that may propose
  std::vector<bool> gone_;           // by rank, as the next three
  uint32_t gone_count_ = 0;
  std::vector<std::optional<ChunkBits>> haves_;        // as reported to this member
  std::vector<std::optional<VerdictAccept>> accepts_;  // the newest of each: a newer ballot takes a decided value up again

  std::optional<Nanos> have_at_;           // own repair was over
  uint32_t ballots_timed_ = 0;             // how many ballot times have passed since
  uint32_t ballots_due_ = 0;               // the newest ballot that was due
  bool patient_ = true;                    // the first proposer still waits for all
  uint32_t promised_ = 0;                  // takes part in no ballot below
  std::optional<VerdictAccept> accepted_;  // the newest
  std::optional<uint32_t> unanswered_;     // a ballot that is promised but not answered: there is nothing to say yet

  Phase phase_ = Phase::idle;  // of the own ballot
  uint32_t ballot_ = 0;
  ChunkBits value_;  // that it proposes; one per ballot, ever
  Nanos repeat_at_ = never;
  std::vector<bool> promises_;
  std::optional<VerdictAccept> newest_accepted_;  // among the promises

  std::optional<ChunkBits> decided_;
  std::vector<VerdictSend> sends_;
  uint64_t ignored_ = 0;
};

}  // namespace unisono

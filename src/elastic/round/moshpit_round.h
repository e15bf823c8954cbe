// One round of a Moshpit All-Reduce at one member: its group averages the whole vector, chunk by chunk. A state machine:
// messages and losses go in, messages go out through a port, time is an argument.
//
// Each chunk has an owner. It takes the members' contributions, adds them up once and sends the same bytes to all. A member
// that lacks a dead owner's result asks other members for it. Then the members agree, one bit per chunk, which chunks count
// (elastic/round/verdict). Each member applies exactly these. So all members take the same step on a chunk, and neither values
// nor weights are lost or doubled. A member that died affects only the chunks that it owned or had not contributed to.
//
// CPU cost with fp32 on the wire: the owner reads each element once and writes it once into the result. Both ends hash the
// result, which then becomes the value; nothing is copied.
//
// Pass messages that have arrived before calling woke(): a process that was stopped must hear the others before it judges them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "elastic/round/chunk_bits.h"
#include "elastic/round/chunk_table.h"
#include "elastic/round/round_messages.h"
#include "elastic/round/round_owner.h"
#include "elastic/round/round_repair.h"
#include "elastic/round/round_report.h"
#include "elastic/round/round_request.h"
#include "elastic/round/verdict.h"
#include "unisono/status.h"

namespace unisono {

class RoundPort {
 public:
  virtual ~RoundPort() = default;
  // Queues the message. Delivery is in order per member; messages are lost only with the link. Must not call the round. bulk:
  // the message carries elements.
  virtual void send(uint32_t rank, SharedMessage message, bool bulk) = 0;
  // Whether contributions may be sent now. After false, the port's user calls MoshpitRound::credit() when that changes.
  virtual bool credit(uint32_t rank) const = 0;
};

// Why a member is no longer waited for.
enum class MemberLoss : uint8_t {
  dead = 0,
  left = 1,
  declined = 2,  // it takes part in another group instead; its messages are ignored
  closed = 3,    // its connection is gone; it may come back
};

class MoshpitRound {
 public:
  // Error: invalid, naming the numbers, if the descriptor contradicts itself or does not fit the vector.
  static Result<std::unique_ptr<MoshpitRound>> make(RoundRequest request, RoundPort& port);

  // Call once, when the descriptor was accepted. All timeouts count from here.
  void start(Nanos now);
  // A message of this group from a member, after start(). Messages that no correct member sends are counted in
  // report().ignored.
  void message(uint32_t rank, const SharedBuffer& bytes, Nanos now);
  void member_gone(uint32_t rank, MemberLoss why, Nanos now);
  // Bulk messages may be sent to this member again.
  void credit(uint32_t rank, Nanos now);
  // Leaves the round: tells the group and ends at once, changing nothing.
  void abandon(Nanos now);
  void woke(Nanos now);
  // When woke() must be called; after the end, when over() becomes true.
  Nanos next_deadline() const;

  // The verdict is applied, or the round was aborted. Values and states belong to the caller again, and report() is complete.
  // The round then only answers other members: pass messages as before until over(), one round_timeout later.
  bool ended() const { return phase_ == Phase::ended; }
  bool over(Nanos now) const;
  const RoundReport& report() const { return report_; }
  // After the end, until release_results(): the decided result of this chunk, if this member has it, whether or not it includes
  // this member's values. Null: no step for this chunk, or no result here.
  const ChunkResult* applied(uint32_t chunk) const;
  // Call when the next verdict is applied: other members cannot fetch results from here any more.
  void release_results();
  // Bytes of contributions and results held now.
  size_t held_bytes() const;

 private:
  enum class Phase : uint8_t { waiting, gathering, deciding, ended };
  enum class Gone : uint8_t { no, dead, left, declined, closed, abandoned };
  struct HeldResult {
    SharedBuffer message;  // null: not known
    ChunkResult head;
  };
  struct MemberState {
    Gone gone = Gone::no;
    bool fell_silent = false;  // a chunk was closed without it because it was silent
    Nanos heard_at = 0;
    uint32_t first_chunk = 0, chunk_count = 0;  // the chunks that it owns
    uint32_t sent = 0;                          // this member's contributions to them
    uint32_t answered = 0;                      // of these, how many results are known without a gap
    uint32_t known = 0;                         // all its results that are known
    ChunkBits wanted;  // results that it asked for, to be sent when there is credit; size 0 until the first
  };

  MoshpitRound(RoundRequest request, RoundPort& port);

  void on(uint32_t from, const Contribution& contribution, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const ChunkResult& result, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const KeepAlive& alive, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Abandon& abandon, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Fetch& fetch, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const FetchMiss& miss, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const VerdictMessage& message, const SharedBuffer& bytes, Nanos now);

  // Takes every step that the last event allows.
  void settle(Nanos now);
  void send_contributions();
  bool contribute_to(MemberState& owner, uint32_t rank);
  bool contributions_done() const;
  void close_chunks(Nanos now);
  void gather(Nanos now);
  void decide(Nanos now);
  void finish_repair(Nanos now);
  bool repair_due(Nanos now) const;
  Nanos repair_deadline() const;
  void fetch(Nanos now);
  void flush_verdict();
  void abort_if_hopeless(Nanos now);
  Nanos gathering_deadline() const;

  void lose(uint32_t rank, Gone why, Nanos now);
  void come_back(uint32_t rank);
  void store(SharedBuffer message, const ChunkResult& head);
  void serve(uint32_t rank, uint32_t chunk);
  void serve_wanted(uint32_t rank);
  void answer_ended(uint32_t rank);
  void send(uint32_t rank, SharedMessage message, bool bulk);
  void send_to_all(const SharedBuffer& message, bool bulk);
  bool reachable(uint32_t rank) const;
  bool silent(uint32_t rank, Nanos limit, Nanos now) const;
  RankSet excused(Nanos now) const;
  bool hopeless(bool for_certain) const;
  bool last_one() const;

  // The end of the round: moshpit_round_end.cc.
  void finish(Nanos now);
  void give_up(std::string problem, Nanos now);
  void apply(uint32_t chunk);
  void end(Nanos now);
  void sum_up();
  std::string absence(uint32_t rank, uint32_t present, uint32_t known) const;

  const RoundRequest request_;
  const RoundFormat format_;
  RoundPort& port_;
  Phase phase_ = Phase::waiting;
  std::vector<MemberState> members_;  // by rank
  RankSet contributors_;              // members that may contribute: all but reducers
  std::optional<RoundOwner> owner_;   // exists until the end
  RoundRepair repair_;
  bool repairing_ = false;
  std::optional<Verdict> verdict_;   // exists until over(). Removed if the round was aborted: this member then votes no more
  std::vector<HeldResult> results_;  // by chunk
  uint32_t known_ = 0;               // how many of them are known
  ChunkBits held_;                   // known and not void
  size_t result_bytes_ = 0;

  Nanos started_ = 0, ended_ = 0;
  Nanos now_ = 0;  // time of the event being handled
  Nanos keep_alive_at_ = never;
  Nanos contributed_ = never, repaired_ = never;  // when these phases ended
  Nanos hopeless_since_ = never;
  RoundReport report_;
};

}  // namespace unisono

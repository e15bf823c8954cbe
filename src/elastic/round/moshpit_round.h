// One round of a Moshpit All-Reduce at one member: its group averages the whole vector, chunk by chunk. A state machine:
// messages and losses in, messages out through a port, time as an argument.
//
// Each chunk has an owner, which takes the members' contributions, adds them up once and gives everybody the same bytes. Who
// lacks a result of a dead owner asks others for it. Then the members agree, bit by bit, which chunks count
// (elastic/round/verdict), and each applies those, at once, or none: so a chunk's step is that of all members without those
// that died before it, and neither values nor weight get lost or doubled. A member that died changes only the chunks that it
// owned or had not contributed to. CPU: with fp32 on the wire each element is read once by its owner and written once into the
// result, which is hashed at both ends and then becomes the value; nothing is copied. Feed messages that have arrived before
// woke(): a process that was stopped should hear the others before it judges them.
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
  // Queues the message; in order per member, lost only with the link. Must not call the round back. bulk: it carries elements.
  virtual void send(uint32_t rank, SharedMessage message, bool bulk) = 0;
  // Whether contributions may be sent now. After a `false` the round hears of it by credit().
  virtual bool credit(uint32_t rank) const = 0;
};

// Why a member is not waited for.
enum class MemberLoss : uint8_t {
  dead = 0,
  left = 1,
  declined = 2,  // it took part in another group instead: it has no part in this one, and is not listened to
  closed = 3,    // the connection to it is gone; it may come back
};

class MoshpitRound {
 public:
  // invalid, naming the numbers: what the descriptor says does not fit together, or does not fit the vector.
  static Result<std::unique_ptr<MoshpitRound>> make(RoundRequest request, RoundPort& port);

  // Once, when the descriptor was taken; all time-outs count from here.
  void start(Nanos now);
  // A message of the group from a member, after start(). What no member would send is counted, in report().ignored.
  void message(uint32_t rank, const SharedBuffer& bytes, Nanos now);
  void member_gone(uint32_t rank, MemberLoss why, Nanos now);
  // There is room again for bulk to this member.
  void credit(uint32_t rank, Nanos now);
  // This process leaves: says so to the group and ends at once, changing nothing.
  void abandon(Nanos now);
  void woke(Nanos now);
  // When woke() must be called; after the end when over() becomes true.
  Nanos next_deadline() const;

  // The verdict is applied, or the round was given up; values and states are the caller's again, and report() is complete. What
  // is left answers others: messages go in as before until it is over(), a round_timeout later.
  bool ended() const { return phase_ == Phase::ended; }
  bool over(Nanos now) const;
  const RoundReport& report() const { return report_; }
  // After the end, until release_results(): what was decided for this chunk and is known here, whether this member's values are
  // in it or not. Null: nobody's step, or not known.
  const ChunkResult* applied(uint32_t chunk) const;
  // After the end: others can no longer fetch results from here. Call it when the next verdict is applied.
  void release_results();
  // Bytes of contributions and results that are held now.
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
    bool fell_silent = false;  // a chunk was closed without it for that
    Nanos heard_at = 0;
    uint32_t first_chunk = 0, chunk_count = 0;  // that it owns
    uint32_t sent = 0;                          // own contributions to them
    uint32_t answered = 0;                      // of them, how many results are known from the first on
    uint32_t known = 0;                         // results known at all
    ChunkBits wanted;                           // results that it asked for, for when there is room; of no bits until then
  };

  MoshpitRound(RoundRequest request, RoundPort& port);

  void on(uint32_t from, const Contribution& contribution, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const ChunkResult& result, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const KeepAlive& alive, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Abandon& abandon, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Fetch& fetch, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const FetchMiss& miss, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const VerdictMessage& message, const SharedBuffer& bytes, Nanos now);

  // Whatever follows from what happened.
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
  void give_up_if_hopeless(Nanos now);
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

  // The end: moshpit_round_end.cc.
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
  RankSet contributors_;              // who may be one: not a reducer
  std::optional<RoundOwner> owner_;   // until the end
  RoundRepair repair_;
  bool repairing_ = false;
  std::optional<Verdict> verdict_;   // until it is over, unless the round was given up: then this member votes no more
  std::vector<HeldResult> results_;  // by chunk
  uint32_t known_ = 0;               // of them
  ChunkBits held_;                   // known and not void
  size_t result_bytes_ = 0;

  Nanos started_ = 0, ended_ = 0;
  Nanos now_ = 0;  // of the event that is being worked on
  Nanos keep_alive_at_ = never;
  Nanos contributed_ = never, repaired_ = never;  // when these phases were over
  Nanos hopeless_since_ = never;
  RoundReport report_;
};

}  // namespace unisono

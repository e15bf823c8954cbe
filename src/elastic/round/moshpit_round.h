// One round of a Moshpit All-Reduce at one member: the member's group averages the whole vector, chunk by chunk. It is a state
// machine: messages and losses go in, messages go out through a port, and time is an argument.
//
// Each chunk has an owner. The owner takes the members' contributions, adds them up once, and sends the same bytes to all
// members. If the owner dies, members that lack its result fetch the result from other members. Then the members agree which
// chunks are applied, with one bit per chunk (elastic/round/verdict). Each member applies exactly these chunks. Therefore all
// members change a chunk alike, and no value or weight is lost or counted twice. If a member dies, only two kinds of chunks
// suffer: those that it owned, and those to which it had not contributed.
//
// CPU cost if fp32 is sent: the owner reads each element once, and writes it once into the result. The owner and the receivers
// compute a hash of the result. The result then becomes the new value without a copy.
//
// Before calling woke(), pass in all messages that have arrived. Otherwise a process that was stopped would judge other members
// by their old silence.
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
  // Queues a message. Messages to one member arrive in order, and are lost only if the link breaks. An implementation must not
  // call the round. If `bulk` is true, the message carries elements of the vector.
  virtual void send(uint32_t rank, SharedMessage message, bool bulk) = 0;
  // Returns true if contributions may be sent to the member now. If it has returned false, the owner of the port must call
  // MoshpitRound::credit() once contributions may be sent again.
  virtual bool credit(uint32_t rank) const = 0;
};

// Why the round no longer waits for a member.
enum class MemberLoss : uint8_t {
  dead = 0,
  left = 1,
  declined = 2,  // The member has declined this group. Its messages are ignored.
  closed = 3,    // the connection broke, but the member may come back
};

class MoshpitRound {
 public:
  // Returns the error invalid, with the numbers in the text, if the descriptor contradicts itself or does not fit the vector.
  static Result<std::unique_ptr<MoshpitRound>> make(RoundRequest request, RoundPort& port);

  // Call once, after the descriptor was accepted. All timeouts begin here.
  void start(Nanos now);
  // Handles a message of this group that came from a member. Call start() before. report().ignored counts messages that no
  // correct member sends.
  void message(uint32_t rank, const SharedBuffer& bytes, Nanos now);
  void member_gone(uint32_t rank, MemberLoss why, Nanos now);
  // Call when bulk messages may be sent to this member again.
  void credit(uint32_t rank, Nanos now);
  // Leaves the round: tells the other members, and ends the round at once. Nothing is changed here.
  void abandon(Nanos now);
  void woke(Nanos now);
  // Returns when woke() must be called next. After the end of the round, this is when over() becomes true.
  Nanos next_deadline() const;

  // ended() is true once the verdict was applied or the round was aborted. From then on, values and states belong to the caller
  // again, and report() is complete. Keep passing messages to the round until over() is true, because other members may still
  // ask for results. This is one round_timeout after the end.
  bool ended() const { return phase_ == Phase::ended; }
  bool over(Nanos now) const;
  const RoundReport& report() const { return report_; }
  // Returns the decided result of a chunk, even if this member's own values are not in that result. Returns null if the chunk
  // is not applied, or if this member lacks the result. The pointer is valid from the end of the round until release_results().
  const ChunkResult* applied(uint32_t chunk) const;
  // Drops the results, so other members can no longer fetch them. Call when the verdict of the next round is applied.
  void release_results();
  // Returns how many bytes of contributions and results are held now.
  size_t held_bytes() const;

 private:
  enum class Phase : uint8_t { waiting, gathering, deciding, ended };
  enum class Gone : uint8_t { no, dead, left, declined, closed, abandoned };
  struct HeldResult {
    SharedBuffer message;  // null: the result is not known here
    ChunkResult head;
  };
  struct MemberState {
    Gone gone = Gone::no;
    // True: at least one chunk was closed without this member's contribution, because the member was silent.
    bool fell_silent = false;
    Nanos last_message_at = 0;
    uint32_t first_chunk = 0, chunk_count = 0;  // the chunks that this member owns
    // This process has sent its contributions to the first `sent` chunks of this member.
    uint32_t sent = 0;
    // The results of the first `answered` chunks of this member are known.
    uint32_t answered = 0;
    uint32_t known = 0;  // how many of the owned chunks have a known result
    // Results that this member has requested, and that cannot be sent before there is credit. size() is 0 until the first of
    // them.
    ChunkBits wanted;
  };

  MoshpitRound(RoundRequest request, RoundPort& port);

  void on(uint32_t from, const Contribution& contribution, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const ChunkResult& result, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const KeepAlive& alive, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Abandon& abandon, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const Fetch& fetch, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const FetchMiss& miss, const SharedBuffer& bytes, Nanos now);
  void on(uint32_t from, const VerdictMessage& message, const SharedBuffer& bytes, Nanos now);

  // Does everything that the last event has made possible.
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

  void lose_member(uint32_t rank, Gone why, Nanos now);
  void restore_member(uint32_t rank);
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
  bool all_others_gone() const;

  // Defined in moshpit_round_end.cc: the end of the round.
  void finish(Nanos now);
  void abort_round(std::string problem, Nanos now);
  void apply(uint32_t chunk);
  void end(Nanos now);
  void complete_report();
  std::string loss_reason(const MemberState& member) const;
  std::string absence_reason(uint32_t rank, uint32_t present, uint32_t refused) const;

  const RoundRequest request_;
  const RoundFormat format_;
  RoundPort& port_;
  Phase phase_ = Phase::waiting;
  std::vector<MemberState> members_;  // by rank
  RankSet contributors_;              // all members except reducers, which have no values
  std::optional<RoundOwner> owner_;   // reset at the end of the round
  RoundRepair repair_;
  bool repairing_ = false;
  // Kept until over(). It is reset if the round was aborted, because this member then votes no more.
  std::optional<Verdict> verdict_;
  std::vector<HeldResult> results_;  // result of each chunk
  uint32_t known_ = 0;               // number of known results
  ChunkBits held_;                   // true for each chunk whose result is known and not void
  size_t result_bytes_ = 0;

  Nanos started_ = 0, ended_ = 0;
  Nanos now_ = 0;  // time of the event that is being handled
  Nanos keep_alive_at_ = never;
  // When this member had sent all its contributions, and when its repair (the fetching of missing results) ended. `never`: not
  // yet.
  Nanos contributed_ = never, repaired_ = never;
  Nanos hopeless_since_ = never;
  RoundReport report_;
};

}  // namespace unisono

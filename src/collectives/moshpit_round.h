// One round of a Moshpit All-Reduce at one member: its group averages the whole vector, chunk by chunk. A state machine: messages and
// losses in, messages out through a port, time as an argument.
//
// Each chunk has an owner, which takes the members' contributions, adds them up once and gives everybody the same bytes. Who lacks
// a result of a dead owner asks others for it. Then the members agree, bit by bit, which chunks count (collectives/verdict),
// and each applies those, at once, or none: so a chunk's step is that of all members without those that died before it, and neither
// values nor weight get lost or doubled. A member that died changes only the chunks that it owned or had not contributed to.
// CPU: each element is copied once to be sent, read once by its owner, hashed once and written once: about 4·V read, 2·V written.
// Feed messages that have arrived before woke(): a process that was stopped should hear the others before it judges them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "codecs/codec.h"
#include "collectives/chunk_table.h"
#include "collectives/round_report.h"
#include "unisono/status.h"
#include "wire/elastic_message.h"
#include "wire/elastic_times.h"

namespace unisono {

struct RoundMember {
  uint32_t position = 0;  // coordinate on the axis of the round
  ElasticRole role = ElasticRole::peer;
  bool in_layout = false;  // a layout member of the line
  friend bool operator==(const RoundMember&, const RoundMember&) = default;
};

// Of one chunk at one peer; carried over the rounds of a sweep. At its start: the peer's own weight (0: it takes the mean and gives
// nothing), full, one sharer. A new layout inside a sweep clears full.
struct ChunkState {
  double weight = 1;
  bool full = true;      // committed in every earlier round of the sweep, lacking no peer's value
  uint32_t sharers = 1;  // members of the cell that hold equal parts of its weight since the round before
  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

enum class CommitRule : uint8_t {
  agreed = 0,      // all members that decide apply a chunk, or none
  per_result = 1,  // on receipt, without a verdict: a dying owner may leave a chunk applied by some only
};

struct RoundRequest {
  GroupId id;
  uint32_t self = 0;                   // own rank
  std::vector<RoundMember> members;    // by rank; 2 … round_members_max
  std::vector<uint32_t> chunk_counts;  // by rank: chunks that each owns, contiguous in rank order
  ChunkTable table;
  ElasticTimes times;
  Nanos contribute_timeout = 0, round_timeout = 0;  // of this group
  CommitRule commit = CommitRule::agreed;
  WireCodec contribute_codec, result_codec;  // default: plain fp32. The members must not differ in them
  bool line_complete = false;                // every layout member of the line is in the group
  // The member's working vector, table.elements() long, and a state per chunk; empty for a reducer. Both are read until the
  // round has ended, so nobody else may change them, and written only by what is applied, at its end.
  std::span<float> x;
  std::span<ChunkState> states;
};

class RoundPort {
 public:
  virtual ~RoundPort() = default;
  // Queues the message; in order per member, lost only with the link. Must not call the round back. bulk: it carries elements.
  virtual void send(uint32_t rank, SharedBuffer message, bool bulk) = 0;
  // Whether contributions may be sent now. After a `false` the round hears of it by room().
  virtual bool room(uint32_t rank) const = 0;
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
  ~MoshpitRound();

  // Once, when the descriptor was taken; all time-outs count from here.
  void start(Nanos now);
  // A message of the group from a member, after start(). What no member would send is counted, in report().ignored.
  void message(uint32_t rank, const SharedBuffer& bytes, Nanos now);
  void member_gone(uint32_t rank, MemberLoss why, Nanos now);
  // There is room again for bulk to this member.
  void room(uint32_t rank, Nanos now);
  // This process leaves: says so to the group and ends at once, changing nothing.
  void abandon(Nanos now);
  void woke(Nanos now);
  // When woke() must be called; after the end when over() becomes true.
  Nanos next_deadline() const;

  // The verdict is applied, or the round was given up; x and states are the caller's again, and report() is complete. What is left
  // answers others: messages go in as before until it is over(), a round_timeout later.
  bool ended() const;
  bool over(Nanos now) const;
  const RoundReport& report() const;
  // After the end: others can no longer fetch results from here. Call it when the next verdict is applied.
  void release_results();
  // Bytes of contributions and results that are held now.
  size_t held_bytes() const;

 private:
  class Machine;
  explicit MoshpitRound(std::unique_ptr<Machine> machine);
  std::unique_ptr<Machine> machine_;
};

}  // namespace unisono

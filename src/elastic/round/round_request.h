// What a round of averaging is asked for: the group as its descriptor says, and one member's values in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "codecs/codec.h"
#include "elastic/round/chunk_values.h"
#include "elastic/wire/elastic_message.h"
#include "elastic/wire/elastic_times.h"
#include "unisono/status.h"

namespace unisono {

struct RoundMember {
  uint32_t position = 0;  // coordinate on the axis of the round
  ElasticRole role = ElasticRole::peer;
  bool in_layout = false;  // a layout member of the line
  friend bool operator==(const RoundMember&, const RoundMember&) = default;
};

// Of one chunk at one peer; carried over the rounds of an averaging step. At its start: the peer's own weight (0: it takes the
// mean and gives nothing), full, one sharer. A new layout inside an averaging step clears full.
struct ChunkState {
  double weight = 1;
  bool full = true;      // committed in every earlier round of the averaging step, lacking no peer's value
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
  // The member's values, cut by this table, and a state per chunk; none for a reducer. Both are read until the round has ended,
  // so nobody else may change them, and written only by what is applied, at its end.
  ChunkValues* values = nullptr;
  std::span<ChunkState> states;
};

// invalid, naming the numbers: what the descriptor says does not fit together, or does not fit the vector.
Status check(const RoundRequest& request);

}  // namespace unisono

// The input of a round of averaging: the group from its descriptor, and this member's values.
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
  uint32_t position = 0;  // coordinate on the round's axis
  ElasticRole role = ElasticRole::peer;
  bool in_layout = false;  // a layout member of the line
  friend bool operator==(const RoundMember&, const RoundMember&) = default;
};

// State of one chunk at one peer, kept over the rounds of an averaging step. It begins with the peer's own weight (0: it takes
// the mean and gives nothing), full, and one sharer. A new layout within an averaging step clears full.
struct ChunkState {
  double weight = 1;
  bool full = true;      // committed in every earlier round of the averaging step, with every peer's values
  uint32_t sharers = 1;  // members of the cell that hold equal parts of its weight since the previous round
  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

enum class CommitRule : uint8_t {
  agreed = 0,      // all deciding members apply a chunk, or none does
  per_result = 1,  // on receipt, without a verdict: if an owner dies, only some members may have applied a chunk
};

struct RoundRequest {
  GroupId id;
  uint32_t self = 0;                   // own rank
  std::vector<RoundMember> members;    // by rank; 2 … round_members_max
  std::vector<uint32_t> chunk_counts;  // by rank: number of chunks owned; contiguous in rank order
  ChunkTable table;
  ElasticTimes times;
  Nanos contribute_timeout = 0, round_timeout = 0;  // of this group
  CommitRule commit = CommitRule::agreed;
  WireCodec contribute_codec, result_codec;  // default: plain fp32. Equal at all members
  bool line_complete = false;                // every layout member of the line is in the group
  // The member's values, cut by this table, and one state per chunk; none for a reducer. The round reads both until it has
  // ended, so they must not change. It writes them only at its end, for the chunks that it applies.
  ChunkValues* values = nullptr;
  std::span<ChunkState> states;
};

// Error: invalid, naming the numbers, if the descriptor contradicts itself or does not fit the vector.
Status check(const RoundRequest& request);

}  // namespace unisono

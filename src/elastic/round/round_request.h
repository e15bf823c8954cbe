// The input of a round of averaging: the group, as its descriptor describes it, and this member's values.
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
  bool in_layout = false;  // true: the layout puts the member on this line
  friend bool operator==(const RoundMember&, const RoundMember&) = default;
};

// The state of one chunk at one peer during an averaging step. A step begins with the peer's weight, full = true and one
// sharer. If the weight is 0, the peer takes the mean, but its values do not count. If the layout changes during the step,
// `full` becomes false.
struct ChunkState {
  double weight = 1;
  // True: in each earlier round of the averaging step, the chunk was committed, and all peers' values were in the mean.
  bool full = true;
  // So many members of the peer's cell share the cell's weight since the previous round.
  uint32_t sharers = 1;
  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

enum class CommitRule : uint8_t {
  // Either all members that decide apply a chunk, or none of them does.
  agreed = 0,
  // There is no verdict: each member applies the results that it holds. If an owner dies, some members may apply its chunks
  // while others do not.
  per_result = 1,
};

struct RoundRequest {
  GroupId id;
  uint32_t self = 0;                 // this member's rank
  std::vector<RoundMember> members;  // ordered by rank; 2 … round_members_max
  // By rank: how many chunks the member owns. The members own consecutive ranges of chunks, in rank order.
  std::vector<uint32_t> chunk_counts;
  ChunkTable table;
  ElasticTimes times;
  Nanos contribute_timeout = 0, round_timeout = 0;  // the timeouts of this group
  CommitRule commit = CommitRule::agreed;
  WireCodec contribute_codec, result_codec;  // must be equal at all members; by default, fp32 is sent as it is
  bool line_complete = false;                // true: all peers that the layout puts on the line are in the group
  // This member's values, cut according to `table`, and one state per chunk. A reducer has null and no states. The caller must
  // not change them until the round has ended. When it ends, the round itself writes the chunks that it applies.
  ChunkValues* values = nullptr;
  std::span<ChunkState> states;
};

// Returns ok, or the error invalid with the numbers in the text if the descriptor contradicts itself or does not fit the
// vector.
Status check(const RoundRequest& request);

}  // namespace unisono

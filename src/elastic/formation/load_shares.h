// Computes how many chunks each member of a group adds up, such that the slowest link finishes as early as possible.
//
// With n contributors and a vector of V bytes, a contributor with share w sends and receives V·(1 + (n-2)·w) bytes; a reducer
// sends and receives V·n·w bytes. The shares minimise the largest traffic / bandwidth. They are the optimum of a linear
// program, in closed form. It was derived for Unisono, after hivemind's load balancing. A pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/wire/elastic_message.h"
#include "unisono/status.h"

namespace unisono {

struct ShareMember {
  ElasticRole role = ElasticRole::peer;
  // In any unit that is the same for all members. A value below 0, or one that is not finite, means that the bandwidth is
  // unknown. The mean of the known bandwidths above 0 is used instead.
  double bandwidth = -1;
};

struct ShareRequest {
  std::vector<ShareMember> members;  // by rank
  uint32_t chunk_count = 0;
  // If a member's share would be smaller than this number of chunks, the member gets no chunks. If all shares are smaller, this
  // limit is ignored.
  uint32_t min_chunks = 0;
};

// Returns how many chunks each member owns, ordered by rank. The sum is chunk_count. Clients and members with bandwidth 0 own
// no chunks. Returns the error unavailable ("NO_REDUCER …") if no member can own chunks.
Result<std::vector<uint32_t>> load_shares(const ShareRequest& request);

}  // namespace unisono

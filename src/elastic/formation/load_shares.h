// How many chunks of the vector each member of a group adds up, so that the most loaded link is as fast as possible.
//
// With n contributors and a vector of V bytes, a contributor that owns a share w sends and receives V·(1 + (n-2)·w) bytes; a
// reducer V·n·w. The largest traffic/bandwidth is minimised, by the linear program's optimum in closed form. Unisono's own
// derivation, after hivemind's load balancing. A pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/wire/elastic_message.h"
#include "unisono/status.h"

namespace unisono {

struct ShareMember {
  ElasticRole role = ElasticRole::peer;
  // One unit for all members; below 0 or not finite: unknown, taken as the mean of the known ones above 0.
  double bandwidth = -1;
};

struct ShareRequest {
  std::vector<ShareMember> members;  // by rank
  uint32_t chunk_count = 0;
  uint32_t min_chunks = 0;  // a member whose share would be smaller owns none, unless no member would reach it
};

// Chunks owned, by rank; the sum is chunk_count. Clients and members with bandwidth 0 own none. Error: unavailable ("NO_REDUCER
// …") if no other member is there.
Result<std::vector<uint32_t>> load_shares(const ShareRequest& request);

}  // namespace unisono

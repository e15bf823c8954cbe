// Who adds up how many chunks of a group's vector: shares that make the most loaded link as fast as it can be.
//
// Of n contributors, the one that owns a share w moves V·(1 + (n-2)·w) each way, a reducer V·n·w; the largest traffic/bandwidth
// is minimised. The optimum of that linear program in closed form: its own derivation, after the balancing of hivemind. A pure
// function.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/wire/elastic_message.h"
#include "unisono/status.h"

namespace unisono {

struct ShareMember {
  ElasticRole role = ElasticRole::peer;
  double bandwidth = -1;  // any unit, the same for all; below 0 or not a finite number: unknown, taken for the mean of those
                          // known to be above 0
};

struct ShareRequest {
  std::vector<ShareMember> members;  // by rank
  uint32_t chunk_count = 0;
  uint32_t min_chunks = 0;  // whoever would own fewer owns none, unless nobody would own so many
};

// By rank: how many chunks each owns; the sum is chunk_count. Clients and who has no bandwidth (0) own nothing.
// unavailable, "NO_REDUCER …", if nobody else is there.
Result<std::vector<uint32_t>> load_shares(const ShareRequest& request);

}  // namespace unisono

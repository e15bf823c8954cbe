// Proves that the schedules of all ranks together do what the collective promises. Pure and symbolic: the value of a chunk at
// a rank is the set of ranks whose contributions it holds; no tensor, no transport, no order of arrival.
//
// The model is the executor's: chunks do not wait for each other; for one chunk at one rank the steps of one round are a stage,
// its sends first (with the value from before), then its receives; a message is matched by (round, chunk, sender). A receive
// waits for a send of the same round, which waits only for stages of earlier rounds, so rounds can be replayed one after
// another, and if every receive has its send then no order of events can dead-lock.
#pragma once

#include <cstdint>
#include <span>

#include "schedules/schedule.h"

namespace unisono {

inline constexpr uint32_t checker_world_max = 2'048;  // its tables grow with world squared

struct CheckRequest {
  Collective collective = Collective::all_reduce;
  Rank root = 0;                        // of broadcast, reduce, gather, scatter
  std::span<const Schedule> schedules;  // schedules[r] is rank r's; at least one
};

// Properties of the schedules beyond their promises. The checker compares direct and every_rank_completes with the schedules'
// own claims.
struct Proof {
  uint32_t rounds = 0;
  uint64_t messages = 0;  // one per chunk of each send
  // Each reduced message is one rank's own contribution, and all of them for one chunk meet at a rank in one round, so that
  // the rank can add them in any order it likes.
  bool direct = true;
  // Some chunk is completed at several ranks, each from the same contributions in one round.
  bool every_rank_completes = false;
  // Wherever a receive overwrites a chunk that the rank sent in an earlier round, the incoming value is a consequence of that
  // send having been received: memory that a transport still sends from is never written.
  bool overwrite_safe = true;
  // No stage both sends and receives the same chunk; where one does (one_shot), the sends must be waited for or copied.
  bool same_round_safe = true;
};

// Errors (code internal, because schedules are made here and nowhere else; the message names schedule, world, rank, round and
// chunk): steps out of range or order; a send without its one receive, or the reverse; a send of nothing; a contribution
// added twice or discarded; a finished chunk overwritten; a copy of what the rank had already; a rank without
// its result; a chunk completed at several ranks in different ways; wrong claims. Code unsupported: world above the limit.
Result<Proof> check_schedules(const CheckRequest& request);

}  // namespace unisono

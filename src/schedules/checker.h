// Proves that the schedules of all ranks together compute what the collective promises. The proof is symbolic: the value that a
// rank holds of a chunk is represented by the set of ranks whose contributions are in it. Tensors, transports and the order of
// arrival do not matter.
//
// The model is that of the executor. Chunks do not wait for each other. For one chunk at one rank, the steps of one round form
// a stage: first the rank sends the value that it had before the round, then it receives. A message is matched by round, chunk
// and sender.
//
// A receive waits only for a send of the same round, and a send waits only for earlier stages. So the checker can replay the
// schedules round by round. If every receive has a send, no order of events can cause a deadlock.
#pragma once

#include <cstdint>
#include <span>

#include "schedules/schedule.h"

namespace unisono {

inline constexpr uint32_t checker_world_max = 2'048;  // the checker's tables grow with the square of the world size

struct CheckRequest {
  Collective collective = Collective::all_reduce;
  Rank root = 0;                        // used by broadcast, reduce, gather, scatter
  std::span<const Schedule> schedules;  // schedules[r] is the schedule of rank r; at least one
};

// The properties of the schedules that the checker found. A schedule itself makes claims about `direct` and
// `every_rank_completes`. They must be equal to the members here.
struct Proof {
  uint32_t rounds = 0;
  uint64_t messages = 0;  // a send of several chunks counts as one message per chunk
  // Each message that is added is the sender's own contribution. All messages for a chunk reach a rank in the same round, so
  // the rank may add them in any order.
  bool direct = true;
  // Several ranks complete the same chunk. Each of them does this in the same round and from the same contributions.
  bool every_rank_completes = false;
  // If a rank has sent a chunk, a receive in a later round overwrites the chunk only after the send is complete. So no receive
  // changes memory that a transport still reads.
  bool overwrite_safe = true;
  // No stage sends and receives the same chunk. If a stage does (as in one_shot), its sends must be complete, or their payloads
  // copied, before the rank receives.
  bool same_round_safe = true;
};

// Fails with Code::internal if the schedules are wrong, because all schedules are made by this library. Fails with
// Code::unsupported if the world is too large. The message contains schedule, world, rank, round and chunk.
//
// These are errors:
// - a step that is out of range or out of order
// - a send without exactly one receive, or a receive without a send
// - a send of an empty value, or a copy of a value that the rank already has
// - a contribution that is added twice or discarded
// - a finished chunk that is overwritten
// - a rank that lacks its result
// - ranks that complete a chunk in different ways
// - a false claim about `direct` or `every_rank_completes`
Result<Proof> check_schedules(const CheckRequest& request);

}  // namespace unisono

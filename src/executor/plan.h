// A schedule that is compiled for one rank: for each chunk, it has a chain of stages. A plan does not depend on the size of the
// tensor, so all operations with the schedule share it.
//
// A stage is the part of one round that concerns one chunk. It first sends the value that the chunk had before the round, then
// receives. The received values and this rank's value are combined in ascending order of ranks. The stages of a chunk run in
// order; chunks do not wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/request.h"
#include "schedules/schedule.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// The content of the messages of a round: contributions, sums of host groups, or final values.
enum class MessageStep : uint8_t { reduce, across, gather };

struct Stage {
  uint32_t round = 0;
  uint32_t send_begin = 0, send_end = 0;  // range in Plan::peers
  uint32_t recv_begin = 0, recv_end = 0;  // range in Plan::peers, in ascending order of ranks
  uint32_t recv_before = 0;               // how often this chunk is received in earlier stages
  bool reduces = false;  // true: received values are added. false: the stage receives one value, which replaces the old one.
  // For relayed plans: the number of blocks that each message has, and the index of the first block that is received.
  uint32_t blocks = 1, position = 0;
};

struct ChunkPlan {
  uint32_t chunk = 0;
  uint32_t stage_begin = 0, stage_end = 0;  // range in Plan::stages
  uint32_t recv_count = 0;
  uint32_t send_count = 0;
  // true: the last value that this rank receives for the chunk is added. If this rank wants the chunk, the sum is then
  // complete.
  bool ends_with_reduce = false;
};

struct Plan {
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t chunk_count = 0;
  // The first rounds in which messages have MessageStep::across and MessageStep::gather. UINT32_MAX: there is no such round.
  uint32_t across_round = UINT32_MAX, gather_round = UINT32_MAX;
  std::vector<uint32_t> shares{};  // the sizes of the chunks in relation to each other; empty: all sizes are equal
  bool direct = false;
  bool fitted = false;  // true: the schedule is adapted to links of different speed
  // true: the value of a lane holds one block per rank, and the blocks are added at the end (schedules/relay.h)
  bool relayed = false;
  // The index in `chunks` of the confirmation (executor/confirmation.h); -1: there is none.
  int32_t confirmation = -1;
  int32_t last_confirmation = -1;  // the same for the root's answer, which the root sends when it has heard all other ranks
  uint32_t only_confirming = 0;    // number of partners with which this rank exchanges nothing but the confirmation
  std::vector<ChunkPlan> chunks;   // the chunks that this rank sends or receives, in ascending order of their numbers
  std::vector<uint32_t> order;     // indices into `chunks`, in the order in which the schedule starts them
  std::vector<Stage> stages;
  std::vector<Rank> peers;
  std::vector<Rank> partners;  // the ranks to which this rank sends or from which it receives, in ascending order

  std::span<const Rank> sends(const Stage& s) const { return {peers.data() + s.send_begin, s.send_end - s.send_begin}; }
  std::span<const Rank> receives(const Stage& s) const { return {peers.data() + s.recv_begin, s.recv_end - s.recv_begin}; }
  Partition partition(size_t unit_elements = 0) const {
    return {.chunks = chunk_count, .shares = shares, .unit_elements = unit_elements};
  }
  // `chunk`: an index into `chunks`. answers_all(): the chunk is the root's answer, which must not begin with the other chunks.
  bool is_confirmation(uint32_t chunk) const { return static_cast<int64_t>(chunk) == confirmation || is_last(chunk); }
  bool is_last(uint32_t chunk) const { return static_cast<int64_t>(chunk) == last_confirmation; }
  bool answers_all(uint32_t chunk) const { return is_last(chunk) && chunks[chunk].send_count > 0; }
  bool has_gather() const { return gather_round != UINT32_MAX; }
  MessageStep step_of(uint32_t round) const {
    return round >= gather_round ? MessageStep::gather : round >= across_round ? MessageStep::across : MessageStep::reduce;
  }
  // Returns the index of the chunk in `chunks`. Returns -1 if the chunk is not there.
  int64_t find(uint32_t chunk) const;
};

// Fails with Code::internal if one round both adds and copies the same chunk, or if the schedule contains a rank >= world.
Result<Plan> compile(const Schedule& schedule, Rank self, uint32_t world);
// Returns the plan of a one-shot all-reduce in which ranks pass on the values of other ranks (schedules/relay.h).
Plan relayed_plan(Rank self, uint32_t world);

}  // namespace unisono

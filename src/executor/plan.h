// A schedule compiled for one rank: a chain of stages per chunk. It does not depend on the tensor's size; all operations that
// use the schedule share it.
//
// A stage is the part of one round that concerns one chunk. It sends first (the value from before the round), then receives.
// All received values are combined in ascending rank order, with this rank's own value at its position. A chunk's stages run in
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

// Content of a round's messages: contributions, sums of host groups, or final values.
enum class MessageStep : uint8_t { reduce, across, gather };

struct Stage {
  uint32_t round = 0;
  uint32_t send_begin = 0, send_end = 0;  // in Plan::peers
  uint32_t recv_begin = 0, recv_end = 0;  // in Plan::peers, ascending
  uint32_t recv_before = 0;               // receives of this chunk in earlier stages
  bool reduces = false;               // true: received values are added. false: the single received value replaces the old one
  uint32_t blocks = 1, position = 0;  // of a relayed plan: number of blocks sent and received, and their position
};

struct ChunkPlan {
  uint32_t chunk = 0;
  uint32_t stage_begin = 0, stage_end = 0;  // in Plan::stages
  uint32_t recv_count = 0;
  uint32_t send_count = 0;
  bool ends_with_reduce = false;  // the last receive adds; if this rank wants the chunk, that receive completes it
};

struct Plan {
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t chunk_count = 0;
  uint32_t across_round = UINT32_MAX, gather_round = UINT32_MAX;  // as in the schedule
  std::vector<uint32_t> shares{};                                 // of the chunks in the tensor; empty: equal
  bool direct = false;
  bool fitted = false;            // to links of different speed
  bool relayed = false;           // schedules/relay.h: a lane's value has a block per rank, which are added at the end
  std::vector<ChunkPlan> chunks;  // only those that this rank sends or receives, ascending by number
  std::vector<uint32_t> order;    // indices into chunks, in the schedule's start order
  std::vector<Stage> stages;
  std::vector<Rank> peers;
  std::vector<Rank> partners;  // every rank this one sends to or receives from, ascending

  std::span<const Rank> sends(const Stage& s) const { return {peers.data() + s.send_begin, s.send_end - s.send_begin}; }
  std::span<const Rank> receives(const Stage& s) const { return {peers.data() + s.recv_begin, s.recv_end - s.recv_begin}; }
  Partition partition(size_t unit_elements = 0) const {
    return {.chunks = chunk_count, .shares = shares, .unit_elements = unit_elements};
  }
  bool has_gather() const { return gather_round != UINT32_MAX; }
  MessageStep step_of(uint32_t round) const {
    return round >= gather_round ? MessageStep::gather : round >= across_round ? MessageStep::across : MessageStep::reduce;
  }
  // Index into chunks, or -1.
  int64_t find(uint32_t chunk) const;
};

// Fails with internal if the schedule mixes adding and copying of one chunk in one round, or names ranks >= world.
Result<Plan> compile(const Schedule& schedule, Rank self, uint32_t world);
// The plan of a one-shot all-reduce whose ranks pass values on (schedules/relay.h).
Plan relayed_plan(Rank self, uint32_t world);

}  // namespace unisono

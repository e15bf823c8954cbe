// A schedule compiled for one rank: per chunk a chain of stages. Independent of the tensor's size; made once, shared by
// all operations that use the schedule.
//
// A stage is what happens to one chunk in one round: first its sends (the value from before the round), then all its receives,
// which are combined in ascending rank order with this rank's own value at its place. A chunk's stages run in order; chunks do
// not wait for each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/request.h"
#include "schedules/schedule.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// What a round's messages carry: contributions, sums of host groups, or what is final.
enum class MessageStep : uint8_t { reduce, across, gather };

struct Stage {
  uint32_t round = 0;
  uint32_t send_begin = 0, send_end = 0;  // in Plan::peers
  uint32_t recv_begin = 0, recv_end = 0;  // in Plan::peers, ascending
  uint32_t recv_before = 0;               // receives of this chunk in earlier stages
  bool reduces = false;                   // receives are added; otherwise there is one and it replaces the value
  uint32_t blocks = 1, position = 0;      // of a relayed plan: what is sent, and as much comes, and where that goes
};

struct ChunkPlan {
  uint32_t chunk = 0;
  uint32_t stage_begin = 0, stage_end = 0;  // in Plan::stages
  uint32_t recv_count = 0;
  uint32_t send_count = 0;
  bool ends_with_reduce = false;  // the last receive adds: if the chunk is wanted here, that receive completes it
};

struct Plan {
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t chunk_count = 0;
  uint32_t across_round = UINT32_MAX, gather_round = UINT32_MAX;  // as the schedule's
  std::vector<uint32_t> shares{};                                 // of the chunks in the tensor; empty: equal
  bool direct = false;
  bool fitted = false;            // to uneven links
  bool relayed = false;           // schedules/relay.h: a lane's value has a block per rank, which are added at the end
  std::vector<ChunkPlan> chunks;  // only those this rank touches, ascending by number
  std::vector<uint32_t> order;    // indices into chunks: the order in which to start them, as the schedule gives it
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
// Of a one-shot all-reduce whose values are passed on.
Plan relayed_plan(Rank self, uint32_t world);

}  // namespace unisono

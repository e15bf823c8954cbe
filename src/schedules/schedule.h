// A collective as data: what one rank sends, receives and adds, in terms of chunks. Pure functions of (world, rank, …).
//
// A chunk is the unit of a schedule: the tensor (or the set of per-rank blocks) is cut into chunk_count pieces whose sizes the
// executor decides. A round is a dependency level: for one chunk at one rank, the steps of round k happen after all its steps
// of round k-1; inside a round, sends before receives (a send carries the value from before the round's receives).
// Different chunks do not wait for each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unisono/options.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

enum class Op : uint8_t { send, recv_reduce, recv_copy };

struct ChunkRange {
  uint32_t begin = 0;
  uint32_t end = 0;  // one past the last
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

struct Step {
  uint32_t round = 0;
  Op op = Op::send;
  Rank peer = 0;
  ChunkRange chunks;
  friend bool operator==(const Step&, const Step&) = default;
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::two_step;
  uint32_t chunk_count = 0;
  // Every reduced message carries exactly one rank's own contribution. Only then is the order of additions free, so only then
  // can sums be made in rank order and 16-bit values travel as they are.
  bool direct = false;
  // Every rank completes the chunk itself, from the same contributions in the same order (one_shot): the exception to
  // "one completing rank" that the checker knows.
  bool every_rank_completes = false;
  // Rounds from which on messages carry sums of host groups (hierarchical only), and results or what is only moved: a codec may
  // be another then.
  uint32_t across_round = UINT32_MAX, gather_round = UINT32_MAX;
  std::vector<Step> steps;  // ordered by round
};

const char* name(Collective collective);
const char* name(ScheduleKind kind);

}  // namespace unisono

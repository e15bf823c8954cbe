// A collective as data: the chunks that one rank sends, receives and adds.
//
// A chunk is the unit of a schedule. The tensor, or the set of blocks, is divided into chunk_count pieces; the executor decides
// their sizes. Different chunks do not wait for each other.
//
// A round is a dependency level. For one chunk at one rank, the steps of round k follow all steps of round k-1. Within a round,
// sends come before receives, so a send carries the value from before the round.
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
  uint32_t end = 0;  // one past the last chunk
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
  // True if every message that is added carries exactly one contribution, which is the sender's own. Only then can the order of
  // additions be chosen freely, for example rank order, and only then can 16-bit values be sent without widening.
  bool direct = false;
  // True if every rank completes each chunk itself, from the same contributions in the same order (one_shot). If false, the
  // checker requires that exactly one rank completes each chunk.
  bool every_rank_completes = false;
  // The rounds belong to up to three steps, which may use different codecs. Before across_round, messages carry contributions.
  // From across_round on, they carry sums of host groups (only in hierarchical). From gather_round on, they carry results, or
  // values that are only moved.
  uint32_t across_round = UINT32_MAX, gather_round = UINT32_MAX;
  std::vector<Step> steps;  // ordered by round
};

const char* name(Collective collective);
const char* name(ScheduleKind kind);

}  // namespace unisono

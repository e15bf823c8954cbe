// The plan of `unisono bench`: the collective, the sizes, and the arithmetic of the columns. Pure.
//
// Sizes follow nccl-tests: for all-gather and gather the total output, for reduce-scatter and scatter the total input, for
// all-to-all all blocks of one rank, else the tensor of one rank. Bus bandwidth = size / time * factor, where the factor is
// what each link must carry at least (nccl-tests doc/PERFORMANCE.md), so that it compares across world sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/options.h"
#include "unisono/status.h"
#include "unisono/tensor.h"

namespace unisono::cli {

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send_recv,
  barrier
};

struct CollectiveFacts {
  Collective collective;
  std::string_view name;  // "all_reduce"
  bool reduces;           // an operation matters
  bool has_root;
  bool per_rank_blocks;  // size = blocks of all ranks
  bool in_place;         // the API offers it
  bool out_of_place;
};

const CollectiveFacts& facts_of(Collective collective);
// "all-reduce" and "all_reduce"; invalid names the nearest.
Result<Collective> parse_collective(std::string_view text);
Result<DType> parse_dtype(std::string_view text);  // "f32", "float32", "float", "half", …
Result<ReduceOp> parse_reduce_op(std::string_view text);
Result<ScheduleKind> parse_schedule(std::string_view text);
Result<Order> parse_order(std::string_view text);  // auto, strict, any

// The words that these take, without other spellings of the same.
std::vector<std::string> collective_names();  // "all-reduce"
std::vector<std::string> dtype_names();
std::vector<std::string> reduce_op_names();
std::vector<std::string> schedule_names();
std::vector<std::string> order_names();

double bus_factor(Collective collective, uint32_t world_size);

struct SizeRange {
  std::string begin = "1K";
  std::string end = "64M";
  uint64_t factor = 4;
  std::string step = "";  // bytes to add instead; empty: multiply
  std::string list = "";  // "1K,64K,1M" instead of a range
};
// At least one size, at most 4096, in the order given.
Result<std::vector<uint64_t>> parse_sizes(const SizeRange& range);

// How many elements: of one rank's block or tensor, and the bytes that the row is about.
struct Extent {
  size_t block_count = 0;   // elements of one block (per_rank_blocks) or of the tensor
  size_t tensor_count = 0;  // elements of the largest buffer of one rank
  uint64_t bytes = 0;       // the size column
};
Extent extent_of(Collective collective, uint64_t bytes, DType dtype, uint32_t world_size);

struct Timing {
  double mean_us = 0;
  double p25_us = 0;
  double p50_us = 0;
  double p75_us = 0;
  double p99_us = 0;
  double min_us = 0;
  double max_us = 0;
};
// Summarises the durations of all iterations, in microseconds, and sorts them. Percentiles are nearest-rank. All fields are
// zero if there are no durations.
Timing summarise(std::vector<double>& durations_us);

}  // namespace unisono::cli

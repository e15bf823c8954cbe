// The plan of `unisono bench`: the collective, the sizes, and how the columns of the table are computed. All functions are
// pure.
//
// What the size of a row means is defined as in nccl-tests:
// - all-gather, gather: the total output
// - reduce-scatter, scatter: the total input
// - all-to-all: the blocks of one rank together
// - other collectives: the tensor of one rank
//
// Bus bandwidth = size / time * factor. Each link must carry at least size * factor bytes (nccl-tests doc/PERFORMANCE.md). This
// is why bus bandwidths of groups with different numbers of ranks can be compared.
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
  std::string_view name;  // the name, written with underscores: "all_reduce"
  bool reduces;           // whether the collective takes a reduction operation
  bool has_root;
  bool per_rank_blocks;  // whether the size covers the blocks of all ranks together
  bool in_place;         // whether the API can run the collective in place
  bool out_of_place;
};

const CollectiveFacts& facts_of(Collective collective);
// Accepts "all-reduce" and "all_reduce". If the result is Code::invalid, the message suggests the most similar name.
Result<Collective> parse_collective(std::string_view text);
Result<DType> parse_dtype(std::string_view text);  // accepts "f32", "float32", "float", "half", …
Result<ReduceOp> parse_reduce_op(std::string_view text);
Result<ScheduleKind> parse_schedule(std::string_view text);
Result<Order> parse_order(std::string_view text);  // accepts "auto", "strict", "any"

// Return the words that the parsers above accept. There is one word for each value.
std::vector<std::string> collective_names();  // these names have dashes: "all-reduce"
std::vector<std::string> dtype_names();
std::vector<std::string> reduce_op_names();
std::vector<std::string> schedule_names();
std::vector<std::string> order_names();

double bus_factor(Collective collective, uint32_t world_size);

struct SizeRange {
  std::string begin = "1K";
  std::string end = "64M";
  uint64_t factor = 4;
  std::string step = "";  // each size is this many bytes larger than the one before; empty: `factor` times as large
  std::string list = "";  // if not empty, a list of sizes such as "1K,64K,1M", used instead of the range
};
// Returns at least 1 and at most 4096 sizes, in the given order.
Result<std::vector<uint64_t>> parse_sizes(const SizeRange& range);

// How many elements and bytes one row of the table is about.
struct Extent {
  // If the collective has per_rank_blocks, the number of elements in one block. Otherwise, the number of elements in the
  // tensor.
  size_t block_count = 0;
  size_t tensor_count = 0;  // number of elements in the largest buffer of one rank
  uint64_t bytes = 0;       // the value that the column "size" shows
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
// Sorts the durations of all iterations, which are in microseconds, and computes statistics of them. A percentile is computed
// by the nearest-rank method. If there are no durations, all fields are zero.
Timing summarise(std::vector<double>& durations_us);

}  // namespace unisono::cli

// Measures one row of `unisono bench` on one rank. It uses only the public API.
//
// Every rank runs the same sequence of operations. Ranks differ only in what they print. If the number of iterations depends on
// time, rank 0 decides how many there are, and broadcasts the number.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "cli/bench/bench_data.h"
#include "unisono/group.h"

namespace unisono::cli {

// How the times of the ranks are combined into one; this is option -a, as in nccl-tests.
enum class Across : uint8_t { rank_0 = 0, mean = 1, min = 2, max = 3 };

struct RunOptions {
  DataPlan data;
  CallOptions call;
  uint32_t iterations = 0;  // 0: as many as fit into row_time, but at least 10 and at most 2000
  uint32_t warmup = 2;
  Nanos row_time = 500 * millisecond;
  uint32_t checks = 1;  // The results of this many calls are checked. These calls come before the timed ones.
  // Runs a barrier before each timed call. Without it, a rank that ends one call late would make the next call longer.
  bool barrier = true;
  Across across = Across::mean;
  // This is called only between iterations, never while a call is being timed.
  std::function<void(uint32_t done, uint32_t total, Nanos now)> on_progress;
};

struct Measurement {
  Extent extent;
  uint32_t iterations = 0;
  Timing timing;  // Statistics over the iterations. The time of one iteration is combined from the times of all ranks.
  bool checked = false;
  uint64_t wrong = 0;  // number of wrong elements on all ranks
  // With a codec: the signal-to-noise ratio of the last checked call, over all ranks. It is infinite if the result is exact.
  double snr_db = 0;
  double exact_us = 0;  // With a codec: the median time of the same call without a codec, measured just before. Otherwise 0.
  uint64_t wire_bytes = 0;  // The mean number of bytes that a rank sent in the last timed call, including headers.
  // Number of ranks whose data is in the result of the last timed call. If the ranks report different numbers, this is the
  // smallest.
  uint32_t contributors = 0;
  // With lossy delivery: the share of contributions that did not arrive, over all ranks and all timed calls.
  double missing = 0;
  Report report;  // the report of the last timed call on this rank
};

// Measures one row. Returns the status of the first operation that fails. With a codec, it first measures the same call without
// a codec, so that the two can be compared.
Result<Measurement> measure(Group& group, const RunOptions& options, uint64_t bytes, bool in_place);

}  // namespace unisono::cli

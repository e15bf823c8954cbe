// The measurement itself: one rank's part, against the public API only.
//
// Every rank runs the same sequence of operations; what differs between ranks is only what they print. Iteration counts that
// depend on time are decided by rank 0 and broadcast.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "cli/bench/bench_data.h"
#include "unisono/group.h"

namespace unisono::cli {

enum class Across : uint8_t { rank_0 = 0, mean = 1, min = 2, max = 3 };  // nccl-tests -a

struct RunOptions {
  DataPlan data;
  CallOptions call;
  uint32_t iterations = 0;  // 0: as many as fit in row_time, within bounds
  uint32_t warmup = 2;
  Nanos row_time = 500 * millisecond;
  uint32_t checks = 1;  // calls whose results are compared with the reference, before the timed ones
  bool barrier = true;  // before each timed call, so that lateness of the call before does not count
  Across across = Across::mean;
  // Told between iterations, at most; never while the clock runs.
  std::function<void(uint32_t done, uint32_t total, Nanos now)> on_progress;
};

struct Measurement {
  Extent extent;
  uint32_t iterations = 0;
  Timing timing;  // over iterations, of the value across ranks
  bool checked = false;
  uint64_t wrong = 0;         // elements, of all ranks
  double snr_db = 0;          // where elements are encoded: of the last checked result, of all ranks; infinite: nothing is lost
  double exact_us = 0;        // likewise: median of the same call without codec, timed right before; 0: not measured
  uint64_t wire_bytes = 0;    // that a rank sent in the last timed call, headers included; mean over ranks
  uint32_t contributors = 0;  // ranks whose data is in that call's result: the least that any rank reports
  double missing = 0;         // where delivery is not reliable: share of all contributions to the timed calls, at all ranks
  Report report;              // of this rank's last timed call
};

// Fails with the status of the first operation that fails. With a codec the same is measured before without, for comparison.
Result<Measurement> measure(Group& group, const RunOptions& options, uint64_t bytes, bool in_place);

}  // namespace unisono::cli

// Traces of computing times for tests.
#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "training/drop_compute/compute_trace.h"

namespace unisono {

// Makes a trace from latencies [step][worker][micro-batch], given in units of `unit` ns. A step lasts other_ns longer than its
// computing.
inline ComputeTrace trace_of(const std::vector<std::vector<std::vector<int64_t>>>& latencies, int64_t unit, int64_t other_ns) {
  ComputeTrace trace{.workers = static_cast<uint32_t>(latencies[0].size()),
                     .micro_batches = static_cast<uint32_t>(latencies[0][0].size())};
  for (const auto& step : latencies) {
    for (const auto& worker : step) {
      int64_t end = 0;
      for (const int64_t latency : worker) trace.ends.push_back(end += latency * unit);
    }
    trace.walls.resize(trace.walls.size() + step.size());
    const int64_t wall = trace.compute_ns(trace.steps() - 1) + other_ns;
    std::fill(trace.walls.end() - static_cast<std::ptrdiff_t>(step.size()), trace.walls.end(), wall);
  }
  return trace;
}

// Returns the trace with its steps and workers in another order.
inline ComputeTrace reordered(const ComputeTrace& trace, const std::vector<size_t>& steps, const std::vector<size_t>& workers) {
  ComputeTrace other{.workers = trace.workers, .micro_batches = trace.micro_batches};
  for (const size_t step : steps) {
    for (const size_t worker : workers) {
      const auto ends = trace.ends_of(step, worker);
      other.ends.insert(other.ends.end(), ends.begin(), ends.end());
      other.walls.push_back(trace.walls[step * trace.workers + worker]);
    }
  }
  return other;
}

inline std::vector<size_t> shuffled(size_t count, Random& random) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = random.below(i + 1);
    order[i] = order[at];
    order[at] = i;
  }
  return order;
}

}  // namespace unisono

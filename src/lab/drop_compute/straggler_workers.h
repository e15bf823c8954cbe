// Workers that compute micro-batches in virtual time, step after step. Each worker is stopped by the library's own controller.
//
// A worker that was stopped finishes the micro-batch that it has begun, before its next step begins to compute.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "training/drop_compute/drop_controller.h"

namespace unisono::sim {

class StragglerWorkers {
 public:
  // other_ns: the time from the stop of the last worker to the start of the next step.
  StragglerWorkers(uint32_t workers, uint32_t micro_batches, int64_t other_ns);

  // latencies: in ns, ordered by worker, then by micro-batch; micro-batches that will be dropped have entries, too. Returns
  // when the last worker stopped, in ns from the start of the step.
  int64_t step(const StopRule& rule, std::optional<int64_t> threshold_ns, std::span<const int64_t> latencies);

  // computed(): how many micro-batches the worker computed in the last step. ends(): when each of them ended, in ns from the
  // start of the step.
  uint32_t computed(size_t worker) const { return controllers_[worker].computed(); }
  std::span<const int64_t> ends(size_t worker) const { return controllers_[worker].ends(); }
  // Returns, for each worker, how long a micro-batch of an earlier step still runs in the next step, in ns.
  std::span<const int64_t> rests() const { return rests_; }

 private:
  int64_t run(size_t worker, const StopRule& rule, std::optional<int64_t> threshold_ns, std::span<const int64_t> latencies);

  const uint32_t micro_batches_;
  const int64_t other_ns_;
  int64_t now_ = 0;
  std::vector<DropController> controllers_;
  // see rests(); during a step: when the micro-batch that runs will end, in ns from the start of the step
  std::vector<int64_t> rests_;
};

}  // namespace unisono::sim

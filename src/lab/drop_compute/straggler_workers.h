// Workers that compute micro-batches in virtual time, step after step, each of them stopped by the library's own controller.
//
// Stopping a worker does not cut its running micro-batch short: the worker begins its next step when that micro-batch is over.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "training/drop_compute/drop_controller.h"

namespace unisono::sim {

class StragglerWorkers {
 public:
  // other_ns: from when the last worker has stopped until the next step begins.
  StragglerWorkers(uint32_t workers, uint32_t micro_batches, int64_t other_ns);

  // latencies: [worker][micro-batch], ns, of all micro-batches, whether they come to be computed or not. Returns when the last
  // worker stopped, ns from the step's begin.
  int64_t step(const StopRule& rule, std::optional<int64_t> threshold_ns, std::span<const int64_t> latencies);

  // Results of the last step.
  uint32_t computed(size_t worker) const { return controllers_[worker].computed(); }
  std::span<const int64_t> ends(size_t worker) const { return controllers_[worker].ends(); }
  // By worker: how long the micro-batch of an earlier step still runs when the next step begins, ns.
  std::span<const int64_t> rests() const { return rests_; }

 private:
  int64_t run(size_t worker, const StopRule& rule, std::optional<int64_t> threshold_ns, std::span<const int64_t> latencies);

  const uint32_t micro_batches_;
  const int64_t other_ns_;
  int64_t now_ = 0;
  std::vector<DropController> controllers_;
  std::vector<int64_t> rests_;  // while a step runs: when what is running ends, from the step's begin
};

}  // namespace unisono::sim

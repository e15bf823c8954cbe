#include "lab/drop_compute/straggler_workers.h"

#include <algorithm>

#include "base/check.h"

namespace unisono::sim {

StragglerWorkers::StragglerWorkers(uint32_t workers, uint32_t micro_batches, int64_t other_ns)
    : micro_batches_(micro_batches), other_ns_(other_ns), rests_(workers, 0) {
  for (uint32_t i = 0; i < workers; ++i) controllers_.emplace_back(micro_batches);
}

int64_t StragglerWorkers::step(const StopRule& rule, std::optional<int64_t> threshold_ns, std::span<const int64_t> latencies) {
  UNISONO_CHECK(latencies.size() == controllers_.size() * micro_batches_);
  int64_t compute = 0;
  for (size_t i = 0; i < controllers_.size(); ++i)
    compute = std::max(compute, run(i, rule, threshold_ns, latencies.subspan(i * micro_batches_, micro_batches_)));
  for (auto& rest : rests_) rest = std::max<int64_t>(0, rest - (compute + other_ns_));
  now_ = (now_ + compute + other_ns_) % (int64_t{1} << 61);
  return compute;
}

// Returns when this worker stopped, in ns from the start of the step. If a micro-batch ends at the same time as the timer
// fires, the worker begins its next micro-batch before the timer has an effect.
int64_t StragglerWorkers::run(size_t worker, const StopRule& rule, std::optional<int64_t> threshold_ns,
                              std::span<const int64_t> latencies) {
  auto& controller = controllers_[worker];
  // The end of the micro-batch that runs. At first this is the micro-batch that the previous step left running.
  int64_t ends = now_ + rests_[worker];
  auto verdict = controller.begin(rule, {.threshold_ns = threshold_ns, .planned = micro_batches_}, now_);
  const auto timer = controller.timer_ns();
  for (size_t next = 0; verdict == DropController::Verdict::run_next; ++next) {
    const bool rest_runs = next == 0 && timer && ends > *timer;
    if (!rest_runs) ends += latencies[next];
    if (timer && ends > *timer) {
      rests_[worker] = ends - now_;
      controller.timer(*timer);
      return *timer - now_;
    }
    verdict = controller.micro_batch_done(ends);
  }
  // Rule `before` did not begin any micro-batch, so rests_ still describes the micro-batch of an earlier step.
  if (controller.computed() == 0) return 0;
  rests_[worker] = 0;
  return controller.ends().back();
}

}  // namespace unisono::sim

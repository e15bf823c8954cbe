// Ranks with simulated clocks: each test sets the times of micro-batches, and all-reduces synchronise the clocks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "testing/group_of_threads.h"
#include "training/drop_compute/dropper.h"

namespace unisono::test {

constexpr int64_t ms = 1'000'000;

class Worker {
 public:
  using Latency = std::function<int64_t(uint32_t rank, uint64_t step, uint32_t micro_batch)>;

  Worker(Group& group, uint32_t micro_batches, Latency latency)
      : group_(&group), micro_batches_(micro_batches), latency_(std::move(latency)) {}

  Status make(const std::string& options, uint64_t shard = 0, std::vector<uint32_t> replay = {},
              const std::optional<Group>& replica = {}) {
    auto parsed = DropOptions::parse(options);
    if (!parsed.ok()) return parsed.status();
    parsed->shard = shard, parsed->replay = std::move(replay);
    auto made = internal::Dropper::make(*group_, micro_batches_, *parsed, replica, [this] { return now; });
    if (made.ok()) drop = *std::move(made);
    return made.status();
  }

  // Runs one step of plain SGD. The gradient of a micro-batch is a number that depends on the rank and the data position.
  Result<DropStep> step() {
    if (auto begun = drop->begin_step(); !begun.ok()) return begun;
    const uint64_t number = ++steps;
    std::vector<float> gradient(parameters.size());
    positions.clear();
    while (drop->next()) {
      positions.push_back(drop->position());
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] += gradient_of(group_->rank(), positions.back(), i) / static_cast<float>(micro_batches_);
      now += latency_(group_->rank(), number, static_cast<uint32_t>(positions.size()));
      if (inside && positions.size() < micro_batches_) inside();
      if (drop->should_stop() && abandons) {
        drop->abandon();
        break;
      }
    }
    // Sets the clock to that of the slowest rank, then adds the step's time outside computing.
    if (auto last = group_->all_reduce(std::span(&now, 1), {.op = ReduceOp::max}); !last.ok()) return last.status();
    now += other;
    if (auto averaged = group_->all_reduce(std::span(gradient), averaging); !averaged.ok()) return averaged.status();
    auto ended = drop->end_step();
    if (!ended.ok()) return ended;
    for (auto& warning : ended->warnings) warnings.push_back(warning);
    averages = gradient;
    for (size_t i = 0; i < gradient.size() && ended->applied; ++i) parameters[i] -= 0.1f * ended->scale * gradient[i];
    return ended;
  }
  // Runs `count` steps and returns the last one.
  DropStep run(uint64_t count) {
    DropStep last;
    for (uint64_t i = 0; i < count; ++i) {
      const auto ended = step();
      EXPECT_TRUE(ended.ok()) << ended.status().to_string();
      if (!ended.ok()) break;
      last = *ended;
    }
    return last;
  }
  static float gradient_of(uint32_t rank, uint64_t position, size_t i) {
    return 1.0f / static_cast<float>(1 + (7 * rank + 3 * position + i) % 101);
  }

  std::unique_ptr<internal::Dropper> drop;
  int64_t now = 1'000 * ms, other = ms / 2;
  uint64_t steps = 0;
  bool abandons = false;
  CallOptions averaging{.op = ReduceOp::avg};
  std::function<void()> inside;     // called in each micro-batch except the last of a step
  std::vector<uint64_t> positions;  // data positions of the last step's micro-batches
  std::vector<float> parameters = std::vector<float>(50, 1.0f), averages;
  std::vector<std::string> warnings;

 private:
  Group* group_;
  const uint32_t micro_batches_;
  const Latency latency_;
};

inline int64_t constant_latency(uint32_t, uint64_t, uint32_t) { return ms; }
// Latency of a micro-batch: on average one in forty takes ten times as long.
inline int64_t with_stalls(uint32_t rank, uint64_t step, uint32_t micro_batch) {
  return mix64(1000 * step + 20 * rank + micro_batch) % 40 == 0 ? 10 * ms : ms;
}

}  // namespace unisono::test

// A rank that trains with a sharded optimizer. It owns a part of the parameters, and has random gradients.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "group_command.h"
#include "unisono/sharded_step.h"

namespace unisono::testing {

class ShardedTraining {
 public:
  // Commands:
  // - sharded_make: makes the trainer. `options` is a text for ShardedOptions::parse(), but with "/" instead of "," and "~"
  //   instead of "=". `values` is the number of parameters.
  // - sharded_step: makes `iters` more steps, or goes on up to step number `until`. Makes fewer steps if one fails.
  // - sharded_resume: continues after the group was re-formed.
  //
  // The answers contain the step and a hash of the rank's copy of the parameters (`parameters`). sharded_step also adds up the
  // `expected` and `missing` ranges of all streams that were not cut by a deadline. begun() is called after the first one of
  // several steps.
  Answer run(Group& group, const Command& command, const std::function<void()>& begun);

 private:
  Answer make(Group& group, const Command& command);
  Answer train(uint32_t until, const std::function<void()>& begun);
  Answer state(const Status& status) const;

  std::optional<ShardedStep> step_;
  std::vector<float> gradient_;
  Random random_{0};
};

}  // namespace unisono::testing

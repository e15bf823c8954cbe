// A rank that trains with a sharded optimizer: parameters of which it owns a part, and gradients by chance.
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
  // sharded_make: `options` as ShardedOptions::parse() reads them, but for "/" instead of "," and "~" instead of "="; `values`:
  // how many parameters. sharded_step: until `iters` more steps were made, or step `until`, or one fails. sharded_resume: after
  // the group was re-formed. begun: after the first step of many. Answers tell the step and the replica (`parameters`); those
  // to sharded_step also what its steps, together, lacked: of streams that no deadline cut, what was `expected` and `missing`.
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

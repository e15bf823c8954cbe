// A rank that trains: parameters, gradients that depend on the rank and the step, and a reducer that averages them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "group_command.h"
#include "unisono/training.h"

namespace unisono::testing {

class Training {
 public:
  // train_make: makes a reducer for tensors of `columns` columns; `values` and `schedule` say how rows are sent. train: makes
  // `iters` steps, or fewer if one fails. With die= this process kills itself by SIGKILL in step number `die` of this call,
  // counted from 0, `at` thousandths of a usual step after it gave its last bucket. train_resume: resumes after the group was
  // re-formed, and takes the parameters from a rank that has them. begun: called after the first of several steps.
  Answer run(Group& group, const Command& command, const std::function<void()>& begun);

 private:
  static constexpr size_t rows = 128, tensors = 6;

  Answer make(Group& group, const Command& command);
  Answer train(Group& group, const Command& command, const std::function<void()>& begun);
  Answer resume(Group& group);
  Status reduce_all(uint64_t giver);
  Answer state() const;

  size_t columns_ = 0;
  std::optional<GradientReducer> reducer_;
  std::vector<std::string> names_;
  std::vector<float> parameters_, gradients_;  // tensor after tensor
};

}  // namespace unisono::testing

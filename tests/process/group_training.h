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
  // train_make: a reducer, of tensors with so many `columns`, whose rows travel as `values` and `schedule` say. train: `iters`
  // steps, or until one fails; with die= this process ends by SIGKILL in the step that is its die-th, when at= thousandths of
  // what a step takes have passed since its last bucket was given. train_resume: after the group was re-formed; and takes the
  // parameters from who has them. begun: after the first step of many.
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

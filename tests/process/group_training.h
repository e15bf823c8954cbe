// A rank that trains. Its gradients depend on the rank and the step, and a reducer averages them.
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
  // Commands:
  // - train_make: makes a reducer for tensors that have `columns` columns. `values` and `schedule` are the codec and the
  //   schedule of the rows.
  // - train: makes `iters` steps, or fewer if one fails. With die=, this process kills itself by SIGKILL in step number `die`
  //   of this call; the first step is number 0. In the previous step, the time from the return of the last reduce() to the end
  //   of the step is measured. The process dies `at` thousandths of that time after its last bucket.
  // - train_resume: continues after the group was re-formed, with the parameters of a rank that is up to date.
  //
  // begun() is called after the first one of several steps.
  Answer run(Group& group, const Command& command, const std::function<void()>& begun);

 private:
  static constexpr size_t rows = 128, tensors = 6;

  Answer make(Group& group, const Command& command);
  Answer train(Group& group, const Command& command, const std::function<void()>& begun);
  Answer resume(Group& group);
  Status reduce_all(uint64_t source);
  Answer state() const;

  size_t columns_ = 0;
  std::optional<GradientReducer> reducer_;
  std::vector<std::string> names_;
  std::vector<float> parameters_, gradients_;  // all tensors, one after another
};

}  // namespace unisono::testing

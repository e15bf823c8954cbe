// A rank that trains with DropCompute: micro-batches that take times by chance, counted one by one in what the ranks average.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "group_command.h"
#include "unisono/drop_compute.h"

namespace unisono::testing {

class DropTraining {
 public:
  // drop_make: `options` as for DropOptions::parse(), with "/" instead of ","; `slot`: a number below `slots` that no other
  // process of the test has; `values`: the number of averaged values; ring=1: averages in a ring. drop_train: makes `iters`
  // steps, or fewer if one fails. With die= this process kills itself by SIGKILL in step number `die`: where=compute, in its
  // micro-batch `micro`; where=reduce, in the all-reduce; after `at` thousandths of that part's time. drop_resume: resumes
  // after the group was re-formed. Answers have the step, hashes of the averages, the micro-batches of this rank in them
  // (used), and its position in its data (place). The last two are equal unless a micro-batch was lost or used twice. begun:
  // called after the first of several steps.
  Answer run(Group& group, const Command& command, const std::function<void()>& begun);

 private:
  static constexpr size_t slots = 16;
  static constexpr uint32_t micro_batches = 4;
  struct Death;

  Answer make(Group& group, const Command& command);
  Answer train(Group& group, const Command& command, const std::function<void()>& begun);
  Answer meet(Group& group);
  Status step(Group& group, const Death* death);
  Status compute(uint64_t position, std::span<float> gradients, const Death* death);
  Status reduce(Group& group, std::span<float> gradients, const Death* death);
  Answer state() const;

  std::optional<DropCompute> drop_;
  size_t slot_ = 0;
  ScheduleKind schedule_ = ScheduleKind::automatic;
  uint64_t step_ = 0;     // the last that was done
  uint64_t dropped_ = 0;  // micro-batches, of the steps done
  uint32_t begun_ = 0;    // micro-batches of this step
  int64_t usual_ns_ = 0;  // of an all-reduce
  std::vector<float> gradients_, parameters_;
  std::vector<uint64_t> counted_;  // by slot: the micro-batches whose gradients were averaged
};

}  // namespace unisono::testing

// A rank that trains with DropCompute. Its micro-batches take random times. Each process adds 1 to a gradient of its own in
// every micro-batch, so the averages show how many of its micro-batches were used.
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
  // Commands:
  // - drop_make: makes the trainer. `options` is a text for DropOptions::parse(), but with "/" instead of ",". `slot` is a
  //   number below `slots` that no other process of the test has. `values` is the number of gradients. With ring=1, averages
  //   are computed in a ring.
  // - drop_train: makes `iters` steps, or fewer if one fails. With die=, this process kills itself by SIGKILL in step number
  //   `die`. where=compute: this happens in its micro-batch number `micro`, after `at` thousandths of the time of that
  //   micro-batch. where=reduce: it happens in the all-reduce, after `at` thousandths of its time.
  // - drop_resume: continues after the group was re-formed.
  //
  // The answers contain the step and hashes of the averages. `used` is how many micro-batches of this rank are in the averages.
  // `position` is the position of the rank in its data. Both numbers are equal unless a micro-batch was lost or used twice.
  // begun() is called after the first one of several steps.
  Answer run(Group& group, const Command& command, const std::function<void()>& begun);

 private:
  static constexpr size_t slots = 16;
  static constexpr uint32_t micro_batches = 4;
  struct Death;

  Answer make(Group& group, const Command& command);
  Answer train(Group& group, const Command& command, const std::function<void()>& begun);
  Answer handshake(Group& group);
  Status step(Group& group, const Death* death);
  Status compute(uint64_t position, std::span<float> gradients, const Death* death);
  Status reduce(Group& group, std::span<float> gradients, const Death* death);
  Answer state() const;

  std::optional<DropCompute> drop_;
  size_t slot_ = 0;
  ScheduleKind schedule_ = ScheduleKind::automatic;
  uint64_t step_ = 0;     // number of the last step that was completed
  uint64_t dropped_ = 0;  // micro-batches that were dropped in the completed steps
  uint32_t begun_ = 0;    // micro-batches that have begun in this step
  int64_t usual_ns_ = 0;  // duration of the last all-reduce
  std::vector<float> gradients_, parameters_;
  std::vector<uint64_t> counted_;  // for each slot: how many of the process's micro-batches are in the averages
};

}  // namespace unisono::testing

// Implements DropCompute (unisono/drop_compute.h): the clock, the group, and this rank's history of steps. drop_controller.h
// decides whether to continue a step, drop_policy.h when to drop at all.
//
// One thread calls it. With the rule `at`, run() has a second thread for computing (background_compute.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "training/drop_compute/background_compute.h"
#include "training/drop_compute/drop_controller.h"
#include "training/drop_compute/drop_policy.h"
#include "unisono/drop_compute.h"

namespace unisono::internal {

class Dropper {
 public:
  using Now = std::function<int64_t()>;
  // now: for tests; by default a steady clock.
  static Result<std::unique_ptr<Dropper>> make(const Group& group, uint32_t micro_batches, const DropOptions& options,
                                               const std::optional<Group>& replica, const Now& now = {});

  ~Dropper() { settle(); }

  Status begin_step();
  bool next();
  uint64_t position() const { return position_ + (begun_ ? controller_.computed() : 0); }
  // In a replica, only its first process can tell by the time.
  bool last() const {
    return replica_ && replica_->rank() != 0 ? runs_ && controller_.computed() + 1 >= micro_batches_ : controller_.last_runs();
  }
  bool should_stop() const;
  void abandon();
  Result<DropStep> end_step();
  void pause();
  Result<DropStep> run(std::span<float> gradients, const DropWork& work);
  Status drain(const DropWork& work);
  const DropReport& report() const { return policy_.report(); }
  DropReport total() const { return policy_.total(); }
  // Counters of its own sub-group.
  Counters counters() const { return group_->counters(); }
  Result<DropReport> finish();
  std::string recorded() const;
  Bytes save() const;
  Status load(ByteView bytes);
  Status resume(const Group& group, const std::optional<Group>& replica = {});
  // The steps in [from, until) that all ranks have recorded; only_some: that all ranks have which recorded any. None if there
  // is no such step. All ranks call it together.
  Result<std::optional<ComputeTrace>> trace_of(uint64_t from, uint64_t until, bool only_some);

 private:
  struct RankState;
  using Counts = std::array<uint64_t, 3>;  // computed, planned, and 1 if the shard continues
  // This rank's times in a recorded step.
  struct RecordedStep {
    uint64_t step = 0;
    int64_t wall_ns = 0;
    std::vector<int64_t> ends;
  };
  struct Pending {
    std::vector<float> averages;
    DropStep step;
  };

  Dropper(uint32_t micro_batches, const DropOptions& options, const std::optional<Group>& replica, const Now& now);
  // dropper_handshake.cc
  Status meet(const Group& group, bool was_there);
  void catch_up(bool epoch_ended);
  Status agree_on_checkpoints();
  Result<std::vector<RankState>> ask(Group& group, bool was_there) const;
  Status take_over(Group& group, uint32_t leader);
  Status foresee();
  Status gather();
  Status gather_window(bool last = false);
  Status gather_trace();
  uint64_t digest() const;

  void begin_computing(int64_t now);
  void micro_batch_begins();
  bool decide(DropController::Verdict verdict);
  void stop();
  void close_last_step(int64_t now);
  void settle();
  DropController::StepOptions step_options() const;
  Result<DropStep> run_inline(std::span<float> gradients, const DropWork& work);
  Result<DropStep> run_at(std::span<float> gradients, const DropWork& work);
  Status reduce(std::span<float> gradients, const DropWork& work);
  uint64_t taken() const;
  void use(const DropWork& work, std::span<float> averages, const DropStep& step);
  void use_pending(const DropWork& work);
  bool set_aside(std::span<const float> averages, const DropStep& step);

  const DropOptions options_;
  const uint32_t micro_batches_;
  const Now now_;
  std::optional<Group> outer_, group_, replica_;  // the program's group, this object's own, and the replica's processes
  DropPolicy policy_;
  DropController controller_;

  bool begun_ = false;              // between begin_step() and end_step()
  bool runs_ = false;               // a micro-batch is running
  int64_t start_ = 0;               // start of the step
  std::optional<int64_t> reduced_;  // `at`: end of the last all-reduce
  int64_t stopped_ = 0;
  bool unsure_ = false;    // the last step stopped here without end_step(), so other ranks may have completed it
  uint64_t position_ = 0;  // of this rank's next micro-batch, before the step
  uint64_t shard_left_ = 0;
  bool epoch_ended_ = false;    // by the last step
  uint64_t uncertain_ = 0;      // micro-batches of a step that failed here; other ranks may have used them
  uint64_t untimed_until_ = 0;  // this rank is new: steps up to here are neither cut nor recorded
  bool loaded_ = false;         // a checkpoint was loaded, and not yet compared with the other ranks'
  bool counts_ = false;         // each step exchanges counts: some rank may have computed nothing, or they are needed
  Counts sums_{};
  Work counting_;              // the all-reduce of sums_
  uint64_t calls_before_ = 0;  // operations that the program's group had begun when the micro-batch began
  Status failure_;             // of this step, found in next()
  DropPolicy::Gather due_ = DropPolicy::Gather::nothing;
  uint64_t window_from_ = 0;
  std::vector<StepRecord> window_;      // this rank's; the last wall time is unknown until the next step begins
  std::vector<RecordedStep> recorded_;  // since recorded_from_
  uint64_t recorded_from_ = 0;
  bool open_record_ = false;                       // recorded_.back() lacks its wall time
  std::vector<std::string> warnings_;              // not reported yet
  std::unique_ptr<BackgroundCompute> background_;  // `at`
  std::vector<Pending> pending_;                   // averages that wait for an abandoned micro-batch before apply()
};

}  // namespace unisono::internal

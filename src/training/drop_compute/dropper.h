// Implements DropCompute (unisono/drop_compute.h). This class owns the clock, the group, and this rank's records of past steps.
// DropController decides whether a step continues. DropPolicy decides whether steps drop anything at all.
//
// Only one thread may call this class. With the rule `at`, run() computes in a second thread (background_compute.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "forks/fork.h"
#include "training/drop_compute/background_compute.h"
#include "training/drop_compute/drop_controller.h"
#include "training/drop_compute/drop_policy.h"
#include "unisono/drop_compute.h"

namespace unisono::internal {

class Dropper {
 public:
  using Now = std::function<int64_t()>;
  // `now` replaces the clock in tests. By default, the class reads a steady clock.
  static Result<std::unique_ptr<Dropper>> make(const Group& group, uint32_t micro_batches, const DropOptions& options,
                                               const std::optional<Group>& replica, const Now& now = {});

  // In a child made by fork(), the background thread does not exist, so its object is left alone.
  ~Dropper() {
    wait_for_counts();
    if (process_.forked()) (void)background_.release();
  }
  const OwnerProcess& process() const { return process_; }

  Status begin_step();
  bool next();
  uint64_t position() const { return position_ + (begun_ ? controller_.computed() : 0); }
  // If a replica has several processes, only its first process may decide by its clock.
  bool last() const {
    return replica_ && replica_->rank() != 0 ? running_ && controller_.computed() + 1 >= micro_batches_
                                             : controller_.is_last_running();
  }
  bool should_stop() const;
  void abandon();
  Result<DropStep> end_step();
  void pause();
  Result<DropStep> run(std::span<float> gradients, const DropWork& work);
  Status drain(const DropWork& work);
  const DropReport& report() const { return policy_.report(); }
  DropReport total() const { return policy_.total(); }
  // Returns the counters of the sub-group that only DropCompute uses.
  Counters counters() const { return group_->counters(); }
  Result<DropReport> finish();
  std::string recorded() const;
  Bytes save() const;
  Status load(ByteView bytes);
  Status resume(const Group& group, const std::optional<Group>& replica = {});
  // This is a collective call. Returns the steps in [from, until) that all ranks have recorded. Returns an empty value if there
  // is no such step. If `only_some` is true, ranks that recorded none of these steps are ignored.
  Result<std::optional<ComputeTrace>> trace_of(uint64_t from, uint64_t until, bool only_some);

 private:
  struct RankState;
  // Three counts: computed micro-batches, planned micro-batches, and 1 if this rank's shard of the data is not finished.
  using Counts = std::array<uint64_t, 3>;
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
  // The following functions are in dropper_handshake.cc.
  Status handshake(const Group& group, bool was_member);
  void catch_up(bool epoch_ended);
  Status check_same_checkpoint();
  Result<std::vector<RankState>> exchange_states(Group& group, bool was_member) const;
  Status copy_leader_state(Group& group, uint32_t leader);
  Status update_prediction();
  Status gather();
  Status gather_window(bool last = false);
  Status gather_trace();
  std::string shared_options() const;
  uint64_t digest() const;
  Status check_same_options(Group& group) const;

  void begin_computing(int64_t now);
  void start_micro_batch();
  bool decide(DropController::Verdict verdict);
  void stop();
  void close_last_step(int64_t now);
  void wait_for_counts();
  DropController::StepOptions step_options() const;
  Result<DropStep> run_inline(std::span<float> gradients, const DropWork& work);
  Result<DropStep> run_at(std::span<float> gradients, const DropWork& work);
  Status reduce(std::span<float> gradients, const DropWork& work);
  uint64_t position_advance() const;
  void apply(const DropWork& work, std::span<float> averages, const DropStep& step);
  void apply_pending(const DropWork& work);
  bool defer(std::span<const float> averages, const DropStep& step);

  const DropOptions options_;
  const uint32_t micro_batches_;
  const Now now_;
  // The group of the program, the sub-group that only DropCompute uses, and the group of the processes of this replica.
  std::optional<Group> outer_, group_, replica_;
  DropPolicy policy_;
  DropController controller_;

  bool begun_ = false;                 // true between begin_step() and end_step()
  bool running_ = false;               // a micro-batch is running
  int64_t step_start_ = 0;             // start time of the step, in ns; 0: unknown
  std::optional<int64_t> reduced_at_;  // With the rule `at`: when the last all-reduce ended.
  int64_t stopped_at_ = 0;
  bool outcome_unknown_ = false;  // The last step failed on this rank before end_step(), but other ranks may have completed it.
  uint64_t position_ = 0;         // data position of the first micro-batch that this rank computes in the step
  uint64_t shard_left_ = 0;
  bool epoch_ended_ = false;  // the last step ended the epoch
  // how many micro-batches this rank computed in a step that failed here; other ranks may have used them
  uint64_t unconfirmed_ = 0;
  uint64_t untimed_until_ = 0;  // A new rank drops nothing and records nothing up to and including this step.
  bool loaded_ = false;  // A checkpoint was loaded and has not yet been compared with the checkpoints of the other ranks.
  // True if the ranks exchange counts in each step. They do so if a rank may compute nothing, or if the options need the
  // counts.
  bool exchanges_counts_ = false;
  Counts sums_{};
  Work counts_work_;           // all-reduce of sums_
  uint64_t calls_before_ = 0;  // how many operations the program's group had begun when the micro-batch began
  Status failure_;             // an error in this step that next() has found
  DropPolicy::Gather due_gather_ = DropPolicy::Gather::nothing;
  uint64_t window_from_ = 0;
  // This rank's records of the steps of the window. The duration of the last step is set when the next step begins.
  std::vector<StepRecord> window_;
  std::vector<RecordedStep> recorded_;  // the recorded steps, beginning with recorded_from_
  uint64_t recorded_from_ = 0;
  bool open_record_ = false;           // True if the duration of recorded_.back() is not yet set.
  std::vector<std::string> warnings_;  // warnings that the next DropStep will contain
  const OwnerProcess process_;
  std::unique_ptr<BackgroundCompute> background_;  // Only the rule `at` uses this object.
  std::vector<Pending> pending_;                   // averages that will be applied when the abandoned micro-batch has ended
};

}  // namespace unisono::internal

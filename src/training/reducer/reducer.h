// Implements GradientReducer (unisono/training.h). This class decides how each bucket (a group of tensors that is averaged at
// once) is sent, undoes steps that fail, and runs the handshake between the ranks.
//
// The all-reduces run in a thread of the pipeline (reduction_pipeline.h). Everything else runs in the calling thread. Calls
// must not overlap.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "compressors/arc_top_k.h"
#include "forks/fork.h"
#include "training/reducer/auto_off.h"
#include "training/reducer/reduction_pipeline.h"
#include "training/reducer/reduction_report.h"
#include "training/reducer/time_model.h"
#include "unisono/training.h"

namespace unisono::internal {

class Reducer {
 public:
  // Waits until all all-reduces have ended, because they use the memory of the buckets. In a child made by fork(), the pipeline
  // has no thread, and is left alone.
  ~Reducer() {
    if (process_.forked()) (void)pipeline_.release();
    pipeline_.reset();
  }
  const OwnerProcess& process() const { return process_; }
  // Tests can pass `rates`, which replace the measured rates.
  static Result<std::unique_ptr<Reducer>> make(const Group& group, std::span<const Parameter> parameters,
                                               const Compression& compression, const std::optional<MachineRates>& rates = {});

  Status reduce(std::span<const Gradient> bucket);
  Result<CompressionReport> finish();
  void step_skipped();
  void flush() { flush_ = true; }
  Result<Resumed> resume(const Group& group);
  const Resumed& resumed() const { return resumed_; }
  Bytes save();
  Status load(ByteView bytes);
  const CompressionReport& total() const { return total_; }
  uint64_t step() const { return step_; }

 private:
  struct RankState;
  Reducer(std::vector<Parameter> parameters, const Compression& compression);
  // The following functions are in reducer_handshake.cc.
  Status handshake(const Group& group, bool was_member);
  Status check_same_options(Group& group) const;
  Result<std::vector<RankState>> exchange_states(Group& group, bool was_member) const;
  void merge_states(const std::vector<RankState>& states, Group& group);

  double reported_ratio() const;
  bool uses_auto_off() const { return compression_.auto_off && compression_.method != Compression::Method::dense; }
  uint64_t options_digest() const;
  Result<Bucket*> bucket_of(std::vector<uint32_t> tensors);
  Status add_bucket(std::span<const Gradient> bucket);
  void submit(Bucket& next, std::vector<float*> values);
  void reduce_alone(const std::vector<uint32_t>& tensors, const std::vector<float*>& values);
  void begin_step();
  void add_side_values(Bucket& bucket);
  std::vector<Bucket*> wait_for_buckets();
  void abort_step(std::vector<Bucket*> buckets);
  void undo_step(const std::vector<Bucket*>& buckets, bool failed);
  CompressionReport report_of(const std::vector<Bucket*>& buckets);
  CompressionReport brief_report() const;
  Status end_step(CompressionReport& report);
  void add_to_total(const CompressionReport& report);

  const OwnerProcess process_;
  const Compression compression_;
  std::vector<Parameter> parameters_;  // These are sorted by name. The number of a tensor is its index here.
  std::map<std::string, uint32_t, std::less<>> numbers_;
  const uint64_t token_;  // A random number. By this number, ranks recognise each other after the group has been re-formed.
  // The current group. These values stay the same until the next resume().
  uint32_t world_ = 1, rank_ = 0;
  std::vector<Member> members_;
  std::vector<double> tokens_;  // the token_ of each rank in the group
  MachineRates rates_;
  std::optional<MachineRates> given_rates_;
  Resumed resumed_;
  std::unique_ptr<ReductionPipeline> pipeline_;  // null if there is only one rank
  FeedbackStore store_;
  Spares spares_;
  std::map<uint32_t, Bucket> buckets_;  // The key is the number that the bucket has in its step.
  double bucket_ratio_ = 0;             // the ratio for which buckets_ were made
  std::vector<Bucket*> submitted_;      // buckets submitted in the current step
  bool begun_ = false;                  // the current step has begun
  bool refused_ = false;                // True if a bucket of the current step was refused because memory ran out.
  std::vector<Bucket*> last_buckets_;   // the buckets of the last step; the list is kept until the next step begins
  // The buckets of a step that failed on this rank. The list is kept until the next step begins.
  std::vector<Bucket*> failed_buckets_;
  std::optional<uint64_t> used_step_;  // the last step whose averages some rank uses
  // In how many steps this rank has applied the averages to its parameters. -1: this rank has just joined. A step does not
  // count if its result will reach this rank with parameters that are copied from another rank.
  int64_t parameter_steps_ = -1;
  std::vector<double> residual_norms_;  // for each rank: the norm of its residuals, as it last reported it
  std::vector<bool> seen_;              // for each tensor: whether its gradient was given in the current step
  AutoOff auto_off_;
  Sending sending_ = Sending::compressed;  // how the current step is sent
  bool flush_ = false, forget_ = false;
  bool first_after_resume_ = false;  // true in the first step after resume()
  uint64_t step_ = 0, round_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::optional<std::chrono::steady_clock::time_point> last_end_;
  CompressionReport total_;
  ReductionWarnings warnings_;
};

}  // namespace unisono::internal

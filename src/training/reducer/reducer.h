// The implementation of GradientReducer (unisono/training.h): it decides how each bucket is sent and what a step's end means,
// and lets ranks meet.
//
// A thread of its own makes the all-reduces (reduction_pipeline.h). All else happens in the calling thread; only one may call.
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
#include "training/reducer/auto_off.h"
#include "training/reducer/reduction_pipeline.h"
#include "training/reducer/reduction_report.h"
#include "training/reducer/time_model.h"
#include "unisono/training.h"

namespace unisono::internal {

class Reducer {
 public:
  ~Reducer() { pipeline_.reset(); }  // waits for what is in flight, in the memory of buckets
  // rates: for tests, taken for measured.
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
  struct Told;
  Reducer(std::vector<Parameter> parameters, const Compression& compression);
  // reducer_handshake.cc
  Status meet(const Group& group, bool was_there);
  Status agree(Group& group) const;
  Result<std::vector<Told>> ask(Group& group, bool was_there) const;
  void go_on_from(const std::vector<Told>& told, Group& group);

  double reported_ratio() const;
  bool weighs() const { return compression_.auto_off && compression_.method != Compression::Method::dense; }
  uint64_t options_digest() const;
  Result<Bucket*> bucket_of(std::vector<uint32_t> tensors);
  Status give(std::span<const Gradient> bucket);
  void submit(Bucket& next, std::vector<float*> values);
  void deliver_alone(const std::vector<uint32_t>& tensors, const std::vector<float*>& values);
  void begin_step();
  void add_notes(Bucket& bucket);
  std::vector<Bucket*> end_buckets();
  void give_up(std::vector<Bucket*> buckets);
  void take_back(const std::vector<Bucket*>& buckets, bool failed);
  CompressionReport report_of(const std::vector<Bucket*>& buckets);
  CompressionReport brief_report() const;
  Status end_step(CompressionReport& report);
  void add_to_total(const CompressionReport& report);

  const Compression compression_;
  std::vector<Parameter> parameters_;  // sorted by name: a tensor's number is its place
  std::map<std::string, uint32_t, std::less<>> numbers_;
  const uint64_t name_;  // drawn by lot: ranks know each other again by it
  // The group that it works in, until resume().
  uint32_t world_ = 1, rank_ = 0;
  std::vector<Member> members_;
  std::vector<double> names_;  // by rank
  MachineRates rates_;
  std::optional<MachineRates> given_rates_;
  Resumed resumed_;
  std::unique_ptr<ReductionPipeline> pipeline_;  // null: one rank
  FeedbackStore store_;
  Spares spares_;
  std::map<uint32_t, Bucket> buckets_;  // by place in the step
  double bucket_ratio_ = 0;             // that they were made for
  std::vector<Bucket*> present_;        // of this step
  bool begun_ = false;                  // it is
  bool refused_ = false;                // there was no memory for one of its buckets
  std::vector<Bucket*> last_;           // of the last one, until the next begins
  std::vector<Bucket*> failed_;         // of one that failed on this rank, until the next begins
  std::optional<uint64_t> used_;        // the last step whose averages some rank uses
  int64_t holds_ = -1;  // the steps that this rank's parameters have in them, as far as they are its own; -1: it has just come
  std::vector<double> kept_norms_;  // of what ranks had kept, when they last told
  std::vector<bool> seen_;          // by tensor, in this step
  AutoOff auto_off_;
  Sending sending_ = Sending::compressed;  // of this step
  bool flush_ = false, forget_ = false;
  bool settling_ = false;  // the first step after resume()
  uint64_t step_ = 0, round_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::optional<std::chrono::steady_clock::time_point> last_end_;
  CompressionReport total_;
  ReductionWarnings warnings_;
};

}  // namespace unisono::internal

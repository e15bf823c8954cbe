// Gradients averaged over a group while they are compressed, from step to step: the rest of each step's gradients is kept and sent later.
//
//   auto reducer = GradientReducer::make(group, parameters, *Compression::parse("arc:ratio=0.2,rank=4"));
//   for (;;) {
//     backward([&](bucket) { (*reducer)->reduce(bucket); });   // as soon as a bucket's gradients are complete; returns at once
//     auto step = (*reducer)->finish();                        // all gradients are averages now
//     if (step.ok() && step->applied) optimizer.step();
//   }
//
// Two all-reduces per bucket, whatever the number of its tensors: the sketches of all of them, then the rows that these chose. A thread of the
// reducer's own does that (reduction_pipeline.h). Not thread-safe: one thread calls it.
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
#include "training/auto_off.h"
#include "training/compression.h"
#include "training/reduction_pipeline.h"
#include "training/time_model.h"

namespace unisono {

// Something that is trained. fp32; the first dimension counts rows, and the others, together, the values of a row.
struct Parameter {
  std::string name;  // not empty, and no two have the same
  std::vector<uint64_t> shape;
};

// This rank's gradient of one parameter: as many values as its shape says. Becomes the average.
struct Gradient {
  std::string_view name;
  float* values = nullptr;
};

// Of one step, or of all so far.
struct CompressionReport {
  uint64_t step = 0;               // its number from 0, or how many there were
  bool applied = true;             // false: some rank's gradients were not finite. All ranks skip the step: the gradients are of no use. (What is sent whole
                                   // as without compression is not looked at.)
  double ratio = 0;                // kept share of rows, at present
  uint32_t rank = 0;
  uint32_t compressed = 0, whole = 0;  // tensors that travelled so
  uint64_t elements = 0;           // of all tensors
  BucketCosts costs{};             // summed over buckets, which overlap
  int64_t total_us = 0;            // from the first reduce() to the end of finish()
  int64_t wait_us = 0;             // of it, in finish()
  double captured = -1;            // share of the rows' energy that the chosen ones have, by their sketches: too large by trend; mean over buckets. -1: not known
  double output_norm = 0;          // of the averages, but for those that are not looked at; of all so far: of the last step
  double residual_norm_mean = 0, residual_norm_max = 0;  // over ranks, of what they had kept before the step
  uint64_t state_bytes = 0;        // that this rank keeps from step to step
  std::string off{};               // why not all is compressed at present, although it was asked for; empty: it is
  std::vector<std::string> warnings{};  // new in this step

  double payload_ratio() const { return elements == 0 ? 0 : static_cast<double>(costs.payload_elements) / static_cast<double>(elements); }
  // One line for logs.
  std::string to_string() const;
};

class GradientReducer {
 public:
  // All ranks call it alike. It works in a sub-group of its own; the group's numbering is left alone.
  // invalid (bad_option, config_mismatch): options or parameters make no sense, or differ between ranks.
  static Result<std::unique_ptr<GradientReducer>> make(Group group, std::vector<Parameter> parameters, const Compression& compression);

  // These gradients are complete, and belong to the reducer until finish(). All ranks give the same buckets in the same order; other buckets in
  // other steps are fine. invalid: a name that is not known, or comes twice in a step; nothing of the bucket has been sent then.
  Status reduce(std::span<const Gradient> bucket);
  // Waits until everything is averaged. Errors: those of all-reduces; config_mismatch; index_mismatch (ranks have chosen different rows). Then the step
  // is as if it had not been, but for this rank's gradients, which are kept and sent later; after peer_lost and late another reducer is needed.
  Result<CompressionReport> finish();
  // After finish(): the averages were not used, by no rank. What was sent is kept, and sent again.
  void step_skipped();
  // The next step is sent whole, and nothing is left over after it: before training ends, or a rank leaves.
  void flush() { flush_ = true; }

  // What this rank has kept, with its options, to go on with to the bit. Between finish() and reduce().
  Bytes save();
  // corrupt: no such bytes. invalid: of another rank, another number of ranks (roster_changed), other options (config_mismatch), or other shapes
  // (state_shape_mismatch). Nothing has changed then. To start from nothing instead, do not load.
  Status load(ByteView bytes);

  const CompressionReport& total() const { return total_; }
  uint64_t step() const { return step_; }  // the next one
  // How a parameter is treated at present, and why.
  Decision decision(const std::string& name) const;

 private:
  GradientReducer(Group group, std::vector<Parameter> parameters, const Compression& compression);
  Status meet();
  double ratio_now() const;
  RowRule rule_now() const;
  ArcOptions arc_now() const;
  uint64_t options_digest() const;
  FeedbackOptions feedback_options() const;
  Result<Bucket*> bucket_of(std::vector<uint32_t> tensors);
  void begin_step();
  void add_notes(Bucket& bucket);
  CompressionReport report_of(const std::vector<Bucket*>& buckets);
  void read_notes(const std::vector<Bucket*>& buckets, CompressionReport& report);
  void warn(CompressionReport& report, bool& given, bool when, std::string text);
  Status end_step(CompressionReport& report);

  const Group group_;
  const Compression compression_;
  std::vector<Parameter> parameters_;           // sorted by name: a tensor's number is its place
  std::map<std::string, uint32_t, std::less<>> numbers_;
  FeedbackStore store_;
  MachineRates rates_;
  std::unique_ptr<ReductionPipeline> pipeline_;  // null: one rank
  std::map<uint32_t, Bucket> buckets_;           // by place in the step
  double bucket_ratio_ = 0;                      // that they were made for
  std::vector<Bucket*> present_;                 // of this step
  std::vector<Bucket*> last_;                    // of the last one, until the next begins
  std::vector<bool> seen_;                       // by tensor, in this step
  AutoOff auto_off_;
  Sending sending_ = Sending::compressed;        // of this step
  bool flush_ = false, forget_ = false;
  uint64_t step_ = 0, round_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::optional<std::chrono::steady_clock::time_point> last_end_;
  CompressionReport total_;
  bool warned_none_ = false, warned_adaptive_ = false, warned_growth_ = false, warned_memory_ = false;
};

}  // namespace unisono

// Gradients averaged over a group while they are compressed, from step to step: the rest of each step's gradients is kept and
// sent later.
//
//   auto reducer = unisono::GradientReducer::make(*group, parameters, *unisono::Compression::parse("arc:ratio=0.2,rank=4"));
//   for (;;) {
//     backward([&](bucket) { reducer->reduce(bucket); });   // as soon as a bucket's gradients are complete; returns at once
//     auto step = reducer->finish();                        // all gradients are averages now
//     if (step.ok() && step->applied) optimizer.step();
//   }
//
// Two all-reduces per bucket, whatever the number of its tensors: the sketches of all of them, then the rows that these chose.
// One thread of the reducer's own compresses, and starts them; sketches of later buckets are on their way while rows of earlier
// ones are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/compression.h"
#include "unisono/export.h"
#include "unisono/group.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class Reducer;
}

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

// How the gradients of one parameter travel, and why.
struct PlannedParameter {
  std::string name;
  uint64_t rows = 0, columns = 0;
  bool compressed = false;
  uint64_t kept_rows = 0;   // of a compressed one
  uint64_t payload = 0;     // values that are averaged in a step
  std::string_view reason;  // why it is not compressed; static text
};
struct CompressionPlan {
  // Before anything is allocated. invalid (bad_option): options or parameters that make no sense.
  UNISONO_EXPORT static Result<CompressionPlan> make(std::span<const Parameter> parameters, const Compression& compression);

  std::vector<PlannedParameter> parameters;  // as they were given
  uint64_t elements = 0, payload = 0;        // values in all, and those that are averaged in a compressed step
  uint64_t state_bytes = 0;                  // that each rank will keep from step to step
  // And what it needs to work in, at most, with buckets of 25 MB; without codecs' own. (A step that is sent whole, as EF21M's
  // first one, has a copy of its bucket beside if that has something left over.)
  uint64_t buffer_bytes = 0;
  // "58 of 75 parameters compressed: 12070656 of 58073600 values per step (0.208); 232 MB kept from step to step, 48 MB to work
  // in"
  UNISONO_EXPORT std::string to_string() const;
};

struct CompressionCosts {
  int64_t sketch_us = 0, sketch_reduce_us = 0, select_us = 0, pack_us = 0, value_reduce_us = 0,
          unpack_us = 0;          // summed over buckets, which overlap
  uint64_t payload_elements = 0;  // that all-reduces averaged: of sketches, rows, and tensors sent whole
  uint64_t collectives = 0;
  uint64_t sent_payload = 0, sent_headers = 0;  // bytes that this rank sent
};

// Of one step, or of all so far.
struct CompressionReport {
  uint64_t step = 0;    // its number from 0, or how many there were
  bool applied = true;  // false: some rank's gradients were not finite. All ranks skip the step: the gradients are of no use.
                        // (What is sent whole as without compression is not looked at.)
  double ratio = 0;     // kept share of rows, at present
  uint32_t rank = 0;    // of sketches
  uint32_t compressed = 0, whole = 0;  // tensors that travelled so
  uint64_t elements = 0;               // of all tensors
  CompressionCosts costs{};
  int64_t total_us = 0;    // from the first reduce() to the end of finish()
  int64_t wait_us = 0;     // of it, in finish()
  double captured = -1;    // share of the rows' energy that the chosen ones have, by their sketches: too large by trend; mean
                           // over buckets. -1: not known
  double output_norm = 0;  // of the averages, but for those that are not looked at; of all so far: of the last step
  double residual_norm_mean = 0, residual_norm_max = 0;  // over ranks, of what they had kept before the step
  uint64_t state_bytes = 0, buffer_bytes = 0;            // that this rank keeps from step to step, and that it works in
  std::string off{};                    // why not all is compressed at present, although it was asked for; empty: it is
  std::vector<std::string> warnings{};  // new in this step

  double payload_ratio() const {
    return elements == 0 ? 0 : static_cast<double>(costs.payload_elements) / static_cast<double>(elements);
  }
  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// How ranks go on together after their group was re-formed.
struct Resumed {
  uint64_t step = 0;  // the next one
  // The rank whose parameters, and optimizer's state, all others take before they go on: of those that have done the most steps
  // the first. (A rank that fails in a step may have given others what they needed to finish it. What it gave does not count as
  // left over then.)
  uint32_t parameters_from = 0;
  struct Lost {
    Member member;              // of the former group
    double residual_norm = -1;  // of what is gone with it, by the last step that told it; -1: not known
  };
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT GradientReducer {
 public:
  // All ranks of the group call it alike. It works in a sub-group of its own; the group's numbering is left alone. A process
  // that has joined a group which was re-formed calls it while the others call resume(), and has nothing left over; resumed()
  // says where to go on. invalid (bad_option, config_mismatch): options or parameters make no sense, or differ between ranks.
  static Result<GradientReducer> make(const Group& group, std::span<const Parameter> parameters,
                                      const Compression& compression = {});
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;
  ~GradientReducer();

  // These gradients are complete, and belong to the reducer until finish(). All ranks give the same buckets in the same order;
  // other buckets in other steps are fine. invalid: a name that is not known, or comes twice in a step; nothing of the bucket
  // has been sent then. unavailable: out of memory; the bucket stays the caller's, and finish() will say the same.
  Status reduce(std::span<const Gradient> bucket);
  // Waits until everything is averaged. Errors: those of all-reduces; config_mismatch; index_mismatch (ranks have chosen
  // different rows). Then the step is as if it had not been, but for this rank's gradients, which are kept and sent later.
  // After peer_lost and late: Group::reform(), then resume().
  Result<CompressionReport> finish();
  // After finish(): the averages were not used, by no rank. What was sent is kept, and sent again.
  void step_skipped();
  // The next step is sent whole, and nothing is left over after it: before training ends, or a rank leaves.
  void flush();

  // After the group was re-formed (or another was split off it): all its ranks call it, but those that have joined, which call
  // make(). What survivors have left over stays theirs. What others hold of EF21's and EF21M's means is not known any more, so
  // each bucket's next step is sent whole. Errors: those of make() and of all-reduces; it may be called again then, after
  // another reform().
  Result<Resumed> resume(const Group& group);
  // How this reducer began, or what resume() said last.
  const Resumed& resumed() const;

  // What this rank has kept, with its options, to go on with to the bit. Between finish() and reduce(); in the midst of a step:
  // nothing.
  std::vector<std::byte> save();
  // corrupt: no such bytes. invalid: of another rank, another number of ranks (roster_changed), other options
  // (config_mismatch), or other shapes (state_shape_mismatch); in the midst of a step. Nothing has changed then. To start from
  // nothing instead, do not load.
  Status load(std::span<const std::byte> bytes);

  const CompressionReport& total() const;
  uint64_t step() const;  // the next one

 private:
  explicit GradientReducer(std::unique_ptr<internal::Reducer> reducer);
  std::unique_ptr<internal::Reducer> reducer_;
};

}  // namespace unisono

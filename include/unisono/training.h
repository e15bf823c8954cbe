// Averages compressed gradients over a group, step by step. Each step sends a part of the gradients. The reducer keeps the rest
// (the residual), and sends it later (error feedback).
//
//   auto reducer = unisono::GradientReducer::make(*group, parameters, *unisono::Compression::parse("arc:ratio=0.2,rank=4"));
//   for (;;) {
//     backward([&](bucket) { reducer->reduce(bucket); });   // as soon as a bucket's gradients are complete; returns at once
//     auto step = reducer->finish();                        // now all gradients are averages
//     if (step.ok() && step->applied) optimizer.step();
//   }
//
// Each bucket takes two all-reduces, however many tensors it has. The first sends the sketches (small random projections of the
// rows) of all tensors. The second sends the rows that these sketches selected. (With power_sgd, they send the first and the
// second factors.) A thread of the reducer compresses the gradients and starts the all-reduces. While rows of earlier buckets
// are on the way, sketches of later buckets are sent.
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

// A parameter of the model, in fp32. shape[0] is the number of its rows; the other dimensions together form one row.
struct Parameter {
  std::string name;  // must not be empty, and must be unique
  std::vector<uint64_t> shape;
};

// This rank's gradient of one parameter. It has as many values as the parameter. finish() replaces the values by the average.
struct Gradient {
  std::string_view name;
  float* values = nullptr;
};

// Says how the gradients of one parameter are sent, and why.
struct PlannedParameter {
  std::string name;
  uint64_t rows = 0, columns = 0;
  bool compressed = false;
  uint64_t kept_rows = 0;       // number of rows that are sent of a compressed parameter; 0 with power_sgd
  uint64_t payload = 0;         // number of values that are averaged per step
  std::string_view reason;      // says why the parameter is not compressed; static text
  uint64_t factor_columns = 0;  // with power_sgd: number of columns of each of the two factors
};
struct CompressionPlan {
  // Computes the plan without allocating any state. Error invalid (bad_option): the options or parameters make no sense.
  UNISONO_EXPORT static Result<CompressionPlan> make(std::span<const Parameter> parameters, const Compression& compression);

  std::vector<PlannedParameter> parameters;  // in the given order
  uint64_t elements = 0, payload = 0;        // number of all values, and of those that a compressed step averages
  uint64_t state_bytes = 0;                  // number of bytes of state that each rank keeps between steps
  // An upper bound of the working memory with buckets of 25 MB. It excludes the buffers of codecs. In steps that send whole
  // gradients, such as the first step with EF21M, buckets with a residual are copied. The bound excludes these copies, too.
  uint64_t buffer_bytes = 0;
  // Returns, for example, "58 of 75 parameters compressed: 12070656 of 58073600 values per step (0.208); 232 MB of state, 48 MB
  // of buffers".
  UNISONO_EXPORT std::string to_string() const;
};

struct CompressionCosts {
  int64_t sketch_us = 0, sketch_reduce_us = 0, select_us = 0, pack_us = 0, value_reduce_us = 0,
          unpack_us = 0;          // times, summed over the buckets; buckets overlap in time
  uint64_t payload_elements = 0;  // number of elements that all-reduces averaged: in sketches, rows and whole tensors
  uint64_t collectives = 0;
  uint64_t sent_payload = 0, sent_headers = 0;  // numbers of bytes that this rank sent
};

// Describes one step, or all steps so far.
struct CompressionReport {
  uint64_t step = 0;  // number of the step, from 0; in total(): how many steps there were
  // false: the gradients of some rank were not finite. All ranks skip the step, and must not use its gradients. Tensors that
  // are sent whole are not checked.
  bool applied = true;
  double ratio = 0;                    // the share of rows that is sent at present; 0 with power_sgd, which sends no rows
  uint32_t rank = 0;                   // number of columns of the sketches, or of the factors
  uint32_t compressed = 0, whole = 0;  // numbers of tensors that are sent compressed, and that are sent whole
  uint64_t elements = 0;               // number of elements of all tensors
  CompressionCosts costs{};
  int64_t total_us = 0;  // time from the first reduce() to the end of finish()
  int64_t wait_us = 0;   // the part of total_us that was spent in finish()
  // energy(selected rows) / energy(all rows), averaged over the buckets. The sketches only estimate it, and the estimate is
  // often too large. -1: it is not known.
  double captured = -1;
  double output_norm = 0;  // norm of the averages that are checked to be finite; in total(): the norm in the last step
  // The mean and the maximum, over the ranks, of the norm of the residual before the step.
  double residual_norm_mean = 0, residual_norm_max = 0;
  uint64_t state_bytes = 0, buffer_bytes = 0;  // memory of this rank: the state between steps, and the working memory
  std::string off{};  // says why requested compression is off, or off for some tensors, at present; otherwise empty
  std::vector<std::string> warnings{};  // the warnings that are new in this step

  double payload_ratio() const {
    return elements == 0 ? 0 : static_cast<double>(costs.payload_elements) / static_cast<double>(elements);
  }
  // Returns one line of text for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// Says how ranks continue after their group was re-formed.
struct Resumed {
  uint64_t step = 0;  // number of the next step
  // All other ranks copy the parameters and the optimizer state of this rank before they continue. It is the first of the ranks
  // that completed the most steps.
  //
  // (A rank whose step failed may already have sent its part of that step, so that other ranks completed it. Its residual no
  // longer contains that part.)
  uint32_t parameters_from = 0;
  struct Lost {
    Member member;              // the lost member, with its rank in the former group
    double residual_norm = -1;  // norm of the lost residual, as last reported; -1: it is not known
  };
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT GradientReducer {
 public:
  // All ranks of the group call make() with equal arguments. The reducer works in a new sub-group, so the operation numbers of
  // the group do not change. If a process joined a re-formed group, it calls make() while the other ranks call resume(). It
  // starts without a residual, and resumed() returns the step from which it continues. Errors:
  // - invalid (bad_option): the options or parameters make no sense.
  // - invalid (config_mismatch): the options or parameters differ between ranks.
  static Result<GradientReducer> make(const Group& group, std::span<const Parameter> parameters,
                                      const Compression& compression = {});
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;
  ~GradientReducer();

  // Hands over a bucket of complete gradients. The caller must not use them until finish() returns. All ranks must pass the
  // same buckets in the same order, but each step may use different buckets. Errors:
  // - invalid: a name is unknown, or occurs twice in a step. Nothing of the bucket was sent.
  // - unavailable: out of memory. The bucket stays with the caller, and finish() returns the same error.
  Status reduce(std::span<const Gradient> bucket);
  // Waits until all buckets are averaged. A failed step has only one effect: this rank keeps its gradients, and sends them
  // later. Errors: those of all-reduces (after peer_lost and late, call Group::reform(), then resume()); config_mismatch;
  // index_mismatch (ranks selected different rows).
  Result<CompressionReport> finish();
  // Call it after finish() if no rank used the averages. The reducer keeps the gradients that were sent, and sends them again.
  void step_skipped();
  // Makes the next step send all values, so that no residual remains. Use it before training ends, or before a rank leaves.
  void flush();

  // Call it after the group was re-formed, or to continue on another group, such as a sub-group. All ranks of that group call
  // it, except for new ranks, which call make(). Errors: those of make() and of all-reduces. After another reform(), call
  // resume() again.
  //
  // Survivors keep their residuals. The copies of gradients that ranks share with EF21 and EF21M are discarded. Therefore the
  // next step sends each bucket whole. power_sgd draws new factors.
  Result<Resumed> resume(const Group& group);
  // Returns the result of the last resume(). If resume() was not called, it returns the result of make().
  const Resumed& resumed() const;

  // Saves the state and the options of this rank, so that it can continue with the same bits. Call it between finish() and
  // reduce(). In the middle of a step it returns nothing.
  std::vector<std::byte> save();
  // Restores what save() returned. To start without state, do not call it. After an error, nothing has changed. Errors:
  // - corrupt: the bytes are not a saved state.
  // - invalid (roster_changed): another rank saved the state, or the number of ranks was different.
  // - invalid (config_mismatch): the state was saved with other options.
  // - invalid (state_shape_mismatch): the state has other shapes.
  // - invalid: the call is in the middle of a step.
  Status load(std::span<const std::byte> bytes);

  const CompressionReport& total() const;
  uint64_t step() const;  // returns the number of the next step

 private:
  explicit GradientReducer(std::unique_ptr<internal::Reducer> reducer);
  std::unique_ptr<internal::Reducer> reducer_;
};

}  // namespace unisono

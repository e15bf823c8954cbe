// Averages compressed gradients over a group, step by step. Each step sends a part of the gradients; the reducer keeps the rest
// and sends it later (error feedback).
//
//   auto reducer = unisono::GradientReducer::make(*group, parameters, *unisono::Compression::parse("arc:ratio=0.2,rank=4"));
//   for (;;) {
//     backward([&](bucket) { reducer->reduce(bucket); });   // as soon as a bucket's gradients are complete; returns at once
//     auto step = reducer->finish();                        // now all gradients are averages
//     if (step.ok() && step->applied) optimizer.step();
//   }
//
// Each bucket takes two all-reduces, however many tensors it has: first the sketches of all tensors, then the rows that these
// sketches selected. (With power_sgd: the first factors, then the second factors.) One thread of the reducer compresses and
// starts the all-reduces. Sketches of later buckets are sent while rows of earlier buckets do.
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

// A parameter of the model, in fp32. The first dimension counts rows; the other dimensions together are the values of a row.
struct Parameter {
  std::string name;  // not empty, and unique
  std::vector<uint64_t> shape;
};

// This rank's gradient of one parameter, with as many values as its shape has. finish() turns it into the average.
struct Gradient {
  std::string_view name;
  float* values = nullptr;
};

// How the gradients of one parameter are sent, and why.
struct PlannedParameter {
  std::string name;
  uint64_t rows = 0, columns = 0;
  bool compressed = false;
  uint64_t kept_rows = 0;       // of a compressed parameter; 0 with power_sgd
  uint64_t payload = 0;         // values averaged per step
  std::string_view reason;      // why it is not compressed; static text
  uint64_t factor_columns = 0;  // columns of the two factors, with power_sgd
};
struct CompressionPlan {
  // Computes the plan without allocating any state. invalid (bad_option): options or parameters make no sense.
  UNISONO_EXPORT static Result<CompressionPlan> make(std::span<const Parameter> parameters, const Compression& compression);

  std::vector<PlannedParameter> parameters;  // in the given order
  uint64_t elements = 0, payload = 0;        // values in all, and values averaged in a compressed step
  uint64_t state_bytes = 0;                  // that each rank keeps from step to step
  // Upper bound of the working memory with buckets of 25 MB, without the codecs' own. (A step that is sent whole, like EF21M's
  // first, also copies its bucket if that has a residual.)
  uint64_t buffer_bytes = 0;
  // "58 of 75 parameters compressed: 12070656 of 58073600 values per step (0.208); 232 MB kept from step to step, 48 MB to work
  // in"
  UNISONO_EXPORT std::string to_string() const;
};

struct CompressionCosts {
  int64_t sketch_us = 0, sketch_reduce_us = 0, select_us = 0, pack_us = 0, value_reduce_us = 0,
          unpack_us = 0;          // sums over buckets, which overlap in time
  uint64_t payload_elements = 0;  // averaged by all-reduces: sketches, rows, and tensors sent whole
  uint64_t collectives = 0;
  uint64_t sent_payload = 0, sent_headers = 0;  // bytes sent by this rank
};

// Report of one step, or of all steps so far.
struct CompressionReport {
  uint64_t step = 0;  // the step's number from 0; in total(): the number of steps
  // false: some rank's gradients were not finite. All ranks skip the step, and its gradients must not be used. Tensors that
  // are sent whole, as without compression, are not checked.
  bool applied = true;
  double ratio = 0;                    // share of rows that is sent at present; 0 with power_sgd, which sends no rows
  uint32_t rank = 0;                   // of sketches, or of factors
  uint32_t compressed = 0, whole = 0;  // tensors that were sent this way
  uint64_t elements = 0;               // of all tensors
  CompressionCosts costs{};
  int64_t total_us = 0;  // from the first reduce() to the end of finish()
  int64_t wait_us = 0;   // share of total_us spent in finish()
  // Share of the rows' energy in the selected rows, as their sketches estimate it; mean over buckets. It tends to be too large.
  // -1: not known.
  double captured = -1;
  double output_norm = 0;                                // of the averages that are checked; in total(): of the last step
  double residual_norm_mean = 0, residual_norm_max = 0;  // over ranks: norm of the residual they kept before the step
  uint64_t state_bytes = 0, buffer_bytes = 0;            // memory of this rank: kept from step to step, and for work
  std::string off{};                    // why not everything is compressed at present although it should be; empty: it is
  std::vector<std::string> warnings{};  // new in this step

  double payload_ratio() const {
    return elements == 0 ? 0 : static_cast<double>(costs.payload_elements) / static_cast<double>(elements);
  }
  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// How ranks continue after their group was re-formed.
struct Resumed {
  uint64_t step = 0;  // the next one
  // The rank whose parameters and optimizer state all others copy before they continue: the first of the ranks that completed
  // the most steps. (A rank that fails in a step may have sent the others what they needed to finish it. That part is no longer
  // in its residual.)
  uint32_t parameters_from = 0;
  struct Lost {
    Member member;              // of the former group
    double residual_norm = -1;  // of its lost residual, as last reported; -1: not known
  };
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT GradientReducer {
 public:
  // All ranks of the group call it with equal arguments. It works in a sub-group of its own, so the group's operation numbers
  // do not change. A process that joined a re-formed group calls it while the others call resume(), and starts without a
  // residual; resumed() gives the step to continue from. invalid (bad_option, config_mismatch): options or parameters make no
  // sense, or differ between ranks.
  static Result<GradientReducer> make(const Group& group, std::span<const Parameter> parameters,
                                      const Compression& compression = {});
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;
  ~GradientReducer();

  // Hands over a bucket of complete gradients; they belong to the reducer until finish(). All ranks pass the same buckets in
  // the same order; different steps may use different buckets. invalid: a name is unknown or occurs twice in a step; nothing of
  // the bucket was sent. unavailable: out of memory; the bucket remains the caller's, and finish() returns the same error.
  Status reduce(std::span<const Gradient> bucket);
  // Waits until everything is averaged. Errors: those of all-reduces; config_mismatch; index_mismatch (ranks selected different
  // rows). A failed step has no effect, except that this rank keeps its gradients and sends them later. After peer_lost and
  // late: call Group::reform(), then resume().
  Result<CompressionReport> finish();
  // Call after finish() if no rank used the averages. The reducer keeps the sent part and sends it again.
  void step_skipped();
  // Sends the next step whole, so that no residual is left: before training ends, or before a rank leaves.
  void flush();

  // Call after the group was re-formed, or to continue on another group split from it. All its ranks call it, except new ones,
  // which call make(). Survivors keep their residuals. The means that EF21 and EF21M share with other ranks are no longer
  // known, so each bucket's next step is sent whole. power_sgd draws its factors anew. Errors: those of make() and of
  // all-reduces; call it again after another reform().
  Result<Resumed> resume(const Group& group);
  // How this reducer began, or the result of the last resume().
  const Resumed& resumed() const;

  // This rank's state with its options, for a bit-exact continuation. Call it between finish() and reduce(); in the middle of a
  // step it is empty.
  std::vector<std::byte> save();
  // corrupt: the bytes are not such a state. invalid: state of another rank, of another number of ranks (roster_changed), with
  // other options (config_mismatch) or other shapes (state_shape_mismatch), or a call in the middle of a step. An error changes
  // nothing. To start without state, do not call load().
  Status load(std::span<const std::byte> bytes);

  const CompressionReport& total() const;
  uint64_t step() const;  // the next one

 private:
  explicit GradientReducer(std::unique_ptr<internal::Reducer> reducer);
  std::unique_ptr<internal::Reducer> reducer_;
};

}  // namespace unisono

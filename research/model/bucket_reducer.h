// Buckets of whole parameters, averaged over a group in fewer bytes than they have.
//
// One of them is the library's GradientReducer; the others are what it is compared with (src/baselines), made to overlap with
// the backward pass as far as averages that depend on each other can without a thread of their own. All of them keep, on each
// rank, what was not sent, and send it later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// Parameters that lie one after the other, and travel together.
struct Bucket {
  size_t offset = 0, count = 0;  // of its values, among those of all parameters
  uint32_t first = 0;            // number of its first parameter
  std::vector<ExchangedParameter> parameters;
};
// Those at the end first, as the backward pass completes them; each has as many parameters as make it `elements` long, or
// longer.
std::vector<Bucket> make_buckets(std::span<const ExchangedParameter> parameters, size_t elements);
// As compression sees it: rows are what is chosen, and one row of numbers is no matrix.
std::vector<uint64_t> shape_of(const ExchangedParameter& parameter);

// What one step came to, on this rank.
struct StepOutcome {
  bool applied = true;  // false: some rank's gradients were not finite, and all ranks must skip the step
  uint64_t operations = 0, sent_bytes = 0;
  uint64_t elements = 0, payload = 0;      // values of four bytes: in all, and given to collectives
  std::string off = {};                    // why not all was compressed, although it was asked for
  std::vector<std::string> warnings = {};  // new in this step
};

class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  // The bucket's gradients, in the shapes of shape_of, are complete, and may not be touched until finish(). All ranks give the
  // same buckets in the same order.
  virtual unisono::Status reduce(size_t bucket, std::span<float> gradients) = 0;
  // Waits until all that was given is averaged, in place.
  virtual unisono::Result<StepOutcome> finish() = 0;
};

// Both are called by all ranks alike, with the group's own numbering left alone. Errors: those of GradientReducer::make, of
// Group::split.
unisono::Result<std::unique_ptr<BucketReducer>> make_library_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                     const unisono::Compression& compression);
unisono::Result<std::unique_ptr<BucketReducer>> make_baseline_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                      const GradientCompression& compression);

}  // namespace language_model

// Buckets of whole parameters, averaged over a group in fewer bytes than they have.
//
// One implementation is the library's GradientReducer. The others are other people's methods (src/lab/compressors,
// src/compressors). They overlap with the backward pass as far as averages that depend on each other can without a thread of
// their own. Each rank keeps what it did not send, and sends it later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// Parameters that are adjacent and are reduced together.
struct Bucket {
  size_t offset = 0, count = 0;  // of its values, among those of all parameters
  uint32_t first = 0;            // number of its first parameter
  std::vector<ExchangedParameter> parameters;
};
// The buckets, those at the end first, as the backward pass completes them. Each bucket takes parameters until it has at least
// `elements` values.
std::vector<Bucket> make_buckets(std::span<const ExchangedParameter> parameters, size_t elements);
// The shape that compression sees: it chooses rows. One row of numbers is a vector, not a matrix.
std::vector<uint64_t> shape_of(const ExchangedParameter& parameter);

// The outcome of one step on this rank.
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
  // Starts reducing a bucket whose gradients, in the shapes of shape_of, are complete. They may not be touched until finish().
  // All ranks give the same buckets in the same order.
  virtual unisono::Status reduce(size_t bucket, std::span<float> gradients) = 0;
  // Waits until all buckets are averaged in place.
  virtual unisono::Result<StepOutcome> finish() = 0;
};

// All ranks call them alike. They work in sub-groups, so the numbering of the group's own operations stays as it is. Errors:
// those of GradientReducer::make and Group::split.
unisono::Result<std::unique_ptr<BucketReducer>> make_library_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                     const unisono::Compression& compression);
unisono::Result<std::unique_ptr<BucketReducer>> make_baseline_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                      const GradientCompression& compression);

}  // namespace language_model

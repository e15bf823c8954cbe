// Averages buckets of whole parameters over a group. The operations move fewer bytes than the parameters have.
//
// One implementation is the library's GradientReducer. The others are published methods, which serve for comparison
// (src/lab/compressors, src/compressors). Their operations run while the backward pass computes, but they have no thread of
// their own that starts operations. If an operation needs the result of another one, it is started only in the caller's next
// call. Each rank keeps the values that it did not send, and sends them later (error feedback).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// Adjacent parameters whose gradients are reduced together.
struct Bucket {
  size_t offset = 0, count = 0;  // The bucket has the values [offset, offset + count) of the array with all parameters' values.
  uint32_t first = 0;            // number of the bucket's first parameter
  std::vector<ExchangedParameter> parameters;
};
// Divides the parameters into buckets. It begins with the last parameters, because the backward pass completes their gradients
// first. A bucket takes parameters until it has at least `elements` values.
std::vector<Bucket> make_buckets(std::span<const ExchangedParameter> parameters, size_t elements);
// Returns the shape that the compression sees, in which it selects rows. A parameter with a single row counts as a vector, not
// as a matrix.
std::vector<uint64_t> shape_of(const ExchangedParameter& parameter);

// This rank's report of one step.
struct StepOutcome {
  bool applied = true;  // false: the gradients of some rank were not finite, so all ranks must skip the step
  uint64_t operations = 0, sent_bytes = 0;
  // number of values in all gradients, and number of 4-byte values that were passed to collectives
  uint64_t elements = 0, payload = 0;
  std::string off = {};                    // why compression was off for some gradients; empty: it was on for all
  std::vector<std::string> warnings = {};  // warnings that are new in this step
};

class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  // Starts to reduce a bucket. `gradients` must be complete and have the shapes of shape_of(). The caller must not use them
  // until finish() has returned. All ranks must pass the same buckets in the same order.
  virtual unisono::Status reduce(size_t bucket, std::span<float> gradients) = 0;
  // Waits until the gradients of all buckets have been replaced by their averages.
  virtual unisono::Result<StepOutcome> finish() = 0;
};

// All ranks must call these functions with equal arguments. The reducers work in subgroups, so they do not change the operation
// numbers of `group`. The possible errors are those of GradientReducer::make and Group::split.
unisono::Result<std::unique_ptr<BucketReducer>> make_library_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                     const unisono::Compression& compression);
unisono::Result<std::unique_ptr<BucketReducer>> make_baseline_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                                      const GradientCompression& compression);

}  // namespace language_model

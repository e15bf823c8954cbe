// A compressor reduces the amount of data that the all-reduce of a group of tensors sends. It takes dense tensors and returns
// dense tensors. The result is equal on every rank.
//
// The caller runs two all-reduces: the first on the buffer that begin() returns, the second on the buffer that pack() returns.
// Each buffer is averaged in place. A compressor does not communicate, and it keeps no residual (the values that were not
// sent). The caller keeps the residual (training/reducer/error_feedback).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/row_rule.h"
#include "unisono/status.h"

namespace unisono {

// `number` identifies the tensor within the job. It is the same on all ranks.
struct GroupTensor {
  uint32_t number = 0;
  std::vector<uint64_t> shape;
};

struct CompressorInput {
  float* values = nullptr;
  // Used only for compressed tensors. If this is not null, values + residual is written to it, and `values` become zeros. If it
  // is null, this sum is written to `values`.
  float* moved = nullptr;
  bool far = false;                 // True if `moved` is written with stores that bypass the caches.
  const float* residual = nullptr;  // It has as many elements as `values`. Null stands for zeros.
  // If this is false, values + residual is compressed, and this sum is written to `values`. If it is true, values - residual is
  // compressed, and `values` do not change.
  bool difference = false;
  // One entry for each row of a compressed tensor. If the entry is not 0, the residual of the row counts as zeros. If the
  // pointer is null, all entries count as 0.
  const uint8_t* cleared = nullptr;
  // The state that the compressor keeps for this tensor. It is equal on all ranks. The caller stores it from step to step,
  // without changing it. If it is null or empty, the compressor starts without state.
  std::vector<float>* warm = nullptr;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // Takes one input for each tensor, in the order of the group. Returns the buffer of the first all-reduce. If it is empty,
  // there is no first all-reduce.
  virtual std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) = 0;
  // Returns the sum of the squares of the residuals of those tensors whose input has `moved`. Valid after begin().
  virtual double residual_energy() const = 0;
  // Returns space for numbers that the caller wants to have averaged with the first buffer. The size of this space is fixed
  // when the compressor is made. It is empty if there is no first all-reduce.
  virtual std::span<float> side_values() = 0;
  // Call this after the first all-reduce. It chooses the values to send. If a rank has a number that is not finite, all ranks
  // get the error corrupt. After this error, only the outputs of begin() have changed.
  virtual Status choose() = 0;
  // Returns the buffer of the second all-reduce. values[i] points to the elements of tensor i. Usually this is
  // CompressorInput::values.
  virtual std::span<float> pack(std::span<const float* const> values) = 0;
  // Returns where the dense tensors begin in the second buffer. The parts of compressed tensors come first, and the dense
  // tensors follow. Both are in the order of the group.
  virtual size_t dense_offset() const = 0;
  // Call this after the second all-reduce. It returns corrupt in the same case as choose(). After this error, nothing has
  // changed.
  virtual Status accept() = 0;
  // Writes the averages to the outputs, and skips outputs that are null. All elements of a tensor are written, with one
  // exception: if sends_rows(), only those rows of a compressed tensor are written that were sent.
  virtual void unpack(std::span<float* const> outputs) const = 0;

  // If this is true, the rows in rows() of a compressed tensor are sent, unchanged. If it is false, all elements of the average
  // of a compressed tensor are approximations, and rows() is empty.
  virtual bool sends_rows() const = 0;
  // Used only if sends_rows() is false. Subtracts from `values` what the last step sent for tensor i:
  // - If `averaged` is true, subtracts the average.
  // - If it is false (accept() was not called), subtracts what this rank contributed to the average. `values` must be the
  //   elements that this rank had in that step.
  // This function does not allocate.
  virtual void subtract_sent(size_t i, float* values, bool averaged) = 0;

  // Returns a hash. Ranks compare their hashes to detect that they have made different choices. Valid after choose().
  virtual uint64_t fingerprint() const = 0;
  // Returns which rows of tensor i are sent, in ascending order. The result is empty if the tensor is not compressed. Valid
  // after choose().
  virtual std::span<const uint32_t> rows(size_t i) const = 0;
  // Returns an estimate of (energy of the chosen rows) / (energy of all rows), computed from the scores. It tends to be too
  // large, because rows are chosen for their high scores. Returns 1 if nothing is compressed, and a negative number if there
  // are no scores. Valid after choose().
  virtual double captured() const = 0;
  // Returns how many bytes of working memory are used.
  virtual size_t buffer_bytes() const = 0;
  // Returns how each tensor is treated, in the order of the group.
  virtual std::span<const Decision> decisions() const = 0;
};

}  // namespace unisono

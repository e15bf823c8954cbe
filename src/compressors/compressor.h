// A compressor: it makes a group of tensors smaller for all-reduce. Dense tensors go in, and dense tensors come out that are
// equal on every rank.
//
// The caller runs two all-reduces, one after the other: on the buffer that begin() returns, then on the one that pack()
// returns. Each is averaged in place. A compressor sends nothing, waits for nothing, and keeps no residual: the caller keeps
// what was not sent (training/reducer/error_feedback).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/row_rule.h"
#include "unisono/status.h"

namespace unisono {

// The number of a tensor is the same on all ranks, and no other of the job's tensors has it.
struct GroupTensor {
  uint32_t number = 0;
  std::vector<uint64_t> shape;
};

struct CompressorInput {
  float* values = nullptr;  // all elements
  // If not null: a compressed tensor's values with the residual go there, and `values` become zeros. If null, they stay in
  // place.
  float* moved = nullptr;
  bool far = false;                 // `moved` is written past the caches
  const float* residual = nullptr;  // as many elements, or null: zeros
  bool difference = false;  // false: the residual is added to the values, and the sum is compressed. true: the values less the
                            // residual are, and the values stay
  // Per row of a compressed tensor: not 0 where the residual counts as zeros. Null: nowhere.
  const uint8_t* cleared = nullptr;
  // The compressor's state for this tensor between two steps, equal on all ranks. The caller only keeps it. Empty or null: the
  // compressor begins anew.
  std::vector<float>* warm = nullptr;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // One input per tensor, in the group's order. Returns what is to be averaged first; empty: nothing.
  virtual std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) = 0;
  // From begin() on: the sum of squares of the residuals that were added to what was moved.
  virtual double residual_energy() const = 0;
  // Numbers of the caller's that are averaged beside the first buffer: as many as it asked for when it made this, or none.
  virtual std::span<float> notes() = 0;
  // Called after the first average: chooses what is sent. corrupt: some rank has a number that is not finite; all ranks get the
  // same answer. Then only the compensated values have changed.
  virtual Status choose() = 0;
  // Returns what is to be averaged second. values: where they are sent from, the inputs' values for most.
  virtual std::span<float> pack(std::span<const float* const> values) = 0;
  // Where the dense tensors begin in that buffer, in the group's order. Before them is what was chosen of the compressed ones.
  virtual size_t dense_offset() const = 0;
  // Called after the second average. Errors: as choose(), and nothing has changed.
  virtual Status accept() = 0;
  // Writes what was averaged to the outputs: dense tensors whole, compressed ones by rows that were sent (sends_rows), others
  // as they are, or whole. Where an output is null, nothing.
  virtual void unpack(std::span<float* const> outputs) const = 0;

  // true: rows() are sent as they are, and nothing of the other rows is. false: the average of each compressed tensor is an
  // approximation in all its elements, and there are no rows().
  virtual bool sends_rows() const = 0;
  // Not for one that sends rows. Takes from `values` what the last step sent of the i-th tensor: the average. averaged: false
  // if accept() has not been called: then what this rank gave to the average, computed from `values`, which were its own in
  // that step. Allocates nothing.
  virtual void subtract_sent(size_t i, float* values, bool averaged) = 0;

  // From choose() on: ranks compare it to know that they chose alike.
  virtual uint64_t fingerprint() const = 0;
  // From choose() on: the rows of the group's i-th tensor that are sent, ascending; none of a tensor that is not compressed.
  virtual std::span<const uint32_t> rows(size_t i) const = 0;
  // From choose() on: the share of all rows' energy that the chosen ones have, by the scores they were chosen by. Too large by
  // trend: rows are chosen because their scores are high. 1 where nothing is compressed; negative: there are no scores.
  virtual double captured() const = 0;
  // Bytes of working memory.
  virtual size_t buffer_bytes() const = 0;
  // How each tensor is treated, in the group's order.
  virtual std::span<const Decision> decisions() const = 0;
};

}  // namespace unisono

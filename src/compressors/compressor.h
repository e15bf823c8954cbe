// A group of tensors made smaller for all-reduce: what goes in is dense, and what comes out is dense and equal on every rank.
//
// The caller runs the all-reduces, one after the other, on the buffers that begin() and pack() give: each is to be averaged in
// place. Nothing here sends, waits or keeps what a tensor lacks: residuals are the caller's (training/reducer/error_feedback).
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
  float* moved = nullptr;   // of a compressed tensor: what is compressed goes there, and the values become zeros. Or null: it
                            // stays in their place
  bool far = false;         // with it: past the caches
  const float* residual = nullptr;  // likewise, or null: what is compressed are the values
  bool difference = false;  // false: the residual is added to the values, and the sum is compressed. true: the values less the
                            // residual are, and the values stay
  const uint8_t* cleared =
      nullptr;  // per row of a compressed tensor: not 0 where the residual counts as zeros. Or null: nowhere
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // One input per tensor, in the group's order. What is to be averaged first; empty: nothing.
  virtual std::span<float> begin(uint64_t step, std::span<const CompressorInput> inputs) = 0;
  // From begin() on: the sum of squares of the residuals that were added to what was moved.
  virtual double residual_energy() const = 0;
  // Numbers of the caller's that are averaged beside; as many as it asked for when it made this, or none.
  virtual std::span<float> notes() = 0;
  // After that was averaged: chooses what is sent. corrupt: a number that is not finite, on some rank; the same on all of them.
  // Nothing has changed but the compensated values.
  virtual Status choose() = 0;
  // What is to be averaged then: of each compressed tensor the chosen rows, then the dense tensors, all in the group's order.
  // `values`: where they are sent from, the inputs' values for most.
  virtual std::span<float> pack(std::span<const float* const> values) = 0;
  // After that was averaged, too. Errors: as choose(), and nothing has changed.
  virtual Status accept() = 0;
  // What was averaged: rows that were sent to their places in the outputs, other rows as they are, dense tensors whole. Not
  // where an output is null.
  virtual void unpack(std::span<float* const> outputs) const = 0;

  // From choose() on: whether other ranks chose the same rows.
  virtual uint64_t fingerprint() const = 0;
  // From choose() on: rows of the group's i-th tensor that are sent, ascending; none of tensors that are not compressed.
  virtual std::span<const uint32_t> rows(size_t i) const = 0;
  // From choose() on: the share of all rows' energy that the chosen ones have, by the scores they were chosen by, which makes
  // it too large by trend: they are chosen because their scores are high. 1 where nothing is compressed; negative: there are no
  // scores.
  virtual double captured() const = 0;
  // Allocated to work in.
  virtual size_t buffer_bytes() const = 0;
  // How each tensor is treated, in the group's order.
  virtual std::span<const Decision> decisions() const = 0;
};

}  // namespace unisono

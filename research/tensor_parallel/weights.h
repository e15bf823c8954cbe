// Random weights in the shapes of models that are served in practice.
//
// Every element is a function of the seed and of its position in the whole matrix. So a rank makes only its own part, and all
// parts together are the matrix that one process would make.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensor_parallel {

// The part of one matrix that a rank has.
struct Slice {
  uint64_t matrix = 0;       // which matrix of the model
  size_t columns_total = 0;  // of the whole matrix
  size_t first_row = 0, rows = 0;
  size_t first_column = 0, columns = 0;
  float deviation = 1;
  float outlier = 1;  // factor of the outlier channels' columns; 1: there are none
};

// In trained models a few channels of the residual stream are tens of times larger than the others, and values that share a
// scale with them lose precision. Here that is one channel in 512, as 8 of 4096. The gains of the norms undo the factor, as
// trained gains do.
inline constexpr size_t outlier_distance = 512;
constexpr bool is_outlier(size_t channel) { return channel % outlier_distance == 7; }

// Row i of the slice starts at out + i * stride. Bell-shaped: the sum of four uniform values.
void fill(uint64_t seed, const Slice& slice, float* out, size_t stride);

}  // namespace tensor_parallel

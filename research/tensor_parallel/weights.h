// Generates random weights with the shapes of a real model.
//
// Every element depends only on the seed and on its position in the whole matrix. Therefore a rank can generate just its own
// part. All parts together are equal to the matrix that a single process would generate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensor_parallel {

// The part of a matrix that one rank has.
struct Slice {
  uint64_t matrix = 0;       // number of the matrix in the model
  size_t columns_total = 0;  // number of columns of the whole matrix
  size_t first_row = 0, rows = 0;
  size_t first_column = 0, columns = 0;
  float deviation = 1;
  float outlier = 1;  // The columns of outlier channels are multiplied by this. 1: there are no outliers.
};

// In trained models, a few channels of the residual stream are tens of times larger than the others. If other values share a
// scale with them, these lose precision. Here one channel in 512 is such an outlier, which makes 8 of 4096 channels. The gains
// of the norms undo the factor, as they do in trained models.
inline constexpr size_t outlier_distance = 512;
constexpr bool is_outlier(size_t channel) { return channel % outlier_distance == 7; }

// Writes random values. Row i of the slice starts at out + i * stride. Each value is the sum of four uniform values, so its
// distribution is bell-shaped.
void fill(uint64_t seed, const Slice& slice, float* out, size_t stride);

}  // namespace tensor_parallel

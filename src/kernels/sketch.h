// The error-feedback kernel for the rows of a matrix. In one pass it adds the residual of the step before to a row, and
// multiplies the row by a few directions: its sketch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono::kernels {

// values[i][c] += residual[i][c], then sketch[i][j] = scale * sum over c of values[i][c] * directions[j][c], in fp32; or, of a
// difference, the sum over values[i][c] - residual[i][c], and the values stay. With `moved` the sums go there, and the values
// become zeros. The order of the additions is not said: targets differ in the last bits. Any alignment of floats; nothing
// overlaps.
struct SketchTask {
  float* values = nullptr;          // rows x columns
  const float* residual = nullptr;  // likewise, or null: zeros
  bool difference = false;
  float* moved = nullptr;            // likewise, or null; not of a difference
  bool far = false;                  // what is moved goes past the caches, if it can
  const uint8_t* cleared = nullptr;  // per row: not 0 where the residual counts as zeros, whatever is there. Or null: nowhere
  const float* zeros = nullptr;      // with it: as many zeros as there are columns
  size_t rows = 0, columns = 0;
  const float* directions = nullptr;  // rank x columns
  size_t stride = 0;                  // floats from one direction to the next; 0: as many as columns
  uint32_t rank = 0;
  float scale = 1;
  float* sketch = nullptr;  // rows x rank
};
// A stride with which several directions stay in a first cache together: an odd number of its lines, so that no two of them are
// in one set. With the 4 KiB of 1024 columns they all would be, and so would the rows.
constexpr size_t direction_stride(size_t columns) { return ((columns + 15) / 16 | 1) * 16; }

// With `moved`: the sum of squares of the residual, in fp32 for each row. Else 0.
double sketch(const SketchTask& task);
double sketch_reference(const SketchTask& task);  // sums in double

}  // namespace unisono::kernels

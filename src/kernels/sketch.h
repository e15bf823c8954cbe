// The error-feedback kernel for the rows of a matrix. In one pass, it adds the residual of the previous step to each row, and
// multiplies the row by `rank` directions (vectors). These products are the sketch of the row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono::kernels {

//   values[i][c] += residual[i][c]
//   sketch[i][j] = scale * (sum over c of values[i][c] * directions[j][c]), in fp32
//
// With `difference`, the sum is over values[i][c] - residual[i][c], and `values` does not change. If `moved` is set, it gets
// the sums values + residual, and `values` becomes zeros.
//
// The order of additions is unspecified, so the results of different instruction sets differ in the last bits. Buffers may have
// any alignment of floats, and must not overlap.
struct SketchTask {
  float* values = nullptr;          // rows x columns
  const float* residual = nullptr;  // rows x columns, or null: zeros
  bool difference = false;
  float* moved = nullptr;  // rows x columns, or null; must be null with `difference`
  bool far = false;        // write `moved` with streaming stores, if the alignment allows it
  // One byte for each row, or null. If the byte of a row is not 0, the residual of the row counts as zeros.
  const uint8_t* cleared = nullptr;
  const float* zeros = nullptr;  // `columns` zeros; required with `cleared`
  size_t rows = 0, columns = 0;
  const float* directions = nullptr;  // rank x columns
  size_t stride = 0;                  // number of floats from one direction to the next; 0: `columns`
  uint32_t rank = 0;
  float scale = 1;
  float* sketch = nullptr;  // rows x rank
};
// Returns a stride with which several directions fit in the first-level cache together. The stride is an odd number of cache
// lines, so that directions map to different cache sets. With a stride of 4 KiB (1024 columns), all directions and all rows
// would map to the same set.
constexpr size_t direction_stride(size_t columns) { return ((columns + 15) / 16 | 1) * 16; }

// If `moved` is set, returns the sum of squares of the residual, summed in fp32 within each row. Otherwise returns 0.
double sketch(const SketchTask& task);
double sketch_reference(const SketchTask& task);  // scalar; adds in double

}  // namespace unisono::kernels

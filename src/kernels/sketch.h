// A sketch of a matrix: each row times a few directions, while what was left over from before is added to the row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono::kernels {

// values[i][c] += residual[i][c], then sketch[i][j] = scale * sum over c of values[i][c] * directions[j][c], in fp32; or, of a difference, the
// sum over values[i][c] - residual[i][c], and the values stay. The order of the
// additions is not said: targets differ in the last bits. Any alignment of floats; nothing overlaps.
struct SketchTask {
  float* values = nullptr;            // rows x columns
  const float* residual = nullptr;    // likewise, or null: values stay as they are
  bool difference = false;
  size_t rows = 0, columns = 0;
  const float* directions = nullptr;  // rank x columns
  uint32_t rank = 0;
  float scale = 1;
  float* sketch = nullptr;            // rows x rank
};
void sketch(const SketchTask& task);
void sketch_reference(const SketchTask& task);  // sums in double

}  // namespace unisono::kernels

// What error feedback does with each row of a matrix: a sketch of it, which is the row times a few directions, while what was left over from
// before is added to it; and putting aside what is left over now.
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
  const uint8_t* cleared = nullptr;   // per row: not 0 where the residual counts as zeros, whatever is there. Or null: nowhere
  const float* zeros = nullptr;       // with it: as many zeros as there are columns
  size_t rows = 0, columns = 0;
  const float* directions = nullptr;  // rank x columns
  uint32_t rank = 0;
  float scale = 1;
  float* sketch = nullptr;            // rows x rank
};
void sketch(const SketchTask& task);
void sketch_reference(const SketchTask& task);  // sums in double

// kept = values, then values = 0, of whole rows; the sum of squares of the rows that count, in no particular order. far: what is kept goes past
// the caches, if it can.
struct PutAsideTask {
  float* values = nullptr;             // rows x columns
  float* kept = nullptr;               // likewise
  size_t rows = 0, columns = 0;
  const uint8_t* uncounted = nullptr;  // per row: not 0 where its squares do not count. Or null: all do
  bool far = false;
};
double put_aside(const PutAsideTask& task);
double put_aside_reference(const PutAsideTask& task);

}  // namespace unisono::kernels

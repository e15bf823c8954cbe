#include "compressors/matrix_product.h"

#include <algorithm>
#include <vector>

namespace unisono {
namespace {

constexpr size_t tile_rows = 4, tile_columns = 16;
// A block of b is packed tile by tile. It stays in the cache while all rows of a are multiplied by it.
constexpr size_t block_inner = 256, block_columns = 512;
static_assert(block_inner * block_columns == matrix_product_scratch && block_columns % tile_columns == 0);

// The sums of one row of a tile. Registers can hold the sums of four rows.
struct Sums {
  float at[tile_columns] = {};
  void add(float by, const float* values) {
#pragma GCC unroll 16
    for (size_t j = 0; j < tile_columns; ++j) at[j] += by * values[j];
  }
};

// A product over a part of the inner dimension, for one tile of c. The tile is four rows or one row high.
struct Tile {
  const float* a = nullptr;  // points to the first of the rows of a
  size_t a_stride = 0;
  const float* b = nullptr;  // a packed block of b: inner x tile_columns
  float* c = nullptr;
  size_t c_stride = 0;
  size_t inner = 0, width = 0;
  bool begins = false;  // true: c is overwritten; false: the product is added to c
};

template <size_t rows>
void add_tile(const Tile& tile) {
  static_assert(rows == 1 || rows == tile_rows);
  // There are four variables instead of an array, because compilers would keep an array in memory instead of registers.
  Sums s0, s1, s2, s3;
  Sums* const all[] = {&s0, &s1, &s2, &s3};
  for (size_t r = 0; !tile.begins && r < rows; ++r) std::copy_n(tile.c + r * tile.c_stride, tile.width, all[r]->at);
  const float *const a0 = tile.a, *const a1 = a0 + (rows > 1 ? tile.a_stride : 0),
                     *const a2 = a1 + (rows > 1 ? tile.a_stride : 0), *const a3 = a2 + (rows > 1 ? tile.a_stride : 0);
  Sums t0 = s0, t1 = s1, t2 = s2, t3 = s3;
  for (size_t k = 0; k < tile.inner; ++k) {
    const float* const b = tile.b + k * tile_columns;
    t0.add(a0[k], b);
    if constexpr (rows > 1) t1.add(a1[k], b), t2.add(a2[k], b), t3.add(a3[k], b);
  }
  s0 = t0, s1 = t1, s2 = t2, s3 = t3;
  for (size_t r = 0; r < rows; ++r) std::copy_n(all[r]->at, tile.width, tile.c + r * tile.c_stride);
}

}  // namespace

void multiply(const MatrixProduct& product) {
  const auto& [a, b, c, rows, inner, columns, adds, scratch] = product;
  if (inner == 0 && !adds) std::fill_n(c, rows * columns, 0.0f);
  std::vector<float> own(scratch == nullptr ? matrix_product_scratch : 0);
  float* const packed = scratch == nullptr ? own.data() : scratch;
  for (size_t left = 0; left < columns; left += block_columns) {
    const size_t right = std::min(columns, left + block_columns);
    for (size_t first = 0; first < inner; first += block_inner) {
      const size_t depth = std::min(block_inner, inner - first);
      for (size_t k = 0; k < depth; ++k) {
        for (size_t j = left; j < right; j += tile_columns)
          std::copy_n(b + (first + k) * columns + j, std::min(tile_columns, right - j),
                      packed + (j - left) * depth + k * tile_columns);
      }
      for (size_t row = 0; row < rows;) {
        const bool whole = row + tile_rows <= rows;
        for (size_t j = left; j < right; j += tile_columns) {
          const Tile tile{.a = a + row * inner + first,
                          .a_stride = inner,
                          .b = packed + (j - left) * depth,
                          .c = c + row * columns + j,
                          .c_stride = columns,
                          .inner = depth,
                          .width = std::min(tile_columns, right - j),
                          .begins = first == 0 && !adds};
          whole ? add_tile<tile_rows>(tile) : add_tile<1>(tile);
        }
        row += whole ? tile_rows : 1;
      }
    }
  }
}

}  // namespace unisono

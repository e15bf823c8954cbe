#include "baselines/matrix_product.h"

#include <algorithm>
#include <vector>

namespace unisono {
namespace {

constexpr size_t tile_rows = 4, tile_columns = 8;  // sums that fit into the registers of every processor
constexpr size_t strip_inner = 256;                // of b, side by side in a near cache

// Some rows of c, at most tile_columns wide, plus a's times b's strip, which is as wide as a tile.
template <size_t rows>
void add_tile(const MatrixProduct& product, size_t row, size_t column, size_t first, size_t inner, const float* strip) {
  float sums[rows][tile_columns] = {};
  const size_t width = std::min(tile_columns, product.columns - column);
  float* const c = product.c + row * product.columns + column;
  for (size_t r = 0; first > 0 && r < rows; ++r) std::copy_n(c + r * product.columns, width, sums[r]);
  const float* const a = product.a + row * product.inner + first;
  for (size_t k = 0; k < inner; ++k) {
    for (size_t r = 0; r < rows; ++r) {
      const float by = a[r * product.inner + k];
      for (size_t j = 0; j < tile_columns; ++j) sums[r][j] += by * strip[k * tile_columns + j];
    }
  }
  for (size_t r = 0; r < rows; ++r) std::copy_n(sums[r], width, c + r * product.columns);
}

}  // namespace

void multiply(const MatrixProduct& product) {
  const auto& [a, b, c, rows, inner, columns] = product;
  if (inner == 0) std::fill_n(c, rows * columns, 0.0f);
  const size_t strips = (columns + tile_columns - 1) / tile_columns;
  std::vector<float> packed(std::min(inner, strip_inner) * strips * tile_columns);
  for (size_t first = 0; first < inner; first += strip_inner) {
    const size_t depth = std::min(strip_inner, inner - first);
    for (size_t k = 0; k < depth; ++k) {
      for (size_t column = 0; column < columns; column += tile_columns) {
        std::copy_n(b + (first + k) * columns + column, std::min(tile_columns, columns - column), packed.data() + column * depth + k * tile_columns);
      }
    }
    for (size_t column = 0; column < columns; column += tile_columns) {
      const float* const strip = packed.data() + column * depth;
      size_t row = 0;
      for (; row + tile_rows <= rows; row += tile_rows) add_tile<tile_rows>(product, row, column, first, depth, strip);
      for (; row < rows; ++row) add_tile<1>(product, row, column, first, depth, strip);
    }
  }
}

}  // namespace unisono

// A product of matrices whose bits are the same on every processor: each sum goes up along the inner dimension, and each
// product is rounded before it is added. Plain C++: compilers make vectors of it, since no sum is split.
#pragma once

#include <cstddef>

namespace unisono {

constexpr size_t matrix_product_scratch = 256 * 512;  // floats

// c = a b, or c += a b if `adds`. All are row-major: rows x inner times inner x columns. Nothing overlaps.
struct MatrixProduct {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  size_t rows = 0, inner = 0, columns = 0;
  bool adds = false;
  float* scratch = nullptr;  // matrix_product_scratch floats; null: multiply() allocates them
};
void multiply(const MatrixProduct& product);

}  // namespace unisono

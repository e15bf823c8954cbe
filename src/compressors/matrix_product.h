// A matrix product that gives the same bits on every processor. Each product of two numbers is rounded before it is added. Each
// sum runs in order along the inner dimension and is never split. Many sums run side by side, so compilers can vectorise the
// plain C++ code.
#pragma once

#include <cstddef>

namespace unisono {

constexpr size_t matrix_product_scratch = 256 * 512;  // MatrixProduct::scratch has this many floats.

// Computes c = a b, or c += a b if `adds` is true. The size of a is rows x inner, that of b is inner x columns. All matrices
// are row-major. They must not overlap.
struct MatrixProduct {
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  size_t rows = 0, inner = 0, columns = 0;
  bool adds = false;
  float* scratch = nullptr;  // matrix_product_scratch floats; if this is null, multiply() allocates them
};
void multiply(const MatrixProduct& product);

}  // namespace unisono

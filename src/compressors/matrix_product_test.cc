#include "compressors/matrix_product.h"

#include "compressors/compressor_test_support.h"

namespace unisono {
namespace {

using test::Values;

// The product by its definition, with the order of additions that matrix_product.h promises.
Values by_definition(const Values& a, const Values& b, size_t rows, size_t inner, size_t columns) {
  Values c(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < inner; ++k) {
      for (size_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
    }
  }
  return c;
}

TEST(MatrixProduct, equals_the_definition_bit_for_bit) {
  for (const size_t rows : {0, 1, 4, 7, 13}) {
    for (const size_t inner : {0, 1, 5, 255, 256, 257, 600}) {
      for (const size_t columns : {0, 1, 7, 8, 9, 31}) {
        const auto a = test::normals(1, 0, 0, rows * inner), b = test::normals(1, 0, 1, inner * columns);
        Values c(rows * columns, 77);
        multiply({.a = a.data(), .b = b.data(), .c = c.data(), .rows = rows, .inner = inner, .columns = columns});
        ASSERT_EQ(c, by_definition(a, b, rows, inner, columns))
            << rows << " x " << inner << " times " << inner << " x " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace unisono

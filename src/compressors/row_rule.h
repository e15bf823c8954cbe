// Decides which tensors are compressed, and how many of their rows are kept. The computation uses integers, so all ranks decide
// alike.
#pragma once

#include <cstdint>
#include <span>

#include "unisono/status.h"

namespace unisono {

// A tensor seen as a matrix. The rows are its first dimension, and the number of columns is the product of all other
// dimensions.
struct Matrix {
  uint64_t rows = 0, columns = 0;
  uint64_t elements() const { return rows * columns; }
  friend bool operator==(const Matrix&, const Matrix&) = default;
};
// If the tensor has fewer than two dimensions, the matrix has one column.
Matrix matrix_of(std::span<const uint64_t> shape);

constexpr uint32_t million = 1'000'000;  // shares are given in millionths

enum class Rounding : uint8_t { up, down };

struct RowRule {
  uint32_t ratio_ppm = 200'000;      // This share of the rows is kept, in millionths: 1 to 1'000'000.
  Rounding rounding = Rounding::up;  // how the number of kept rows is rounded; at least one row is always kept
  uint32_t rank = 4;                 // how many numbers the sketch of a row has
  // A tensor is sent whole if its compressed form would be larger than this share of the tensor (in millionths).
  uint32_t max_payload_ppm = 900'000;
  uint64_t min_elements = 1024;  // If a tensor has fewer elements than this, it is sent whole.
};
// Returns invalid if a share is outside (0, 1] or a rank is 0.
Status check(const RowRule& rule);
// Converts a share to millionths. Returns invalid if the share is NaN or outside (0, 1].
Result<uint32_t> parts_per_million(double share);

uint64_t kept_rows(const RowRule& rule, uint64_t rows);

enum class Treatment : uint8_t { skipped, dense, compressed };
struct Decision {
  Treatment treatment = Treatment::skipped;
  Matrix matrix;
  uint64_t kept = 0;        // how many rows of a compressed tensor are sent
  const char* reason = "";  // why the tensor is not compressed
  uint64_t factors = 0;     // PowerSGD: how many columns each factor of a compressed tensor has; 0: the tensor is sent by rows

  // Returns how many elements the first all-reduce has: those of the sketch, or those of the first factor.
  uint64_t sketch_elements(const RowRule& rule) const {
    return treatment == Treatment::compressed ? matrix.rows * (factors > 0 ? factors : rule.rank) : 0;
  }
  // Returns how many elements the second all-reduce has: those of the kept rows, of the second factor, or of the whole tensor.
  uint64_t value_elements() const {
    return treatment == Treatment::compressed ? (kept + factors) * matrix.columns
           : treatment == Treatment::dense    ? matrix.elements()
                                              : 0;
  }
};
Decision decide(const RowRule& rule, std::span<const uint64_t> shape);

}  // namespace unisono

// Decides which tensors are compressed, and to how many rows. It computes in integers, so all ranks decide alike.
#pragma once

#include <cstdint>
#include <span>

#include "unisono/status.h"

namespace unisono {

// A tensor as a matrix: its first dimension counts rows, the product of the others columns.
struct Matrix {
  uint64_t rows = 0, columns = 0;
  uint64_t elements() const { return rows * columns; }
  friend bool operator==(const Matrix&, const Matrix&) = default;
};
// Tensors with less than two dimensions are one column.
Matrix matrix_of(std::span<const uint64_t> shape);

constexpr uint32_t million = 1'000'000;  // shares are counted in millionths

enum class Rounding : uint8_t { up, down };

struct RowRule {
  uint32_t ratio_ppm = 200'000;        // share of rows that is kept, in millionths, 1 to 1'000'000
  Rounding rounding = Rounding::up;    // of the number of rows; at least one is kept
  uint32_t rank = 4;                   // numbers in the sketch of a row
  uint32_t max_payload_ppm = 900'000;  // above this share of its elements, a tensor is sent whole
  uint64_t min_elements = 1024;        // below, likewise
};
// invalid: a share outside (0, 1], a rank of 0.
Status check(const RowRule& rule);
// A share as the rule has it. invalid: outside (0, 1], or NaN.
Result<uint32_t> parts_per_million(double share);

uint64_t kept_rows(const RowRule& rule, uint64_t rows);

enum class Treatment : uint8_t { skipped, dense, compressed };
struct Decision {
  Treatment treatment = Treatment::skipped;
  Matrix matrix;
  uint64_t kept = 0;        // rows of a compressed tensor that are sent
  const char* reason = "";  // why it is not compressed
  uint64_t factors = 0;  // columns of the two factors that a compressed tensor travels as (power_sgd.h); 0: it travels by rows

  // Elements of the first all-reduce: the sketch, or the first factor.
  uint64_t sketch_elements(const RowRule& rule) const {
    return treatment == Treatment::compressed ? matrix.rows * (factors > 0 ? factors : rule.rank) : 0;
  }
  // Elements of the second all-reduce: the kept rows, the second factor, or the whole tensor.
  uint64_t value_elements() const {
    return treatment == Treatment::compressed ? (kept + factors) * matrix.columns
           : treatment == Treatment::dense    ? matrix.elements()
                                              : 0;
  }
};
Decision decide(const RowRule& rule, std::span<const uint64_t> shape);

}  // namespace unisono

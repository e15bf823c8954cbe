#include "compressors/row_rule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

Decision dense(Matrix matrix, const char* reason) {
  return {.treatment = Treatment::dense, .matrix = matrix, .kept = 0, .reason = reason};
}

}  // namespace

Matrix matrix_of(std::span<const uint64_t> shape) {
  Matrix matrix{.rows = shape.empty() ? 1 : shape[0], .columns = 1};
  for (size_t i = 1; i < shape.size(); ++i) matrix.columns *= shape[i];
  return matrix;
}

Status check(const RowRule& rule) {
  if (rule.ratio_ppm == 0 || rule.ratio_ppm > million)
    return {Code::invalid, concat("bad_option: a ratio of ", rule.ratio_ppm, " millionths is not in (0, 1]")};
  if (rule.rank == 0) return {Code::invalid, "bad_option: a sketch of rank 0"};
  return {};
}

Result<uint32_t> parts_per_million(double share) {
  const double parts = std::round(share * million);
  if (parts >= 1 && parts <= million) return static_cast<uint32_t>(parts);
  return Status(Code::invalid, concat("bad_option: a ratio of ", share, " is not in (0, 1]"));
}

// This is computed in integers. In floating point, 7 % of 100 rows would be rounded up to 8 rows.
uint64_t kept_rows(const RowRule& rule, uint64_t rows) {
  if (rows == 0) return 0;
  const auto added = rule.rounding == Rounding::up ? million - 1 : 0;
  return std::clamp<uint64_t>(static_cast<uint64_t>((static_cast<Wide>(rows) * rule.ratio_ppm + added) / million), 1, rows);
}

Decision decide(const RowRule& rule, std::span<const uint64_t> shape) {
  const auto matrix = matrix_of(shape);
  if (matrix.elements() == 0)
    return {.treatment = Treatment::skipped, .matrix = matrix, .kept = 0, .reason = "it has no elements"};
  if (shape.size() < 2) return dense(matrix, "it has less than two dimensions");
  if (matrix.elements() < rule.min_elements) return dense(matrix, "it is small");
  const auto kept = kept_rows(rule, matrix.rows);
  if (kept == matrix.rows) return dense(matrix, "all rows would be kept");
  const auto payload = static_cast<Wide>(kept) * matrix.columns + static_cast<Wide>(matrix.rows) * rule.rank;
  if (payload * million > static_cast<Wide>(rule.max_payload_ppm) * matrix.elements())
    return dense(matrix, "its rows and their sketch are nearly as large");
  return {.treatment = Treatment::compressed, .matrix = matrix, .kept = kept};
}

}  // namespace unisono

#include "compressors/top_k.h"

#include <utility>

#include "compressors/row_selection.h"

namespace unisono {

uint64_t kept_entries(const RowRule& rule, const Matrix& matrix) { return kept_rows(rule, matrix.rows) * matrix.columns; }

void take_largest(std::span<float> values, size_t kept, std::vector<TopKEntry>& taken) {
  std::vector<uint32_t> entries;
  select_entries(values, kept, entries);
  taken.clear();
  for (const auto index : entries) taken.push_back({.index = index, .value = std::exchange(values[index], 0.0f)});
}

}  // namespace unisono

// Local Top-K: each rank sends its own largest entries, together with their indices. ARC-Top-K is compared with this method.
// The result differs from the Top-K of the mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/row_rule.h"

namespace unisono {

struct TopKEntry {
  uint32_t index = 0;
  float value = 0;
  friend bool operator==(const TopKEntry&, const TopKEntry&) = default;
};

// Returns how many elements the rows have that the rule keeps.
uint64_t kept_entries(const RowRule& rule, const Matrix& matrix);

// Moves the `kept` entries with the largest magnitudes to `taken`, in ascending order of their indices. The lower index wins
// between equal magnitudes. The moved entries become 0 in `values`. No value may be NaN, and kept <= values.size() <= 2^32 - 1
// must hold.
void take_largest(std::span<float> values, size_t kept, std::vector<TopKEntry>& taken);

}  // namespace unisono

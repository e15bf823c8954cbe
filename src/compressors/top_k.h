// Local Top-K: each rank sends its own largest entries, at its own positions. It is the baseline for ARC-Top-K: its ranks must
// send indices too, and the result is no Top-K of the mean.
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

// As many as there are in the rows that the rule keeps.
uint64_t kept_entries(const RowRule& rule, const Matrix& matrix);

// Moves the `kept` entries that are largest in magnitude, of equal ones the lower, to `taken`, indices ascending. The values
// are what is left over then: 0 there. No value is NaN; kept <= values.size() <= 2^32 - 1.
void take_largest(std::span<float> values, size_t kept, std::vector<TopKEntry>& taken);

}  // namespace unisono

#include "compressors/row_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace unisono {
namespace {

// Keeps the `kept` rows that come first in the strict order `before`. The kept rows are not sorted.
template <typename Before>
void keep_first(std::vector<uint32_t>& rows, size_t kept, Before before) {
  if (kept < rows.size()) std::nth_element(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(kept), rows.end(), before);
  rows.resize(kept);
}

std::vector<bool> due_rows(uint32_t count, uint32_t kept, Refresh refresh) {
  std::vector<bool> due(count);
  if (refresh.every == 0 || count == 0) return due;
  const uint32_t taken = std::min((count - 1) / refresh.every + 1, kept / 2);
  const uint64_t first = refresh.step % count * taken;
  for (uint32_t k = 0; k < taken; ++k) due[(first + k) % count] = true;
  return due;
}

}  // namespace

void score_rows(const float* rows, uint32_t columns, std::span<double> scores) {
  for (double& score : scores) {
    score = 0;
    for (uint32_t j = 0; j < columns; ++j) {
      const double value = std::fabs(rows[j]) < 0x1p-126f ? 0 : rows[j];
      score += value * value;
    }
    rows += columns;
  }
}

void select_rows(std::span<const double> scores, uint32_t kept, Refresh refresh, std::vector<uint32_t>& rows) {
  UNISONO_CHECK(kept <= scores.size());
  const auto due = due_rows(static_cast<uint32_t>(scores.size()), kept, refresh);
  rows.resize(scores.size());
  std::iota(rows.begin(), rows.end(), 0u);
  keep_first(rows, kept, [&](uint32_t a, uint32_t b) {
    if (due[a] != due[b]) return bool{due[a]};
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  std::sort(rows.begin(), rows.end());
}

void random_rows(const RandomStream& stream, uint32_t count, uint32_t kept, std::vector<uint32_t>& rows) {
  UNISONO_CHECK(kept <= count);
  std::vector<uint32_t> scores(count);
  for (uint32_t i = 0; i < count; i += 4) {
    const auto words = stream.block(i / 4);
    std::copy_n(words.begin(), std::min(4u, count - i), scores.begin() + i);
  }
  rows.resize(count);
  std::iota(rows.begin(), rows.end(), 0u);
  keep_first(rows, kept, [&](uint32_t a, uint32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  std::sort(rows.begin(), rows.end());
}

void select_entries(std::span<const float> values, size_t kept, std::vector<uint32_t>& entries) {
  UNISONO_CHECK(kept <= values.size() && values.size() <= UINT32_MAX);
  entries.clear();
  if (kept == 0) return;
  // `limit` is the smallest magnitude that is kept. The loop below takes all larger entries. It takes the first entries whose
  // magnitude is `limit`, until `kept` entries are taken.
  std::vector<float> sizes(values.size());
  std::transform(values.begin(), values.end(), sizes.begin(), [](float value) { return std::fabs(value); });
  const auto least = sizes.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(sizes.begin(), least, sizes.end(), std::greater<>());
  const float limit = *least;
  auto equals = kept - static_cast<size_t>(std::count_if(sizes.begin(), least, [limit](float size) { return size > limit; }));
  entries.reserve(kept);
  for (uint32_t i = 0; i < values.size(); ++i) {
    const float size = std::fabs(values[i]);
    if (size > limit || (size == limit && equals > 0)) {
      entries.push_back(i);
      equals -= size == limit;
    }
  }
}

void Fingerprint::add(uint32_t word) {
  for (int shift = 0; shift < 32; shift += 8) hash_ = (hash_ ^ (word >> shift & 0xFF)) * 0x100000001B3;
}

}  // namespace unisono

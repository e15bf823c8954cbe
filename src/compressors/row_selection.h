// Chooses the rows of a tensor that are sent. The functions are pure: ranks that hold the same sketch choose the same rows.
//
// Source: ARC-Top-K (arXiv:2510.26709) keeps the rows whose sketches are longest. Order of ties, arithmetic and refreshing are
// ours.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/counter_random.h"

namespace unisono {

// The squared length of each row, `columns` wide, summed up in double from the left. Every product of two fp32 numbers is exact
// there, so fused arithmetic changes nothing; numbers below 2^-126 count as 0, so flushed ones do not either.
void score_rows(const float* rows, uint32_t columns, std::span<double> scores);

// Rows are also taken in turn, whatever their scores: each at least once in `every` steps.
struct Refresh {
  uint32_t every = 0;  // steps; 0: none
  uint64_t step = 0;
};
// The `kept` rows with the highest scores, of equal ones the lower; ascending. No score is NaN; kept <= scores.size().
void select_rows(std::span<const double> scores, uint32_t kept, Refresh refresh, std::vector<uint32_t>& rows);

// `kept` of `count` rows by random scores; ascending.
void random_rows(const RandomStream& stream, uint32_t count, uint32_t kept, std::vector<uint32_t>& rows);

// The `kept` entries that are largest in magnitude, of equal ones the lower; ascending.
void select_entries(std::span<const float> values, size_t kept, std::vector<uint32_t>& entries);

// FNV-1a, 64 bits, over words in little-endian order: what ranks compare to know that they chose alike.
class Fingerprint {
 public:
  void add(uint32_t word);
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace unisono

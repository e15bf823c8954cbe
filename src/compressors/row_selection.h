// Chooses which rows of a tensor are sent. The functions are pure: if ranks hold the same sketch, they choose the same rows.
//
// Source: ARC-Top-K (arXiv:2510.26709) keeps the rows whose sketches are longest. We have added how ties are ordered, how
// scores are computed, and the refresh.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/counter_random.h"

namespace unisono {

// Writes the squared length of each row, which has `columns` numbers, to `scores`. Sums are computed in double from the left.
// All machines get the same bits, because products of two fp32 numbers are exact in double and numbers below 2^-126 count as 0.
void score_rows(const float* rows, uint32_t columns, std::span<double> scores);

// Chooses some rows in turn, whatever their scores are, so that each row is sent at least once in `every` steps. At most half
// of the rows that a step sends are chosen in this way. If a step sends few rows, a row may therefore wait for more steps. If a
// step sends only one row, no row is chosen in turn.
struct Refresh {
  uint32_t every = 0;  // number of steps; 0: no rows are chosen in turn
  uint64_t step = 0;
};
// Writes the `kept` rows with the highest scores to `rows`, in ascending order. The lower index wins between rows with equal
// scores. No score may be NaN, and `kept` must not exceed scores.size().
void select_rows(std::span<const double> scores, uint32_t kept, Refresh refresh, std::vector<uint32_t>& rows);

// Gives each of `count` rows a random score, and writes the `kept` rows with the highest scores to `rows`, in ascending order.
void random_rows(const RandomStream& stream, uint32_t count, uint32_t kept, std::vector<uint32_t>& rows);

// Writes the indices of the `kept` values with the largest magnitudes to `entries`, in ascending order. The lower index wins
// between equal magnitudes.
void select_entries(std::span<const float> values, size_t kept, std::vector<uint32_t>& entries);

// A 64-bit FNV-1a hash over words in little-endian order. Ranks compare their hashes to detect that they have made different
// choices.
class Fingerprint {
 public:
  void add(uint32_t word);
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace unisono

#include "lab/averaging/averaging_random.h"

#include <cmath>
#include <utility>

namespace unisono::sim {

double AveragingRandom::uniform() {
  const uint64_t high = engine_() >> 5, low = engine_() >> 6;
  return (static_cast<double>(high) * 0x1p26 + static_cast<double>(low)) * 0x1p-53;
}

double AveragingRandom::normal() {
  if (std::exchange(has_second_normal_, false)) return second_normal_;
  double x1 = 0, x2 = 0, square = 0;
  do {
    x1 = 2 * uniform() - 1;
    x2 = 2 * uniform() - 1;
    square = x1 * x1 + x2 * x2;
  } while (square >= 1 || square == 0);
  const double factor = std::sqrt(-2 * std::log(square) / square);
  second_normal_ = factor * x1;
  has_second_normal_ = true;
  return factor * x2;
}

uint32_t AveragingRandom::at_most(uint32_t top) {
  uint32_t mask = top;
  for (uint32_t shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
  if (mask == 0) return 0;  // if top is 0, no random number is drawn, as in NumPy
  uint32_t value = 0;
  do value = static_cast<uint32_t>(engine_()) & mask;
  while (value > top);
  return value;
}

void AveragingRandom::shuffle(std::span<uint32_t> values) {
  for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[at_most(static_cast<uint32_t>(i))]);
}

}  // namespace unisono::sim

#include "elastic/roster/flat_advice.h"

#include <cmath>
#include <cstdio>

namespace unisono {

double flat_break_even(uint32_t peers, std::span<const uint32_t> dims) {
  double step = 0;
  for (const uint32_t length : dims) step += 1 - 1. / length;
  const double ratio = step / (1 - 1. / peers);
  return ratio <= 1 ? 0 : -std::expm1(-std::log(ratio) / peers);
}

std::string FlatAdvice::after(uint32_t peers, std::span<const uint32_t> dims, uint64_t expected, uint64_t absent) {
  if (said_) return {};
  seen_.push_back({expected, absent});
  sum_.expected += expected;
  sum_.absent += absent;
  if (seen_.size() > steps) {
    sum_.expected -= seen_.front().expected;
    sum_.absent -= seen_.front().absent;
    seen_.pop_front();
  }
  if (seen_.size() < steps || sum_.expected == 0 || dims.size() < 2 || peers < 2) return {};
  const double rate = static_cast<double>(sum_.absent) / static_cast<double>(sum_.expected),
               limit = flat_break_even(peers, dims);
  if (rate >= limit) return {};
  said_ = true;
  char text[256];
  std::snprintf(text, sizeof text,
                "for your information, once: in the last %zu averaging steps %.3g %% of the members of groups were absent; "
                "below %.3g %% one flat all-reduce of all %u peers sends fewer bytes",
                steps, 100 * rate, 100 * limit, peers);
  return text;
}

}  // namespace unisono

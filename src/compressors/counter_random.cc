#include "compressors/counter_random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace unisono {
namespace {

constexpr uint32_t multipliers[] = {0xD2511F53, 0xCD9E8D57}, increments[] = {0x9E3779B9, 0xBB67AE85};
constexpr int rounds = 10;

// The Box-Muller transform turns two uniform words into two normal numbers.
std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 1) * 0x1p-32, angle = 2 * std::numbers::pi * (static_cast<double>(b) * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace

PhiloxWords philox(PhiloxWords counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t a = uint64_t{multipliers[0]} * counter[0], b = uint64_t{multipliers[1]} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    for (size_t i = 0; i < key.size(); ++i) key[i] += increments[i];
  }
  return counter;
}

PhiloxWords RandomStream::block(uint32_t index) const {
  const auto high = static_cast<uint32_t>(step >> 32) & 0xFFFFFF;
  return philox({index, tensor, static_cast<uint32_t>(step), uint32_t{static_cast<uint8_t>(purpose)} << 24 | high},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

void RandomStream::normals(uint64_t first, std::span<float> out) const {
  UNISONO_CHECK(first <= normals_max && out.size() <= normals_max - first);
  for (size_t done = 0; done < out.size();) {
    const uint64_t at = first + done;
    const auto words = block(static_cast<uint32_t>(at / 4));
    const auto low = normal_pair(words[0], words[1]), high = normal_pair(words[2], words[3]);
    const float four[] = {low[0], low[1], high[0], high[1]};
    const size_t from = at % 4, count = std::min<size_t>(4 - from, out.size() - done);
    std::copy_n(four + from, count, out.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
  }
}

}  // namespace unisono

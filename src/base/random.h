// A seeded generator (SplitMix64, public algorithm by Vigna): the same seed gives the same numbers everywhere. For the
// simulator, fault choice and tests. Identities of processes come from the operating system instead.
#pragma once

#include <cstdint>

namespace unisono {

constexpr uint64_t mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__extension__ typedef unsigned __int128 Wide;  // not ISO C++, but every compiler we support has it

class Random {
 public:
  explicit constexpr Random(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() {
    const auto value = mix64(state_);
    state_ += 0x9E3779B97F4A7C15ull;
    return value;
  }
  // Uniform in [0, bound); 0 for bound 0. The bias is below 2^-32 for bounds below 2^32.
  constexpr uint64_t below(uint64_t bound) {
    return bound == 0 ? 0 : static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }
  constexpr double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  constexpr bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace unisono

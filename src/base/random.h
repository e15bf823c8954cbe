// A random generator with a seed (SplitMix64 by Vigna). Equal seeds give equal numbers on all machines. The simulator, the
// choice of injected faults, and the tests use it. The identities of processes come from the operating system's generator
// instead.
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
  // Returns a uniform number in [0, bound), or 0 if bound is 0. If the bound is below 2^32, the bias is below 2^-32.
  constexpr uint64_t below(uint64_t bound) {
    return bound == 0 ? 0 : static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }
  constexpr double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  constexpr bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace unisono

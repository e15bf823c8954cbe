// Draws the random numbers of the published averaging simulation. With the same seed, peers get the same inputs, absences and
// groups as in the authors' program. For everything else, use base/random.h.
//
// The generator is MT19937 (Matsumoto and Nishimura 1998, std::mt19937). Its outputs are used in the same way as in NumPy's
// legacy RandomState. Normal numbers are made by Marsaglia's polar method.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace unisono::sim {

class AveragingRandom {
 public:
  explicit AveragingRandom(uint32_t seed) : engine_(seed) {}

  // Returns a uniform number in [0, 1). Its 53 bits come from two outputs of the generator.
  double uniform();
  // Returns a standard normal number. The method makes two numbers at once; the second one is kept for the next call.
  double normal();
  // Returns a uniform integer in [0, top]. It draws numbers that have as many bits as top, until one is not above top.
  uint32_t at_most(uint32_t top);
  // Shuffles the values by the Fisher-Yates method, beginning with the last value.
  void shuffle(std::span<uint32_t> values);

 private:
  std::mt19937 engine_;
  double second_normal_ = 0;
  bool has_second_normal_ = false;
};

}  // namespace unisono::sim

// The random numbers of the published averaging simulation: MT19937 read as NumPy's RandomState reads it, so that one seed
// gives the inputs, absences and groups that the authors' own program gets from it. For that simulation alone; all else uses
// base/random.h.
//
// Sources: Matsumoto and Nishimura 1998 (the generator, std::mt19937); Marsaglia's polar method for normals; NumPy's legacy
// RandomState.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace unisono::sim {

class AveragingRandom {
 public:
  explicit AveragingRandom(uint32_t seed) : engine_(seed) {}

  // In [0, 1), 53 bits of two outputs.
  double uniform();
  // Normals come in pairs, of which the second waits for the next call.
  double normal();
  // Uniform in [0, top], by rejection under the smallest mask of ones that covers top.
  uint32_t at_most(uint32_t top);
  // Fisher and Yates, from the end.
  void shuffle(std::span<uint32_t> values);

 private:
  std::mt19937 engine_;
  double second_normal_ = 0;
  bool has_second_normal_ = false;
};

}  // namespace unisono::sim

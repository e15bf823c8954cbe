// The outer optimizer of local SGD, in a form that survives averages that are not exact. Pure; fp32; all vectors have as many
// elements.
//
// With reference t, values x and mean pseudo-gradient g = mean(t - x), sgd does t -= rate g, and nesterov m = momentum m + g, t
// -= rate (g + momentum m). Written here without g and m: a peer proposes the base b = t + rate (x - t), peers average their
// bases, and the reference is t' = b + momentum (b - b_before): where bases were before says what m is (Sutskever et al. 2013
// change variables alike). Thus what is averaged holds the reference, too: peers whose references have come apart agree again,
// to the bit, in all that they keep after two exact averaging steps. Averaging g alone would need them to know together when to
// average references instead, and not all know of one averaging step alike whether it was exact. (Heavy-ball momentum depends
// on references instead of bases, so it would not come to agree in any number of averaging steps.)
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "unisono/moshpit_sgd.h"

namespace unisono::internal {

class OuterOptimizer {
 public:
  // options must have passed check(). Nothing is kept, and bases are the values themselves, for plain averages of parameters.
  OuterOptimizer(const MoshpitSgdOptions& options, size_t elements);

  // At rest there.
  void begin(std::span<const float> reference);
  void propose(std::span<const float> values, std::span<float> base) const;
  // base: the mean of what was proposed; becomes the reference from now on. momentum false: of a peer that does not know where
  // the others' base was before.
  void accept(std::span<float> base, bool momentum);

  // whole: to go on with. Else what a joiner needs who accepts the next mean: less.
  void write(ByteWriter& writer, bool whole) const;
  // False, with nothing changed, if it is of other options or cut.
  bool read(ByteReader& reader, bool whole);

 private:
  bool plain() const { return rate_ == 1 && momentum_ == 0; }

  const float rate_, momentum_;
  const size_t elements_;
  std::vector<float> reference_;  // empty if plain
  std::vector<float> before_;     // the base; empty without momentum
};

}  // namespace unisono::internal

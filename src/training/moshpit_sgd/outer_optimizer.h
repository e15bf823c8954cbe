// The outer optimizer of local SGD, in a form that stays correct when averages are not exact. Pure functions of fp32 vectors of
// equal length.
//
// Let t be the reference, x the values and g = mean(t - x) the pseudo-gradient. sgd computes t -= rate g. nesterov computes m =
// momentum m + g, then t -= rate (g + momentum m). This class does without g and m. A peer proposes the base b = t + rate (x -
// t), and peers average their bases. The new reference is t' = b + momentum (b - b_before); the previous base stands for m
// (Sutskever et al. 2013 change variables in the same way).
//
// So the averaged value contains the reference. Peers whose references have drifted apart agree again, bit for bit, after two
// exact averaging steps. The alternative is to average g alone, and references from time to time. Then all peers would have to
// know together when to do that, but they do not all know whether an averaging step was exact. Heavy-ball momentum depends on
// references instead of bases, so it would never agree again.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "unisono/moshpit_sgd.h"

namespace unisono::internal {

class OuterOptimizer {
 public:
  // options must have passed check(). For plain averages of parameters it keeps nothing, and bases are the values themselves.
  OuterOptimizer(const MoshpitSgdOptions& options, size_t elements);

  // Sets the reference, with zero momentum.
  void begin(std::span<const float> reference);
  void propose(std::span<const float> values, std::span<float> base) const;
  // base: the mean of the proposed bases; on return it holds the new reference. momentum: false for a peer that does not know
  // the other peers' previous base.
  void accept(std::span<float> base, bool momentum);

  // whole: everything, for a restart. Otherwise only what a joiner needs to accept the next mean.
  void write(ByteWriter& writer, bool whole) const;
  // False if the bytes are cut or belong to other options; nothing changes then.
  bool read(ByteReader& reader, bool whole);

 private:
  bool plain() const { return rate_ == 1 && momentum_ == 0; }

  const float rate_, momentum_;
  const size_t elements_;
  std::vector<float> reference_;  // empty if plain
  std::vector<float> before_;     // the previous base; empty without momentum
};

}  // namespace unisono::internal

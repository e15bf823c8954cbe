// The outer optimizer of local SGD, in a form that stays correct if averages are not exact. The functions are pure. Their
// arguments are fp32 vectors of equal length.
//
// Let t be the reference, x the values of a peer, and g = mean(t - x) the pseudo-gradient. The option `sgd` computes t -= rate
// g. The option `nesterov` computes m = momentum m + g, then t -= rate (g + momentum m).
//
// This class computes the same without g and m. A peer proposes the base b = t + rate (x - t), and the peers average their
// bases. The new reference is t' = b + momentum (b - b_before), where b_before is the previous averaged base. The difference b
// - b_before replaces m (Sutskever et al. 2013 use the same change of variables).
//
// The averaged base contains the reference. If the references of the peers have become different, two exact averaging steps
// therefore make them equal again, bit for bit. Two alternatives were rejected:
// - averaging g in each step, and references only from time to time: all peers would have to agree on these times, but some
//   peers do not know whether an averaging step was exact;
// - heavy-ball momentum: it depends on old references, so the references of the peers would never become equal again.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "unisono/moshpit_sgd.h"

namespace unisono::internal {

class OuterOptimizer {
 public:
  // `options` must have passed check(). If parameters are averaged plainly, there is no state, and each base equals the values.
  OuterOptimizer(const MoshpitSgdOptions& options, size_t elements);

  // Sets the reference and resets the momentum to zero.
  void begin(std::span<const float> reference);
  void propose(std::span<const float> values, std::span<float> base) const;
  // `base` must hold the mean of the proposed bases. The new reference is written to it. Pass momentum = false if the previous
  // base of this peer differs from that of the other peers.
  void accept(std::span<float> base, bool momentum);

  // If `whole` is true, writes all state, for a restart. Otherwise writes only what a joining peer needs to accept the next
  // mean.
  void write(ByteWriter& writer, bool whole) const;
  // Returns false if the bytes are truncated or were written with other options. In this case nothing has changed.
  bool read(ByteReader& reader, bool whole);

 private:
  bool plain() const { return rate_ == 1 && momentum_ == 0; }

  const float rate_, momentum_;
  const size_t elements_;
  std::vector<float> reference_;  // The vector is empty if plain().
  std::vector<float> before_;     // the previous base; empty if there is no momentum
};

}  // namespace unisono::internal

// Formulae for averaging: what variances, numbers of rounds and break-evens to expect from the algorithms in
// lab/averaging/averaging.h.
//
// F1 to F6 are derived in docs/design/methods/moshpit.md, "Laws", for independent inputs of variance 1. None of them is quoted
// from the paper. (F7 is in elastic/roster/flat_advice.h.) All variances are population variances. Results are finite for all
// arguments in the stated ranges.
#pragma once

#include <cstdint>
#include <span>

namespace unisono::sim {

// F1: returns the expected variance after `round` rounds, if the grid is full (it has group^axes peers) and no peer is ever
// absent. From round `axes` on, it is 0. Requires group >= 1.
double full_grid_variance(uint32_t group, uint32_t axes, uint32_t round);
// F2: a random split into groups of these sizes multiplies the expected variance by the returned factor. Sizes must be at least
// 1. If there is only one peer, the factor is 0.
double random_split_factor(std::span<const uint32_t> sizes);
// Returns (r-1)/N + r/N^2, which is larger than F2. This expression has been attributed to the paper, but that is unconfirmed.
double attributed_split_factor(uint32_t peers, uint32_t groups);

struct AbsenceCase {
  uint32_t peers = 2;   // N in the formulae; at least 2
  double absence = 0;   // called p in the formulae: probability that a given peer is absent in a round
  uint32_t group = 32;  // called M in the formulae: number of peers in a group; at least 1
};
// F3: returns the factor by which one round of random groups multiplies the expected variance.
double random_groups_factor(const AbsenceCase& one);
// F3: returns the expected variance after `rounds` rounds of random groups.
double random_groups_variance(const AbsenceCase& one, uint32_t rounds);
// Returns how many rounds of random groups it takes until the variance is `share` times its first value: ceil(ln share / ln
// F3), but at least 1. Returns UINT32_MAX if the variance never shrinks. Requires 0 < share < 1.
uint32_t random_groups_rounds(const AbsenceCase& one, double share);
// F4: returns the expected variance after the first round, if the groups are given in advance. There are `lines` groups, and
// none of them is empty.
double first_round_variance(const AbsenceCase& one, uint32_t lines);
// F5: returns the expected number of rounds of an all-reduce that starts again whenever a peer is absent. The result is at most
// `cap`.
double restarted_rounds(const AbsenceCase& one, uint32_t cap);
// F6: returns the expected variance if each peer of a ring averages with its two neighbours.
double ring_variance(uint32_t peers, uint32_t rounds);

}  // namespace unisono::sim

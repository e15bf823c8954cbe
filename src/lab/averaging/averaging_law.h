// Formulae for averaging: expected variances, rounds and break-evens of the algorithms in lab/averaging/averaging.h.
//
// Derived in docs/design/methods/moshpit.md, "Laws" (F1 to F6; F7 is in elastic/roster/flat_advice.h), for inputs that are
// independent with variance 1; none is quoted from the paper. Variances are population variances. Numbers are finite for every
// argument that the comments allow.
#pragma once

#include <cstdint>
#include <span>

namespace unisono::sim {

// F1: a full grid of M^d peers after k rounds, no peer absent; 0 from round d on. group >= 1.
double full_grid_variance(uint32_t group, uint32_t axes, uint32_t round);
// F2: by what a random split into groups of these sizes multiplies the variance, exactly. Sizes >= 1; 0 for one peer.
double random_split_factor(std::span<const uint32_t> sizes);
// Beside F2: the expression (r-1)/N + r/N^2 that has been attributed to the paper, unconfirmed. It is larger.
double attributed_split_factor(uint32_t peers, uint32_t groups);

struct AbsenceCase {
  uint32_t peers = 2;   // N >= 2
  double absence = 0;   // p in [0, 1]
  uint32_t group = 32;  // M >= 1
};
// F3: by what one round of random groups multiplies the variance.
double random_groups_factor(const AbsenceCase& one);
// F3: after some rounds.
double random_groups_variance(const AbsenceCase& one, uint32_t rounds);
// Rounds of random regrouping until the variance has shrunk to a share of it: ceil(ln share / ln F3). 0 < share < 1; at least
// 1, and UINT32_MAX if it never shrinks.
uint32_t random_groups_rounds(const AbsenceCase& one, double share);
// F4: after the first round of any fixed grouping in so many lines, none of which is empty.
double first_round_variance(const AbsenceCase& one, uint32_t lines);
// F5: rounds of an all-reduce that starts again whenever a peer is absent, at most `cap` rounds.
double restarted_rounds(const AbsenceCase& one, uint32_t cap);
// F6: a ring of three-point averages.
double ring_variance(uint32_t peers, uint32_t rounds);

}  // namespace unisono::sim

// One round of a Moshpit All-Reduce for one chunk. The result is the mean over a line of the grid, and the new weights of the
// line's members.
//
// In the mean, each position counts with the sum of its members' weights. Afterwards, all positions have equal shares of the
// line's total weight. Therefore the sums of w and of w·x over all members stay the same (w: weight, x: value), whichever
// members are absent. After d rounds without absences, all members hold the same bits. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct LineMember {
  uint32_t position = 0;  // coordinate on the round's axis
  // Must be at least 0, and the sum of all weights must be finite. If it is 0, the member takes part without a value.
  double weight = 0;
  bool contributed = false;  // true: the member belongs to A, the set of contributors
};

// `after` and `sharers` have one entry per member of the group, indexed by rank.
struct LineWeights {
  // W, the sum of the contributors' weights. If it is 0, no contributor has a value, and the round changes nothing.
  double total = 0;
  uint32_t positions = 0;       // C, the number of different positions that contributors have
  std::vector<double> after;    // Each member's new weight, which is W / (C · sharers). Members outside A keep their weights.
  std::vector<uint32_t> order;  // ranks of the contributors, ordered by position; equal positions by rank
  // For each member: how many contributors have its position, itself included. It is 0 for members outside A.
  std::vector<uint32_t> sharers;
};
LineWeights line_weights(std::span<const LineMember> members);

// Writes the weighted mean of the contributors to `mean`. Returns the weighted variance within the group, summed over the
// elements. The last bits of the variance differ between kinds of processors.
// - weights: the result of line_weights() for these members; its `total` must be above 0
// - values: for each member, an array of `elements` numbers; it is ignored if the member has no weight or is outside A
double line_mean(const LineWeights& weights, std::span<const LineMember> members, std::span<const float* const> values,
                 size_t elements, float* mean);

}  // namespace unisono

// One round of a Moshpit All-Reduce for one chunk: the mean over a line of the grid, and the new weights.
//
// Each position counts with the weight of its members, and takes an equal part of the line's weight home. So the sums of w and
// of w·x stay what they were, whichever members are absent. After d rounds without absences all members hold the same bits.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct LineMember {
  uint32_t position = 0;     // coordinate on the round's axis
  double weight = 0;         // finite and at least 0, as is the sum of all; 0: the member takes part without a value
  bool contributed = false;  // the member is in A, the set of contributors
};

// Vectors by member have the members' length; the index is the rank in the group.
struct LineWeights {
  double total = 0;             // W, summed in the same order as the values; 0: no contributor has a value, and nothing changes
  uint32_t positions = 0;       // C: how many distinct positions contributed
  std::vector<double> after;    // by member: W / (C · sharers); unchanged for members outside A, or if W is 0
  std::vector<uint32_t> order;  // contributors by position, then rank
  std::vector<uint32_t> sharers;  // by member: contributors at its position, itself included; 0 outside A
};
LineWeights line_weights(std::span<const LineMember> members);

// Writes the weighted mean of the contributors. weights: the result of line_weights for these members, with a total above 0.
// values: by member, `elements` each; neither read nor required where the member has no weight or is outside A. Returns the
// weighted variance within the group, summed over the elements; its last bits differ between processors.
double line_mean(const LineWeights& weights, std::span<const LineMember> members, std::span<const float* const> values,
                 size_t elements, float* mean);

}  // namespace unisono

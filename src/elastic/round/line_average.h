// One round of a Moshpit All-Reduce for one chunk: the mean over a line of the grid, and how its weight is shared out again.
//
// Every position counts with the weight of those at it, and takes an equal part of the line's weight home. So the sums of w and
// of w·x stay what they were, whoever is absent; and d rounds without absences give everybody the same bits. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct LineMember {
  uint32_t position = 0;     // coordinate on the axis of the round
  double weight = 0;         // finite, 0 or more, and so the sum of all; 0: it has no value to give, but takes part
  bool contributed = false;  // it is in A
};

// Vectors by member are as long as the members, whose index is their rank in the group.
struct LineWeights {
  double total = 0;               // W, summed in the order of addition like the values; 0: nobody has a value, nothing changes
  uint32_t positions = 0;         // C, distinct ones of contributors
  std::vector<double> after;      // by member: W / (C · sharers); as before for who is not in A, or if W is 0
  std::vector<uint32_t> order;    // contributors by position, then rank
  std::vector<uint32_t> sharers;  // by member: contributors at its position, itself included; 0 for who is not in A
};
LineWeights line_weights(std::span<const LineMember> members);

// Writes the mean of the contributors with weight. weights: what line_weights gave for these members, with a total above 0.
// values: by member, `elements` each; not read, and may be null, where the member has no weight or is not in A.
// Returns the weighted variance within the group, summed over the elements; its last bits differ between processors.
double line_mean(const LineWeights& weights, std::span<const LineMember> members, std::span<const float* const> values,
                 size_t elements, float* mean);

}  // namespace unisono

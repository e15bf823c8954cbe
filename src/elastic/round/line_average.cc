#include "elastic/round/line_average.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/weighted_mean.h"

namespace unisono {

LineWeights line_weights(std::span<const LineMember> members) {
  LineWeights result;
  result.after.reserve(members.size());
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    result.after.push_back(members[rank].weight);
    if (members[rank].contributed) result.order.push_back(rank);
  }
  result.sharers.assign(members.size(), 0);
  std::stable_sort(result.order.begin(), result.order.end(),
                   [&](uint32_t a, uint32_t b) { return members[a].position < members[b].position; });

  for (auto first = result.order.begin(); first != result.order.end();) {
    const auto position = members[*first].position;
    const auto end = std::find_if(first, result.order.end(), [&](uint32_t rank) { return members[rank].position != position; });
    double weight = 0;
    for (auto at = first; at != end; ++at) {
      weight += members[*at].weight;
      result.sharers[*at] = static_cast<uint32_t>(end - first);
    }
    result.total += weight;
    ++result.positions;
    first = end;
  }
  // Divides only once, so that two members at the same position get exactly half of what a single member would get. If all
  // weights are 0, they stay 0.
  for (const auto rank : result.order)
    result.after[rank] = result.total / (static_cast<double>(result.positions) * static_cast<double>(result.sharers[rank]));
  return result;
}

double line_mean(const LineWeights& weights, std::span<const LineMember> members, std::span<const float* const> values,
                 size_t elements, float* mean) {
  UNISONO_CHECK(weights.total > 0 && values.size() == members.size());
  std::vector<kernels::WeightedSource> sources;
  sources.reserve(weights.order.size());
  uint32_t position = 0;
  for (const auto rank : weights.order) {
    const auto& member = members[rank];
    if (member.weight == 0) continue;  // such values must have no effect, even if they are NaN
    sources.push_back(
        {.values = values[rank], .weight = member.weight, .beside_previous = !sources.empty() && member.position == position});
    position = member.position;
  }
  return kernels::weighted_mean(
      {.sources = sources, .total_weight = weights.total, .mean = mean, .count = elements, .variance = true});
}

}  // namespace unisono

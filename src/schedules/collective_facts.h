// Properties in which the collectives differ.
#pragma once

#include "schedules/schedule.h"

namespace unisono {

// Returns whether values of several ranks are combined, so that the operator matters.
constexpr bool adds(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce;
}

// Returns whether one rank, the root, differs from the others in what it sends or receives.
constexpr bool is_rooted(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce || c == Collective::gather || c == Collective::scatter;
}

// input_has_blocks(): whether the input of every rank, or of the root, has a block for each rank. output_has_blocks(): whether
// the output of every rank, or of the root, has a block from each rank.
constexpr bool input_has_blocks(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::all_to_all || c == Collective::scatter;
}
constexpr bool output_has_blocks(Collective c) {
  return c == Collective::all_gather || c == Collective::all_to_all || c == Collective::gather;
}
constexpr bool has_blocks(Collective c) { return input_has_blocks(c) || output_has_blocks(c); }

}  // namespace unisono

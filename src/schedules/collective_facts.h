// How the collectives differ, each said once.
#pragma once

#include "schedules/schedule.h"

namespace unisono {

// Values of several ranks become one, so the operator counts.
constexpr bool adds(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce;
}

// One rank, the root, gives or gets what the others do not.
constexpr bool is_rooted(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce || c == Collective::gather || c == Collective::scatter;
}

// Every rank, or the root, gives each other one a block of its own; or gets one of each.
constexpr bool gives_blocks(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::all_to_all || c == Collective::scatter;
}
constexpr bool gets_blocks(Collective c) {
  return c == Collective::all_gather || c == Collective::all_to_all || c == Collective::gather;
}
constexpr bool has_blocks(Collective c) { return gives_blocks(c) || gets_blocks(c); }

}  // namespace unisono

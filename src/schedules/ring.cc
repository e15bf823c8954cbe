#include "schedules/ring.h"

namespace unisono {

// Block b starts at position b+1 and gets one contribution per hop. So it is complete when it arrives at position b. In round
// k, position p sends block p-1-k and receives block p-2-k.
void append_ring_reduce_scatter(const Team& team, std::vector<Step>& steps) {
  for (uint32_t round = 0; round + 1 < team.size(); ++round) {
    team.append(steps, {.round = round, .op = Op::send, .peer = team.after(1), .block = team.before(1 + round)});
    team.append(steps, {.round = round, .op = Op::recv_reduce, .peer = team.before(1), .block = team.before(2 + round)});
  }
}

void append_ring_all_gather(const Team& team, std::vector<Step>& steps) {
  for (uint32_t round = 0; round + 1 < team.size(); ++round) {
    team.append(steps, {.round = round, .op = Op::send, .peer = team.after(1), .block = team.before(round)});
    team.append(steps, {.round = round, .op = Op::recv_copy, .peer = team.before(1), .block = team.before(1 + round)});
  }
}

}  // namespace unisono

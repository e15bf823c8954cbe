#include "schedules/direct.h"

namespace unisono {

void append_direct_reduce_scatter(const Team& team, std::vector<Step>& steps) {
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::send, .peer = team.after(distance), .block = team.after(distance)});
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::recv_reduce, .peer = team.before(distance), .block = team.position});
}

void append_direct_all_gather(const Team& team, std::vector<Step>& steps) {
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::send, .peer = team.after(distance), .block = team.position});
  for (uint32_t distance = 1; distance < team.size(); ++distance)
    team.append(steps, {.op = Op::recv_copy, .peer = team.before(distance), .block = team.before(distance)});
}

// This function does not use a Team, whose table of world * world blocks would cost more than the schedule itself.
void append_direct_all_to_all(uint32_t world, Rank rank, std::vector<Step>& steps) {
  for (uint32_t distance = 1; distance < world; ++distance) {
    const auto peer = (rank + distance) % world;
    const auto chunk = rank * world + peer;
    steps.push_back({0, Op::send, peer, {chunk, chunk + 1}});
  }
  for (uint32_t distance = 1; distance < world; ++distance) {
    const auto peer = (rank + world - distance) % world;
    const auto chunk = peer * world + rank;
    steps.push_back({0, Op::recv_copy, peer, {chunk, chunk + 1}});
  }
}

void append_direct_reduce(const Team& team, std::vector<Step>& steps) {
  if (team.position != 0) return team.append(steps, {.op = Op::send, .peer = 0});
  for (uint32_t peer = 1; peer < team.size(); ++peer) team.append(steps, {.op = Op::recv_reduce, .peer = peer});
}

void append_direct_broadcast(const Team& team, std::vector<Step>& steps) {
  if (team.position != 0) return team.append(steps, {.op = Op::recv_copy, .peer = 0});
  for (uint32_t peer = 1; peer < team.size(); ++peer) team.append(steps, {.op = Op::send, .peer = peer});
}

void append_direct_gather(const Team& team, std::vector<Step>& steps) {
  if (team.position != 0) return team.append(steps, {.op = Op::send, .peer = 0, .block = team.position});
  for (uint32_t peer = 1; peer < team.size(); ++peer) team.append(steps, {.op = Op::recv_copy, .peer = peer, .block = peer});
}

void append_direct_scatter(const Team& team, std::vector<Step>& steps) {
  if (team.position != 0) return team.append(steps, {.op = Op::recv_copy, .peer = 0, .block = team.position});
  for (uint32_t peer = 1; peer < team.size(); ++peer) team.append(steps, {.op = Op::send, .peer = peer, .block = peer});
}

}  // namespace unisono

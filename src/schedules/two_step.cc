#include "schedules/two_step.h"

#include "base/check.h"
#include "schedules/direct.h"
#include "schedules/halving_doubling.h"
#include "schedules/ring.h"

namespace unisono {

void append_reduce_scatter(ScheduleKind kind, const Team& team, std::vector<Step>& steps) {
  switch (kind) {
    case ScheduleKind::two_step:
    case ScheduleKind::direct: return append_direct_reduce_scatter(team, steps);
    case ScheduleKind::ring: return append_ring_reduce_scatter(team, steps);
    case ScheduleKind::halving_doubling: return append_halving_reduce_scatter(team, steps);
    default: UNISONO_CHECK(!"a kind with a reduce-scatter");
  }
}

void append_all_gather(ScheduleKind kind, const Team& team, std::vector<Step>& steps) {
  switch (kind) {
    case ScheduleKind::two_step:
    case ScheduleKind::direct: return append_direct_all_gather(team, steps);
    case ScheduleKind::ring: return append_ring_all_gather(team, steps);
    case ScheduleKind::halving_doubling: return append_doubling_all_gather(team, steps);
    default: UNISONO_CHECK(!"a kind with an all-gather");
  }
}

uint32_t half_rounds(ScheduleKind kind, uint32_t size) {
  if (size <= 1) return 0;
  switch (kind) {
    case ScheduleKind::two_step:
    case ScheduleKind::direct: return 1;
    case ScheduleKind::ring: return size - 1;
    case ScheduleKind::halving_doubling: return log2_ceil(size);
    default: UNISONO_CHECK(!"a kind in two halves");
  }
  return 0;
}

void append_two_step(ScheduleKind kind, Team team, std::vector<Step>& steps) {
  append_reduce_scatter(kind, team, steps);
  team.first_round += half_rounds(kind, team.size());
  append_all_gather(kind, team, steps);
}

void append_reduce_in_two_steps(ScheduleKind kind, Team team, uint32_t root, std::vector<Step>& steps) {
  append_reduce_scatter(kind, team, steps);
  team.first_round += half_rounds(kind, team.size());
  if (team.position != root) return team.append(steps, {.op = Op::send, .peer = root, .block = team.position});
  for (uint32_t distance = 1; distance < team.size(); ++distance) {
    const auto peer = team.before(distance);
    team.append(steps, {.op = Op::recv_copy, .peer = peer, .block = peer});
  }
}

void append_broadcast_in_two_steps(ScheduleKind kind, const std::vector<Rank>& order, Rank rank, std::vector<Step>& steps) {
  const auto root = order.front();
  if (rank == root) {
    for (uint32_t chunk = 0; chunk + 1 < order.size(); ++chunk)
      steps.push_back({0, Op::send, order[chunk + 1], {chunk, chunk + 1}});
    return;
  }
  Team others = team_in_order({order.begin() + 1, order.end()}, rank);
  for (uint32_t block = 0; block < others.size(); ++block) others.blocks[block] = {block, block + 1};
  others.first_round = 1;
  steps.push_back({0, Op::recv_copy, root, others.blocks[others.position]});
  append_all_gather(kind, others, steps);
}

}  // namespace unisono

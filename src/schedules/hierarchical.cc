#include "schedules/hierarchical.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "schedules/direct.h"
#include "schedules/one_shot.h"
#include "schedules/tree.h"
#include "schedules/two_step.h"

namespace unisono {
namespace {

using enum ScheduleKind;

bool has_leader(ScheduleKind inner) { return inner == tree || inner == direct; }

// In a host group with `size` members, position p owns the units floor(p*units/size) … floor((p+1)*units/size) - 1. Returns the
// first of these units.
uint32_t first_unit(uint32_t position, uint32_t size, uint32_t units) {
  return static_cast<uint32_t>(uint64_t{position} * units / size);
}

uint32_t owner_of(uint32_t unit, uint32_t size, uint32_t units) {
  return static_cast<uint32_t>(((uint64_t{unit} + 1) * size + units - 1) / units) - 1;
}

struct Plan {
  const HostGroups& host_groups;
  Rank rank;
  ScheduleKind inner;
  ScheduleKind outer;
  uint32_t units;
  uint32_t parts;         // number of chunks in each unit; depends on the schedule kind `outer`
  uint32_t host_group;    // index of the rank's host group
  uint32_t inner_rounds;  // number of rounds that one phase inside the largest host group takes
  uint32_t outer_rounds;

  // Returns the team of a phase inside the rank's host group.
  Team inside(uint32_t first_round) const {
    const auto& members = host_groups[host_group];
    const auto size = static_cast<uint32_t>(members.size());
    Team team = team_of_one_block(members, rank, {0, units * parts});
    team.first_round = first_round;
    if (has_leader(inner)) return team;
    team.blocks.clear();
    for (uint32_t position = 0; position < size; ++position)
      team.blocks.push_back({first_unit(position, size, units) * parts, first_unit(position + 1, size, units) * parts});
    return team;
  }

  // Returns the team that exchanges a unit. It consists of the unit's owners, one in each host group.
  Team between(uint32_t unit) const {
    Team team;
    for (const auto& members : host_groups)
      team.ranks.push_back(members[has_leader(inner) ? 0 : owner_of(unit, static_cast<uint32_t>(members.size()), units)]);
    for (uint32_t part = 0; part < parts; ++part) team.blocks.push_back({unit * parts + part, unit * parts + part + 1});
    team.position = host_group;
    team.first_round = inner_rounds;
    return team;
  }
};

uint32_t leader_rounds(ScheduleKind inner, uint32_t size) { return inner == tree ? log2_ceil(size) : size > 1 ? 1 : 0; }

void append_inside_before(const Plan& plan, std::vector<Step>& steps) {
  const Team team = plan.inside(0);
  if (plan.inner == tree) return append_tree_reduce(team, steps);
  if (plan.inner == direct) return append_direct_reduce(team, steps);
  append_reduce_scatter(plan.inner, team, steps);
}

void append_between(const Plan& plan, std::vector<Step>& steps) {
  if (plan.host_groups.size() < 2) return;
  const auto own_first = steps.size();
  for (uint32_t unit = 0; unit < plan.units; ++unit) {
    const Team team = plan.between(unit);
    if (team.ranks[plan.host_group] != plan.rank) continue;
    if (plan.outer == one_shot) append_one_shot(team, steps);
    else append_two_step(plan.outer, team, steps);
  }
  // A rank that owns several units exchanges all of them at the same time.
  std::stable_sort(steps.begin() + static_cast<std::ptrdiff_t>(own_first), steps.end(),
                   [](const Step& a, const Step& b) { return a.round < b.round; });
}

void append_inside_after(const Plan& plan, std::vector<Step>& steps) {
  const Team team = plan.inside(plan.inner_rounds + plan.outer_rounds);
  if (plan.inner == tree) return append_tree_broadcast(team, steps);
  if (plan.inner == direct) return append_direct_broadcast(team, steps);
  append_all_gather(plan.inner, team, steps);
}

uint32_t largest_size(const HostGroups& host_groups) {
  size_t largest = 0;
  for (const auto& members : host_groups) largest = std::max(largest, members.size());
  return static_cast<uint32_t>(largest);
}

}  // namespace

ScheduleKind default_inner_kind() { return two_step; }

ScheduleKind default_outer_kind(uint32_t host_group_count) {
  return host_group_count <= 2 ? one_shot : host_group_count <= 16 ? two_step : halving_doubling;
}

bool is_inner_kind(ScheduleKind kind) { return facts_of(kind).inside; }
bool is_outer_kind(ScheduleKind kind) { return facts_of(kind).between; }

bool hierarchical_is_direct(const HostGroups& host_groups, ScheduleKind inner, ScheduleKind outer) {
  const auto largest = largest_size(host_groups);
  const auto host_group_count = static_cast<uint32_t>(host_groups.size());
  if (host_group_count == 1) return facts_of(inner).is_direct(largest);
  // If each host group has one rank, only the own contributions of ranks travel.
  return largest == 1 && facts_of(outer).is_direct(host_group_count);
}

// Minimises (largest share of a rank) / (even share) * (1 + units / (average size of a host group) / 16). The function computes
// in integers, so that all ranks get the same result. Scores are compared as fractions. They stay below 2^56 for 2^15 ranks.
uint32_t unit_count(const HostGroups& host_groups, ScheduleKind inner) {
  if (has_leader(inner)) return 1;
  uint64_t world = 0;
  for (const auto& members : host_groups) world += members.size();
  const uint64_t host_group_count = host_groups.size();
  std::vector<uint64_t> sizes;
  for (const auto& members : host_groups) sizes.push_back(members.size());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.size() == 1) return static_cast<uint32_t>(sizes.front());

  uint64_t best = 1;
  uint64_t best_score = 0;
  for (uint64_t units = 1; units <= 4 * world / host_group_count; ++units) {
    uint64_t share = 0;
    for (const auto size : sizes) share = std::max(share, (units + size - 1) / size * size);
    const auto score = share * (16 * world + units * host_group_count);
    if (units == 1 || score * best < best_score * units) {
      best = units;
      best_score = score;
    }
  }
  return static_cast<uint32_t>(best);
}

Schedule make_hierarchical_all_reduce(const HierarchicalRequest& request) {
  const auto& host_groups = request.host_groups;
  const auto host_group_count = static_cast<uint32_t>(host_groups.size());
  const auto largest = largest_size(host_groups);
  const auto inner = request.inner == automatic ? default_inner_kind() : request.inner;
  const auto outer = request.outer == automatic ? default_outer_kind(host_group_count) : request.outer;
  UNISONO_CHECK(is_inner_kind(inner) && is_outer_kind(outer));

  uint32_t host_group = 0;
  while (std::find(host_groups[host_group].begin(), host_groups[host_group].end(), request.rank) ==
         host_groups[host_group].end())
    ++host_group;
  const Plan plan{.host_groups = host_groups,
                  .rank = request.rank,
                  .inner = inner,
                  .outer = outer,
                  .units = unit_count(host_groups, inner),
                  .parts = host_group_count == 1 || outer == one_shot ? 1 : host_group_count,
                  .host_group = host_group,
                  .inner_rounds = has_leader(inner) ? leader_rounds(inner, largest) : half_rounds(inner, largest),
                  .outer_rounds = host_group_count == 1 ? 0
                                  : outer == one_shot   ? 1
                                                        : 2 * half_rounds(outer, host_group_count)};

  Schedule schedule;
  schedule.kind = hierarchical;
  schedule.chunk_count = plan.units * plan.parts;
  schedule.direct = hierarchical_is_direct(host_groups, inner, outer);
  schedule.every_rank_completes = outer == one_shot && host_group_count > 1;
  schedule.across_round = plan.inner_rounds;
  schedule.gather_round = plan.inner_rounds + (outer == one_shot ? plan.outer_rounds : plan.outer_rounds / 2);
  append_inside_before(plan, schedule.steps);
  append_between(plan, schedule.steps);
  append_inside_after(plan, schedule.steps);
  return schedule;
}

}  // namespace unisono

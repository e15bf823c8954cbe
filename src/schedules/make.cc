#include "schedules/make.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/concat.h"
#include "schedules/collective_facts.h"
#include "schedules/direct.h"
#include "schedules/double_tree.h"
#include "schedules/halving_doubling.h"
#include "schedules/hierarchical.h"
#include "schedules/host_groups.h"
#include "schedules/one_shot.h"
#include "schedules/ring.h"
#include "schedules/tree.h"
#include "schedules/two_step.h"

namespace unisono {
namespace {

using enum ScheduleKind;

// The schedule kinds of a collective, in order of preference.
struct Kinds {
  std::array<ScheduleKind, schedule_count> of{};
  size_t count = 0;
};

constexpr Kinds by_preference(auto takes_part) {
  Kinds kinds;
  for (uint32_t preference = 1; preference <= UINT8_MAX; ++preference) {
    for (const auto& facts : schedule_table) {
      if (facts.preference == preference && takes_part(facts)) kinds.of[kinds.count++] = facts.kind;
    }
  }
  return kinds;
}

constexpr auto kinds_by_collective = [] {
  std::array<Kinds, collective_count> all{};
  for (size_t c = 0; c < collective_count; ++c)
    all[c] = by_preference([c](const ScheduleFacts& facts) { return facts.serves(static_cast<Collective>(c)); });
  return all;
}();
constexpr auto kinds_inside = by_preference([](const ScheduleFacts& facts) { return facts.inside; });
constexpr auto kinds_between = by_preference([](const ScheduleFacts& facts) { return facts.between; });

std::span<const ScheduleKind> span_of(const Kinds& kinds) { return {kinds.of.data(), kinds.count}; }

std::string names_of(std::span<const ScheduleKind> kinds) {
  std::string list;
  for (const auto kind : kinds) list += (list.empty() ? "" : ", ") + std::string(name(kind));
  return list;
}

bool is_permutation(std::span<const Rank> ranks, uint32_t world) {
  std::vector<bool> seen(world);
  for (const auto rank : ranks) {
    if (rank >= world || seen[rank]) return false;
    seen[rank] = true;
  }
  return ranks.size() == world;
}

Status check_kinds_between(const ScheduleRequest& request) {
  if (request.inner != automatic && !is_inner_kind(request.inner))
    return {Code::unsupported, std::string("hierarchical all_reduce: no kind ") + name(request.inner) +
                                   " inside host groups; there are " + names_of(inner_kinds())};
  if (request.outer != automatic && !is_outer_kind(request.outer))
    return {Code::unsupported, std::string("hierarchical all_reduce: no kind ") + name(request.outer) +
                                   " between host groups; there are " + names_of(outer_kinds())};
  return {};
}

Status check_request(const ScheduleRequest& request) {
  const std::string what = std::string(name(request.kind)) + " " + name(request.collective) + ": ";
  const std::string of_world = concat(" a world of ", request.world);
  if (request.world == 0 || request.world > world_max)
    return {Code::invalid, concat(what, "world size ", request.world, " is not in 1 … ", world_max)};
  if (request.rank >= request.world) return {Code::invalid, concat(what, "rank ", request.rank, " is not in", of_world)};
  if (is_rooted(request.collective) && request.root >= request.world)
    return {Code::invalid, concat(what, "root ", request.root, " is not in", of_world)};
  if (!request.host_groups.empty() && request.host_groups.size() != request.world)
    return {Code::invalid, concat(what, request.host_groups.size(), " host group numbers for", of_world)};
  if (!request.ring_order.empty() && !is_permutation(request.ring_order, request.world))
    return {Code::invalid, what + "the order of the ring does not contain every rank of" + of_world + " once"};
  if (request.kind == automatic) return {Code::invalid, what + "choose() turns automatic into a kind first"};
  const auto kinds = kinds_of(request.collective);
  if (kinds.empty()) return {Code::unsupported, what + "goes between two ranks and needs no schedule"};
  if (std::find(kinds.begin(), kinds.end(), request.kind) == kinds.end())
    return {Code::unsupported, what + "no such schedule; there are " + names_of(kinds)};
  return request.kind == hierarchical ? check_kinds_between(request) : Status();
}

// Returns the team of the whole world. Rings and double trees order the ranks by host group, unless the request has a ring
// order. Other kinds use rank order.
Team team_for(const ScheduleRequest& request) {
  if (request.kind != ring && request.kind != double_tree) return team_of_world(request.world, request.rank);
  if (request.ring_order.empty())
    return team_in_order(order_by_host_group(request.host_groups, request.world, 0), request.rank);
  return team_in_order({request.ring_order.begin(), request.ring_order.end()}, request.rank);
}

void fill_all_reduce(const ScheduleRequest& request, Schedule& schedule) {
  if (request.kind == one_shot) {
    schedule.chunk_count = 1;
    schedule.every_rank_completes = request.world > 1;
    auto team = team_of_world(request.world, request.rank);
    team.blocks = {{0, 1}};
    return append_one_shot(team, schedule.steps);
  }
  if (request.kind == double_tree) {
    schedule.chunk_count = std::min(request.world, double_tree_blocks);
    schedule.gather_round = double_tree_height(request.world);
    auto team = team_for(request);
    team.blocks = {{0, 1}, {1, 2}};
    return append_double_tree(team, schedule.steps);
  }
  schedule.chunk_count = request.world;
  schedule.gather_round = half_rounds(request.kind, request.world);
  append_two_step(request.kind, team_for(request), schedule.steps);
}

void fill_broadcast(const ScheduleRequest& request, Schedule& schedule) {
  const bool ordered = request.kind == ring || request.kind == tree;
  auto order = order_by_host_group(ordered ? request.host_groups : std::span<const uint32_t>(), request.world, request.root);
  schedule.chunk_count = 1;
  if (request.kind == tree)
    return append_tree_broadcast(team_of_one_block(std::move(order), request.rank, {0, 1}), schedule.steps);
  if (request.kind == direct)
    return append_direct_broadcast(team_of_one_block(std::move(order), request.rank, {0, 1}), schedule.steps);
  schedule.chunk_count = std::max(1u, request.world - 1);
  append_broadcast_in_two_steps(request.kind, order, request.rank, schedule.steps);
}

void fill_reduce(const ScheduleRequest& request, Schedule& schedule) {
  schedule.chunk_count = 1;
  if (request.kind == tree || request.kind == direct) {
    const auto host_groups = request.kind == tree ? request.host_groups : std::span<const uint32_t>();
    const auto team = team_of_one_block(order_by_host_group(host_groups, request.world, request.root), request.rank, {0, 1});
    return request.kind == tree ? append_tree_reduce(team, schedule.steps) : append_direct_reduce(team, schedule.steps);
  }
  schedule.chunk_count = request.world;
  auto team = team_for(request);
  const auto root = std::find(team.ranks.begin(), team.ranks.end(), request.root) - team.ranks.begin();
  append_reduce_in_two_steps(request.kind, std::move(team), static_cast<uint32_t>(root), schedule.steps);
}

void fill_blocks(const ScheduleRequest& request, Schedule& schedule) {
  schedule.chunk_count = request.world;
  const auto host_groups = request.kind == tree ? request.host_groups : std::span<const uint32_t>();
  const auto team = team_in_order(order_by_host_group(host_groups, request.world, request.root), request.rank);
  if (request.collective == Collective::gather)
    return request.kind == tree ? append_tree_gather(team, schedule.steps) : append_direct_gather(team, schedule.steps);
  return request.kind == tree ? append_tree_scatter(team, schedule.steps) : append_direct_scatter(team, schedule.steps);
}

void fill_barrier(const ScheduleRequest& request, Schedule& schedule) {
  schedule.chunk_count = 1;
  schedule.every_rank_completes = request.world > 1;
  auto team = team_of_world(request.world, request.rank);
  team.blocks = {{0, 1}};
  return request.kind == one_shot ? append_one_shot(team, schedule.steps) : append_dissemination(team, schedule.steps);
}

}  // namespace

std::span<const ScheduleKind> kinds_of(Collective collective) {
  const auto number = static_cast<size_t>(collective);
  return number < collective_count ? span_of(kinds_by_collective[number]) : std::span<const ScheduleKind>();
}

std::span<const ScheduleKind> inner_kinds() { return span_of(kinds_inside); }
std::span<const ScheduleKind> outer_kinds() { return span_of(kinds_between); }

// Collectives that reduce nothing have no partial sums, so all of their schedules are direct.
bool is_direct(Collective collective, ScheduleKind kind, uint32_t world) {
  if (!adds(collective) && collective != Collective::barrier) return true;
  return facts_of(kind).is_direct(world);
}

Result<Schedule> make_schedule(const ScheduleRequest& request) {
  if (auto status = check_request(request); !status.ok()) return status;
  if (request.kind == hierarchical) {
    const auto host_groups = find_host_groups(request.host_groups, request.world);
    return make_hierarchical_all_reduce(
        {.host_groups = host_groups, .rank = request.rank, .inner = request.inner, .outer = request.outer});
  }
  Schedule schedule;
  schedule.kind = request.kind;
  schedule.direct = is_direct(request.collective, request.kind, request.world);
  switch (request.collective) {
    case Collective::all_reduce: fill_all_reduce(request, schedule); break;
    case Collective::reduce_scatter:
      schedule.chunk_count = request.world;
      append_reduce_scatter(request.kind, team_for(request), schedule.steps);
      break;
    case Collective::all_gather:
      schedule.chunk_count = request.world;
      schedule.gather_round = 0;
      append_all_gather(request.kind, team_for(request), schedule.steps);
      break;
    case Collective::broadcast: fill_broadcast(request, schedule); break;
    case Collective::reduce: fill_reduce(request, schedule); break;
    case Collective::gather:
    case Collective::scatter: fill_blocks(request, schedule); break;
    case Collective::all_to_all:
      schedule.chunk_count = request.world * request.world;
      schedule.gather_round = 0;
      append_direct_all_to_all(request.world, request.rank, schedule.steps);
      break;
    case Collective::barrier: fill_barrier(request, schedule); break;
    case Collective::send:
    case Collective::recv: break;
  }
  return schedule;
}

}  // namespace unisono

#include "schedules/cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/concat.h"
#include "schedules/test_support.h"

namespace unisono {
namespace {

using enum ScheduleKind;

// Traffic of one rank in one direction, counted from the steps of its schedule.
struct Counted {
  double batches = 0, messages = 0, chunks = 0, written = 0, reduced = 0, summed = 0;
};

Counted count(const Schedule& schedule, bool sends, const std::vector<uint32_t>& host_groups, Rank rank, bool inside) {
  Counted result;
  std::set<std::pair<uint32_t, Rank>> pairs;
  std::set<std::pair<uint32_t, uint32_t>> payloads, sums;  // (round, chunk): counts once, however many peers it has
  for (const auto& step : schedule.steps) {
    if ((step.op == Op::send) != sends) continue;
    if (!host_groups.empty() && (host_groups[rank] == host_groups[step.peer]) != inside) continue;
    const double chunks = step.chunks.end - step.chunks.begin;
    pairs.emplace(step.round, step.peer);
    for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk) {
      payloads.emplace(step.round, chunk);
      if (step.op == Op::recv_reduce) sums.emplace(step.round, chunk);
    }
    result.messages += chunks;
    result.chunks += chunks;
    if (step.op == Op::recv_reduce) result.reduced += chunks;
  }
  result.batches = static_cast<double>(pairs.size());
  result.written = static_cast<double>(payloads.size());
  result.summed = static_cast<double>(sums.size());
  return result;
}

// Counts the chunks that the rank receives in payloads for several ranks: the sender sends them to other ranks in the same
// round, too.
double count_shared(const std::vector<Schedule>& schedules, Rank rank) {
  std::map<std::tuple<Rank, uint32_t, uint32_t>, uint32_t> receivers;
  for (Rank sender = 0; sender < schedules.size(); ++sender) {
    for (const auto& step : schedules[sender].steps) {
      if (step.op != Op::send) continue;
      for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk) ++receivers[{sender, step.round, chunk}];
    }
  }
  double result = 0;
  for (const auto& step : schedules[rank].steps) {
    if (step.op == Op::send) continue;
    for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk)
      result += receivers[{step.peer, step.round, chunk}] > 1 ? 1 : 0;
  }
  return result;
}

// Counts the traffic of the busiest rank from the steps of all schedules. The unit is the tensor, which has chunk_count chunks.
// For all_to_all, it is the input of one rank.
Traffic counted_traffic(const ScheduleRequest& request, const std::vector<uint32_t>& host_groups = {}, bool inside = false) {
  Traffic result;
  const auto schedules = test::make_all(request);
  std::set<uint32_t> rounds;
  for (Rank rank = 0; rank < request.world; ++rank) {
    const double tensor = request.collective == Collective::all_to_all ? request.world : schedules[rank].chunk_count;
    const bool empty = request.collective == Collective::barrier;
    const auto out = count(schedules[rank], true, host_groups, rank, inside);
    const auto in = count(schedules[rank], false, host_groups, rank, inside);
    for (const auto& step : schedules[rank].steps)
      if (host_groups.empty() || (host_groups[rank] == host_groups[step.peer]) == inside) rounds.insert(step.round);
    result.batches = std::max({result.batches, out.batches, in.batches});
    result.messages = std::max({result.messages, out.messages, in.messages});
    result.total += empty ? 0 : out.chunks / tensor;
    result.bytes = std::max(result.bytes, empty ? 0 : std::max(out.chunks, in.chunks) / tensor);
    result.written = std::max(result.written, empty ? 0 : out.written / tensor);
    result.reduced = std::max(result.reduced, empty ? 0 : in.reduced / tensor);
    result.read = std::max(result.read, empty ? 0 : in.chunks / tensor);
    result.summed = std::max(result.summed, empty ? 0 : in.summed / tensor);
    if (host_groups.empty()) result.shared = std::max(result.shared, empty ? 0 : count_shared(schedules, rank) / tensor);
  }
  result.rounds = static_cast<double>(rounds.size());
  return result;
}

void expect_equal(const Traffic& formula, const Traffic& counted, const std::string& what) {
  EXPECT_DOUBLE_EQ(formula.rounds, counted.rounds) << what << " rounds";
  EXPECT_DOUBLE_EQ(formula.batches, counted.batches) << what << " batches";
  EXPECT_DOUBLE_EQ(formula.messages, counted.messages) << what << " messages";
  EXPECT_NEAR(formula.bytes, counted.bytes, 1e-9) << what << " bytes";
  EXPECT_NEAR(formula.written, counted.written, 1e-9) << what << " written";
  EXPECT_NEAR(formula.reduced, counted.reduced, 1e-9) << what << " reduced";
  EXPECT_NEAR(formula.read, counted.read, 1e-9) << what << " read";
  EXPECT_NEAR(formula.shared, counted.shared, 1e-9) << what << " shared";
  EXPECT_NEAR(formula.summed, counted.summed, 1e-9) << what << " summed";
  EXPECT_NEAR(formula.total, counted.total, 1e-9) << what << " total";
}

TEST(Cost, formulas_equal_the_counts_in_the_schedules) {
  for (const auto collective : test::scheduled_collectives) {
    for (const auto kind : kinds_of(collective)) {
      if (kind == hierarchical) continue;
      for (const uint32_t world : {2u, 3u, 4u, 5u, 7u, 8u, 12u, 16u, 17u, 33u}) {
        const auto what = concat(name(kind), " ", name(collective), " of ", world);
        expect_equal(traffic(collective, kind, world),
                     counted_traffic({.collective = collective, .kind = kind, .world = world}), what);
      }
    }
  }
}

TEST(Cost, a_world_of_one_costs_nothing) {
  for (const auto collective : test::scheduled_collectives)
    for (const auto kind : kinds_of(collective)) EXPECT_EQ(traffic(collective, kind, 1).messages, 0);
}

TEST(Cost, formulas_for_equal_host_groups_equal_the_counts_in_the_schedules) {
  for (const auto& [host_group_count, size] : {std::pair(2u, 4u), std::pair(3u, 2u), std::pair(4u, 4u), std::pair(5u, 3u)}) {
    std::vector<uint32_t> host_groups;
    for (uint32_t rank = 0; rank < host_group_count * size; ++rank) host_groups.push_back(rank / size);
    const auto found = find_host_groups(host_groups, host_group_count * size);
    for (const auto inner : {two_step, ring, halving_doubling, direct}) {
      for (const auto outer : {one_shot, two_step, ring, halving_doubling}) {
        const ScheduleRequest request{
            .kind = hierarchical, .world = host_group_count * size, .host_groups = host_groups, .inner = inner, .outer = outer};
        const auto load =
            unisono::load({.kind = hierarchical, .inner = inner, .outer = outer, .host_groups = found, .world = request.world});
        const auto what = concat(name(inner), " inside ", name(outer), " of ", host_group_count);
        const auto inside = counted_traffic(request, host_groups, true);
        EXPECT_DOUBLE_EQ(load.inside.rounds, inside.rounds) << what;
        // A leader first receives, and then sends as much. load() adds these two phases; counted_traffic() takes the larger
        // one.
        const double phases = inner == direct ? 2 : 1;
        EXPECT_DOUBLE_EQ(load.inside.messages, phases * inside.messages) << what;
        EXPECT_NEAR(load.inside.bytes, phases * inside.bytes, 1e-9) << what;
        EXPECT_NEAR(load.inside.reduced, inside.reduced, 1e-9) << what;
        const auto between = counted_traffic(request, host_groups, false);
        EXPECT_DOUBLE_EQ(load.between.rounds, between.rounds) << what;
        EXPECT_DOUBLE_EQ(load.between.batches, between.batches) << what;
        EXPECT_DOUBLE_EQ(load.between.messages, between.messages) << what;
        EXPECT_NEAR(load.between.bytes, between.bytes, 1e-9) << what;
        EXPECT_NEAR(load.between.reduced, between.reduced, 1e-9) << what;
        EXPECT_NEAR(load.host_group_bytes_between * host_group_count, between.total, 1e-9) << what;
      }
    }
  }
}

TEST(Cost, two_step_splits_its_bytes_by_where_the_peers_are) {
  const uint32_t numbers[] = {0, 0, 0, 1};
  const auto host_groups = find_host_groups(numbers, 4);
  const auto load = unisono::load({.kind = two_step, .host_groups = host_groups, .world = 4});
  // rank 3, alone in its host group, sends 3/4 of the tensor in each of the two phases
  EXPECT_DOUBLE_EQ(load.between.bytes, 1.5);
  EXPECT_DOUBLE_EQ(load.between.rounds, 2);
}

TEST(Cost, ring_crosses_each_border_with_one_rank) {
  const uint32_t numbers[] = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto host_groups = find_host_groups(numbers, 8);
  const auto load = unisono::load({.kind = ring, .host_groups = host_groups, .world = 8});
  EXPECT_DOUBLE_EQ(load.between.rounds, 14.0 * 2 / 8);
  EXPECT_DOUBLE_EQ(load.inside.rounds, 14.0 * 6 / 8);
  EXPECT_DOUBLE_EQ(load.host_group_bytes_between, 2 * 7.0 / 8);
  EXPECT_TRUE(load.side_by_side);
}

TEST(Cost, tree_crosses_near_the_root) {
  const uint32_t numbers[] = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto host_groups = find_host_groups(numbers, 8);
  const auto load = unisono::load({.collective = Collective::broadcast, .kind = tree, .host_groups = host_groups, .world = 8});
  EXPECT_DOUBLE_EQ(load.between.rounds, 1);
  EXPECT_DOUBLE_EQ(load.inside.rounds, 2);
  EXPECT_DOUBLE_EQ(load.between.bytes, 1);
  EXPECT_DOUBLE_EQ(load.inside.bytes, 2);
}

TEST(Cost, a_host_group_can_be_limited_as_a_whole) {
  const uint32_t numbers[] = {0, 0, 1, 1};
  const auto host_groups = find_host_groups(numbers, 4);
  const auto load = unisono::load({.kind = two_step, .host_groups = host_groups, .world = 4});
  const LinkProfile free{.bytes_per_us = 1e12, .reduce_bytes_per_us = 1e12, .slice_bytes = 1e12};
  auto shared = free;
  shared.host_bytes_per_us = 100;
  const auto time = [&](const LinkProfile& between) {
    return predicted_us({.load = load, .inside = free, .between = between, .bytes = 1e6, .largest_host_group = 2});
  };
  // Each rank sends 1.5 tensors, and two thirds of that (1 tensor) go to the other host group. So the two ranks of a host group
  // send 2 tensors there.
  EXPECT_NEAR(time(shared), 2e6 / 100, 1e-3);
  EXPECT_LT(time(free), 1);
}

TEST(Cost, ranks_that_share_cores_wait_to_be_scheduled) {
  const auto host_groups = find_host_groups(std::vector<uint32_t>(4, 0), 4);
  const auto load = unisono::load({.kind = two_step, .host_groups = host_groups, .world = 4});
  const auto time = [&](uint32_t cores) {
    const auto inside = shared_memory_profile(cores);
    return predicted_us({.load = load, .inside = inside, .between = inside, .bytes = 1e3, .largest_host_group = 4});
  };
  EXPECT_GT(time(2), time(4) + 2 * shared_memory_profile(2).switch_us);
  EXPECT_EQ(time(4), time(8));
}

TEST(Cost, host_groups_of_one_machine_share_its_cores) {
  auto link = network_tcp_profile(2);
  EXPECT_EQ(ranks_per_core(link, 1, 4), 1);
  link.host_groups_sharing = 4;
  EXPECT_EQ(ranks_per_core(link, 1, 4), 2);
  EXPECT_EQ(ranks_per_core(link, 3, 4), 6);
  // Four host groups share the 2 cores. Only three of them are in this group, so 3 ranks run on the 2 cores.
  EXPECT_EQ(ranks_per_core(link, 1, 3), 1.5);
}

TEST(Cost, on_one_host_the_cost_is_the_work_of_the_cores) {
  const auto host_groups = find_host_groups(std::vector<uint32_t>(4, 0), 4);
  const LinkProfile copied{
      .bytes_per_us = 100, .reduce_bytes_per_us = 1e12, .slice_bytes = 1, .cores = 2, .copied_by_cores = true};
  auto shared = copied;
  shared.shares_payloads = true;
  const auto time = [&](ScheduleKind kind, const LinkProfile& inside, double bytes = 1e5) {
    const auto load = unisono::load({.kind = kind, .host_groups = host_groups, .world = 4});
    return predicted_us({.load = load, .inside = inside, .between = inside, .bytes = bytes, .largest_host_group = 4});
  };
  // The factor 2 is for two ranks per core. If the kernel copies: 3 tensors. In shared memory: 1 written + 3 read + 1/4 for the
  // sum = 4.25. Half of the reads (1.5) find the payload in the core's cache and cost 5/6 less: 4.25 - 1.5 * 5/6 = 3.
  EXPECT_NEAR(time(one_shot, copied), 2 * 3e5 / 100, 1e-3);
  EXPECT_NEAR(time(one_shot, shared), 2 * 3.0e5 / 100, 1e-1);
  // If the kernel copies: 2 * 3/4 tensor. In shared memory, the reduce-scatter costs 3/4 written + 3/4 read + 1/16 for the sum.
  // The all-gather costs 1/4 written + 3/4 read - 5/16, because half of the reads cost 5/6 less. The total is 2.25.
  EXPECT_NEAR(time(two_step, copied), 2 * 1.5e5 / 100, 1e-3);
  EXPECT_NEAR(time(two_step, shared), 2 * 2.25e5 / 100, 1e-1);
  EXPECT_NEAR(time(ring, shared), 2 * 3.1875e5 / 100, 1e-1);
  // A slice is now a whole chunk (1/4 tensor), which a receiver cannot use before it is complete. That adds one chunk per
  // round, except for the first round.
  shared.slice_bytes = 1e12;
  EXPECT_NEAR(time(one_shot, shared), 2 * 3.0e5 / 100, 1e-1);
  EXPECT_NEAR(time(two_step, shared), 2 * 2.25e5 / 100 + 0.25e5 / 100, 1e-1);
  // Each rank reads three shared tensors of 1 MiB. The core's cache of 1 MiB keeps a third of them for the core's second rank.
  // So the cache saves only a third of the 1.25 tensors of above.
  EXPECT_NEAR(time(one_shot, shared, 1 << 20), 2 * (4.25 - 1.25 / 3) * (1 << 20) / 100, 1);
}

TEST(Cost, a_measured_profile_predicts_the_measured_speed) {
  const auto host_groups = find_host_groups(std::vector<uint32_t>{0, 1}, 2);
  const auto one_host = find_host_groups(std::vector<uint32_t>{0, 0}, 2);
  const LinkSpeed speed{.latency_us = 40, .bytes_per_us = 5'000};
  for (const auto& start : {shared_memory_profile(2), loopback_tcp_profile(2), network_tcp_profile(2)}) {
    const auto link = measured_profile(start, speed);
    EXPECT_EQ(link.bytes_per_us, 5'000);
    EXPECT_EQ(link.cores, start.cores);
    EXPECT_NEAR(speed_of(link).latency_us, 40, 1e-9);
    const auto& ranks = link.copied_by_cores ? one_host : host_groups;
    const auto load = unisono::load({.collective = Collective::barrier, .kind = one_shot, .host_groups = ranks, .world = 2});
    // The barrier of two ranks is one message without bytes.
    EXPECT_NEAR(predicted_us({.load = load, .inside = link, .between = link, .bytes = 0, .largest_host_group = 1}), 40, 1e-9);
  }
  EXPECT_EQ(measured_profile(network_tcp_profile(2), {.latency_us = 0.1, .bytes_per_us = 1}).latency_us, 0);
  EXPECT_EQ(measured_profile(network_tcp_profile(2), speed).host_bytes_per_us, 5'000);
}

TEST(Cost, exchanges_without_the_executor_do_not_include_its_cost) {
  auto host_groups = find_host_groups(std::vector<uint32_t>(4, 0), 4);
  uint32_t world = 4;
  auto inside = shared_memory_profile(4);
  const auto added = [&](ScheduleKind kind, double bytes, Collective collective = Collective::all_reduce,
                         bool relayed = false) {
    const auto load =
        unisono::load({.collective = collective, .kind = kind, .host_groups = host_groups, .world = world, .relayed = relayed});
    const auto time = [&](double handling_us) {
      inside.handling_us = handling_us;
      return predicted_us({.load = load, .inside = inside, .between = inside, .bytes = bytes, .largest_host_group = 4});
    };
    return time(1000) - time(0);
  };
  EXPECT_NEAR(added(one_shot, exchange_bytes_max), 0, 1e-6);
  EXPECT_NEAR(added(one_shot, exchange_bytes_max + 1024), 1000 * (3 + 3 * (1 + 1.0 / 256)), 1e-6)
      << "a message to each, and one for each slice";
  EXPECT_NEAR(added(two_step, 0), 1000 * 6, 1e-6);
  EXPECT_NEAR(added(one_shot, 0, Collective::all_reduce, true), 1000 * relayed_traffic(4).messages, 1e-6);
  for (const auto collective : {Collective::all_gather, Collective::broadcast, Collective::reduce_scatter, Collective::reduce,
                                Collective::gather, Collective::scatter, Collective::all_to_all}) {
    EXPECT_NEAR(added(direct, exchange_bytes_max, collective), 0, 1e-6) << name(collective);
    EXPECT_GT(added(direct, exchange_bytes_max + 1024, collective), 2900) << name(collective);
  }
  for (const auto collective : {Collective::all_gather, Collective::broadcast, Collective::reduce_scatter, Collective::reduce})
    EXPECT_GT(added(ring, 0, collective), 2900) << name(collective);
  EXPECT_NEAR(added(one_shot, 0, Collective::barrier), 0, 1e-6);
  host_groups = find_host_groups(std::vector<uint32_t>{0, 0, 1, 1}, 4);
  EXPECT_GT(added(one_shot, 0), 1000) << "several hosts";
  for (const uint32_t n : {exchange_ranks_max, exchange_ranks_max + 1}) {
    world = n;
    host_groups = find_host_groups(std::vector<uint32_t>(n, 0), n);
    EXPECT_EQ(added(one_shot, 0) > 0, n > exchange_ranks_max) << n;
  }
}

TEST(Cost, the_cost_grows_with_bytes_and_with_each_price) {
  const uint32_t numbers[] = {0, 0, 1, 1};
  const auto host_groups = find_host_groups(numbers, 4);
  for (const auto kind : {one_shot, two_step, ring, halving_doubling}) {
    const auto load = unisono::load({.kind = kind, .host_groups = host_groups, .world = 4});
    const auto inside = shared_memory_profile(2);
    const auto base = network_tcp_profile(2);
    const auto time = [&](const LinkProfile& between, double bytes) {
      return predicted_us({.load = load, .inside = inside, .between = between, .bytes = bytes, .largest_host_group = 2});
    };
    EXPECT_LT(time(base, 1e6), time(base, 2e6));
    auto slow = base;
    slow.latency_us *= 100;
    EXPECT_LT(time(base, 1e6), time(slow, 1e6));
    slow = base;
    slow.bytes_per_us /= 100;
    EXPECT_LT(time(base, 1e6), time(slow, 1e6));
    slow = base;
    slow.per_batch_cpu_us *= 1000;
    EXPECT_LT(time(base, 1e6), time(slow, 1e6));
  }
}

}  // namespace
}  // namespace unisono

// Compares the shares of a two-step all-reduce with the best shares, which an exhaustive search finds. Compares costs with
// counts made by hand.
#include "schedules/uneven_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "schedules/checker.h"
#include "schedules/choose.h"

namespace unisono {
namespace {

using enum ScheduleKind;

HostLinks links_of(uint32_t hosts, double rate = 100, double latency = 50) {
  HostLinks links(hosts);
  for (auto& pair : links.pairs) pair = {.latency_us = latency, .bytes_per_us = rate};
  return links;
}

std::vector<uint32_t> one_rank_each(uint32_t hosts) {
  std::vector<uint32_t> host_groups(hosts);
  std::iota(host_groups.begin(), host_groups.end(), 0u);
  return host_groups;
}

// Returns the time per byte, in us, of a two-step all-reduce with these shares and one rank per host. It is computed from the
// definition.
double two_step_time(const HostLinks& links, const std::vector<double>& shares) {
  double worst = 0;
  for (uint32_t a = 0; a < links.hosts; ++a) {
    double sent = 0, rate = 0;
    for (uint32_t b = 0; b < links.hosts; ++b) {
      if (a == b) continue;
      const auto& link = links.between(a, b);
      sent += shares[a] + shares[b];
      rate = std::max(rate, link.bytes_per_us);
      worst = std::max(worst, (shares[a] + shares[b]) / link.bytes_per_us);
    }
    worst = std::max(worst, sent / rate);
  }
  return worst;
}

std::vector<double> parts_of(const std::vector<uint32_t>& shares) {
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> parts;
  for (const auto share : shares) parts.push_back(share / all);
  return parts;
}

// Returns the shortest time of all combinations of shares in steps of 1/32.
double best_time(const HostLinks& links) {
  constexpr uint32_t steps = 32;
  double best = 1e300;
  std::vector<uint32_t> shares(links.hosts, 0);
  const auto search = [&](auto&& self, uint32_t rank, uint32_t left) -> void {
    if (rank + 1 == links.hosts) {
      shares[rank] = left;
      best = std::min(best, two_step_time(links, parts_of(shares)));
      return;
    }
    for (uint32_t share = 0; share <= left; ++share) {
      shares[rank] = share;
      self(self, rank + 1, left - share);
    }
  };
  search(search, 0, steps);
  return best;
}

TEST(UnevenLinks, similar_or_too_few_links_are_not_uneven) {
  EXPECT_EQ(UnevenLinks::find(one_rank_each(4), links_of(4)), nullptr);
  auto links = links_of(4);
  links.between(1, 2).bytes_per_us = 70;
  EXPECT_EQ(UnevenLinks::find(one_rank_each(4), links), nullptr) << "within the spread of measurements";
  links.between(1, 2).bytes_per_us = 10;
  EXPECT_NE(UnevenLinks::find(one_rank_each(4), links), nullptr);
  EXPECT_EQ(UnevenLinks::find(std::vector<uint32_t>{0, 1, 1, 0}, links), nullptr) << "two hosts have one link";
  EXPECT_EQ(UnevenLinks::find(std::vector<uint32_t>{0, 1, 4}, links), nullptr) << "a host that was not measured";
  EXPECT_EQ(UnevenLinks::find(std::vector<uint32_t>{0, 2, 3}, links), nullptr) << "the slow link is outside the group";
  EXPECT_NE(UnevenLinks::find(std::vector<uint32_t>{2, 2, 3, 1}, links), nullptr);
  EXPECT_EQ(UnevenLinks::find(one_rank_each(65), links_of(65)), nullptr);
  EXPECT_EQ(UnevenLinks::find(one_rank_each(4), HostLinks(4)), nullptr) << "nothing was measured";
  links = links_of(4, 100, 50);
  links.between(0, 3).latency_us = 5000;
  EXPECT_NE(UnevenLinks::find(one_rank_each(4), links), nullptr);
}

TEST(UnevenLinks, shares_avoid_a_slow_pair) {
  auto links = links_of(4);
  links.between(1, 2).bytes_per_us = 10;
  const auto uneven = UnevenLinks::find(one_rank_each(4), links);
  ASSERT_NE(uneven, nullptr);
  const auto& shares = uneven->shares();
  EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0u), 64u);
  EXPECT_LT(shares[1] + shares[2], 16u);
  const double equal = two_step_time(links, {0.25, 0.25, 0.25, 0.25});
  EXPECT_GT(equal / two_step_time(links, parts_of(shares)), 2.5);
  EXPECT_NEAR(uneven->cost({.kind = two_step, .fitted = true}).us_per_byte, two_step_time(links, parts_of(shares)), 1e-12);
  EXPECT_NEAR(uneven->cost({.kind = two_step}).us_per_byte, equal, 1e-12);
}

TEST(UnevenLinks, shares_spare_a_slow_host) {
  auto links = links_of(4);
  for (const uint32_t other : {0u, 1u, 3u}) links.between(2, other).bytes_per_us = 10;
  const auto uneven = UnevenLinks::find(one_rank_each(4), links);
  ASSERT_NE(uneven, nullptr);
  EXPECT_EQ(uneven->shares()[2], 0u) << "its own values go out once and the sum comes in once, and nothing else";
}

TEST(UnevenLinks, shares_are_nearly_optimal) {
  constexpr uint64_t seed = 7;
  Random random(seed);
  for (int i = 0; i < 60; ++i) {
    const auto hosts = static_cast<uint32_t>(3 + random.below(2));
    auto links = links_of(hosts);
    for (auto& pair : links.pairs) pair.bytes_per_us = 10 + static_cast<double>(random.below(200));
    const auto uneven = UnevenLinks::find(one_rank_each(hosts), links);
    if (uneven == nullptr) continue;
    EXPECT_LT(two_step_time(links, parts_of(uneven->shares())), best_time(links) * 1.08) << "seed " << seed << ", case " << i;
  }
}

TEST(UnevenLinks, ranks_of_one_host_get_equal_shares) {
  auto links = links_of(3);
  links.between(0, 1).bytes_per_us = 10;
  const auto uneven = UnevenLinks::find(std::vector<uint32_t>{0, 1, 2, 2, 1, 0}, links);
  ASSERT_NE(uneven, nullptr);
  const auto& shares = uneven->shares();
  EXPECT_NEAR(shares[2], shares[3], 1);
  EXPECT_NEAR(shares[0], shares[5], 1);
  EXPECT_GT(shares[2], 3 * shares[0]);
}

TEST(UnevenLinks, costs_are_those_of_the_schedules) {
  auto links = links_of(4, 100, 50);
  links.between(0, 2) = {.latency_us = 900, .bytes_per_us = 10};
  const auto uneven = UnevenLinks::find(one_rank_each(4), links);
  ASSERT_NE(uneven, nullptr);
  EXPECT_NEAR(uneven->cost({.kind = ring}).us_per_byte, 1.5 / 100, 1e-12) << "ranks 0 and 2 are no neighbours";
  EXPECT_EQ(uneven->cost({.kind = ring}).latency_us, 50);
  EXPECT_NEAR(uneven->cost({.kind = one_shot}).us_per_byte, 1.0 / 10, 1e-12) << "all of rank 0's tensor to rank 2";
  EXPECT_EQ(uneven->cost({.kind = one_shot}).latency_us, 900);
  EXPECT_NEAR(uneven->cost({.kind = two_step}).us_per_byte, 0.5 / 10, 1e-12);
}

TEST(UnevenLinks, a_ring_goes_around_slow_links) {
  auto links = links_of(6);
  for (const auto& [a, b] : {std::pair{0u, 1u}, {2u, 3u}, {4u, 5u}, {0u, 5u}}) links.between(a, b).bytes_per_us = 5;
  const auto uneven = UnevenLinks::find(std::vector<uint32_t>{5, 4, 3, 2, 1, 0, 3}, links);
  ASSERT_NE(uneven, nullptr);
  const auto& ring_order = uneven->ring_order();
  std::vector<Rank> sorted = ring_order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<Rank>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_NEAR(uneven->cost({.kind = ring}).us_per_byte, 12.0 / 7 / 5, 1e-12);
  EXPECT_NEAR(uneven->cost({.kind = ring, .fitted = true}).us_per_byte, 12.0 / 7 / 100, 1e-12);
}

TEST(UnevenLinks, fitted_rings_are_proved) {
  const std::vector<Rank> ring_order{3, 0, 4, 2, 1};
  for (const auto collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    std::vector<Schedule> schedules;
    for (Rank rank = 0; rank < 5; ++rank) {
      auto made = make_schedule({.collective = collective, .kind = ring, .world = 5, .rank = rank, .ring_order = ring_order});
      ASSERT_TRUE(made.ok());
      schedules.push_back(std::move(*made));
    }
    const auto verdict = check_schedules({.collective = collective, .schedules = schedules});
    EXPECT_TRUE(verdict.ok()) << verdict.status().message();
    for (const auto& step : schedules[4].steps) EXPECT_EQ(step.peer, step.op == Op::send ? 2u : 0u);
  }
}

TEST(UnevenLinks, choose_uses_shares_if_they_are_faster_and_no_kind_is_requested) {
  auto links = links_of(4, 125, 50);
  links.between(1, 2).bytes_per_us = 12.5;
  const auto host_groups = one_rank_each(4);
  const auto uneven = UnevenLinks::find(host_groups, links);
  ChooseRequest request{.bytes = 64 << 20,
                        .world = 4,
                        .host_groups = host_groups,
                        .order = Order::in_rank_order,
                        .inside = shared_memory_profile(2),
                        .between = measured_profile(network_tcp_profile(2), {.latency_us = 50, .bytes_per_us = 125}),
                        .uneven = uneven.get()};
  auto choice = choose(request);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->kind, two_step);
  EXPECT_TRUE(choice->fitted);
  EXPECT_NE(choice->reason.find("fitted"), std::string::npos) << choice->reason;
  request.kind = two_step;
  choice = choose(request);
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->fitted) << "a requested kind is not fitted";
  request.kind = automatic;
  request.collective = Collective::reduce_scatter;
  choice = choose(request);
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->fitted) << "blocks have the sizes that the caller gave";
}

}  // namespace
}  // namespace unisono

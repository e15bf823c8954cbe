#include "elastic/round/round_repair.h"

#include <gtest/gtest.h>

#include <set>

namespace unisono {
namespace {

using Requests = std::vector<FetchRequest>;
constexpr Nanos stall = 2 * second;

// Rank 3 of 5; ranks in `away` are not asked.
struct Repair {
  std::set<uint32_t> away;
  RoundRepair repair{3, 5, stall, [this](uint32_t rank) { return !away.contains(rank); }};
  Requests step(Nanos now) {
    repair.step(now);
    return repair.take_requests();
  }
};

TEST(RoundRepair, the_next_rank_is_asked_first_then_the_one_after_it) {
  Repair one;
  one.repair.want(7, false);
  EXPECT_EQ(one.step(0), (Requests{{4, 7}}));
  EXPECT_EQ(one.step(stall - 1), Requests{});
  EXPECT_EQ(one.repair.next_deadline(), stall);
  EXPECT_EQ(one.step(stall), (Requests{{0, 7}}));
}

TEST(RoundRepair, who_lacks_it_is_not_waited_for) {
  Repair one;
  one.repair.want(7, false);
  one.step(0);
  one.repair.missed(7, 0);  // rank 0 was not asked
  EXPECT_EQ(one.step(1), Requests{});
  one.repair.missed(7, 4);
  EXPECT_EQ(one.step(1), (Requests{{0, 7}}));
}

TEST(RoundRepair, who_is_gone_is_not_asked_and_not_waited_for) {
  Repair one;
  one.away = {4};
  one.repair.want(7, false);
  EXPECT_EQ(one.step(0), (Requests{{0, 7}}));
  one.away = {4, 0};
  EXPECT_EQ(one.step(1), (Requests{{1, 7}}));
}

TEST(RoundRepair, three_tries_are_all_before_the_verdict) {
  Repair one;
  one.repair.want(7, false);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.step(i * stall).size(), 1u);
  EXPECT_FALSE(one.repair.idle());
  EXPECT_EQ(one.step(3 * stall), Requests{});
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, it_is_over_when_nobody_is_left_to_ask) {
  Repair one;
  one.away = {0, 1, 2, 4};
  one.repair.want(7, false);
  EXPECT_EQ(one.step(0), Requests{});
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, what_is_decided_is_asked_for_again_after_a_pause) {
  Repair one;
  one.repair.want(7, true);
  for (const uint32_t rank : {4, 0, 1, 2}) {
    EXPECT_EQ(one.step(0), (Requests{{rank, 7}}));
    one.repair.missed(7, rank);
  }
  EXPECT_EQ(one.step(0), Requests{});
  EXPECT_EQ(one.repair.next_deadline(), stall / 4);
  EXPECT_EQ(one.step(stall / 4), (Requests{{4, 7}}));
  one.repair.got(7, 4, stall / 4);
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, who_is_giving_much_has_time_for_all_of_it) {
  Repair one;
  one.repair.want(7, false);
  one.repair.want(8, false);
  EXPECT_EQ(one.step(0), (Requests{{4, 7}, {4, 8}}));
  one.repair.got(7, 4, stall - 1);
  EXPECT_EQ(one.step(stall), Requests{});
  EXPECT_EQ(one.step(2 * stall - 1), (Requests{{0, 8}}));
}

}  // namespace
}  // namespace unisono

#include "elastic/round/round_repair.h"

#include <gtest/gtest.h>

#include <set>

namespace unisono {
namespace {

using Requests = std::vector<FetchRequest>;
constexpr Nanos stall = 2 * second;

// The repair of rank 3 of 5 members. Ranks in `away` must not be asked.
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
  one.repair.request_chunk(7, false);
  EXPECT_EQ(one.step(0), (Requests{{4, 7}}));
  EXPECT_EQ(one.step(stall - 1), Requests{});
  EXPECT_EQ(one.repair.next_deadline(), stall);
  EXPECT_EQ(one.step(stall), (Requests{{0, 7}}));
}

TEST(RoundRepair, a_member_without_the_result_is_not_waited_for) {
  Repair one;
  one.repair.request_chunk(7, false);
  one.step(0);
  one.repair.on_miss(7, 0);  // has no effect, because rank 0 was not asked
  EXPECT_EQ(one.step(1), Requests{});
  one.repair.on_miss(7, 4);
  EXPECT_EQ(one.step(1), (Requests{{0, 7}}));
}

TEST(RoundRepair, a_gone_member_is_neither_asked_nor_waited_for) {
  Repair one;
  one.away = {4};
  one.repair.request_chunk(7, false);
  EXPECT_EQ(one.step(0), (Requests{{0, 7}}));
  one.away = {4, 0};
  EXPECT_EQ(one.step(1), (Requests{{1, 7}}));
}

TEST(RoundRepair, before_the_verdict_a_chunk_is_requested_three_times) {
  Repair one;
  one.repair.request_chunk(7, false);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.step(i * stall).size(), 1u);
  EXPECT_FALSE(one.repair.idle());
  EXPECT_EQ(one.step(3 * stall), Requests{});
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, ends_if_no_member_is_left_to_ask) {
  Repair one;
  one.away = {0, 1, 2, 4};
  one.repair.request_chunk(7, false);
  EXPECT_EQ(one.step(0), Requests{});
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, a_decided_chunk_is_requested_again_after_a_pause) {
  Repair one;
  one.repair.request_chunk(7, true);
  for (const uint32_t rank : {4, 0, 1, 2}) {
    EXPECT_EQ(one.step(0), (Requests{{rank, 7}}));
    one.repair.on_miss(7, rank);
  }
  EXPECT_EQ(one.step(0), Requests{});
  EXPECT_EQ(one.repair.next_deadline(), stall / 4);
  EXPECT_EQ(one.step(stall / 4), (Requests{{4, 7}}));
  one.repair.on_result(7, 4, stall / 4);
  EXPECT_TRUE(one.repair.idle());
}

TEST(RoundRepair, each_result_extends_the_timeout_of_its_sender) {
  Repair one;
  one.repair.request_chunk(7, false);
  one.repair.request_chunk(8, false);
  EXPECT_EQ(one.step(0), (Requests{{4, 7}, {4, 8}}));
  one.repair.on_result(7, 4, stall - 1);
  EXPECT_EQ(one.step(stall), Requests{});
  EXPECT_EQ(one.step(2 * stall - 1), (Requests{{0, 8}}));
}

}  // namespace
}  // namespace unisono

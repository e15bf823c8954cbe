#include "transports/shm/shm_slots.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/concat.h"
#include "base/random.h"

namespace unisono::shm {
namespace {

constexpr auto contribution = Purpose::contribution;
constexpr auto result = Purpose::result;

TEST(ShmSlots, a_slot_is_free_when_its_last_holder_releases_it) {
  SlotPool pool({.slots = 12, .regions = 3, .quota_min = 2, .quota_max = 2});
  const uint16_t all[] = {0, 1, 2};
  const uint32_t slot = pool.take(all, result, 1);
  EXPECT_TRUE(pool.release(slot, 1));
  EXPECT_FALSE(pool.release(slot, 1)) << "twice";
  EXPECT_TRUE(pool.holds(slot, 0));
  EXPECT_TRUE(pool.release(slot, 0));
  EXPECT_TRUE(pool.release(slot, 2));
  EXPECT_EQ(pool.take(all, result, 1), slot) << "used before, and so no new page";
}

TEST(ShmSlots, released_slots_are_reused_in_order_before_new_ones) {
  SlotPool pool({.slots = 12, .regions = 1, .quota_min = 2, .quota_max = 6});
  const uint16_t only[] = {0};
  std::vector<uint32_t> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(pool.take(only, contribution, 1));
  const std::vector<uint32_t> returned{slots[2], slots[0], slots[3]};
  for (const auto slot : returned) EXPECT_TRUE(pool.release(slot, 0));
  for (const auto slot : returned) EXPECT_EQ(pool.take(only, contribution, 1), slot);
  EXPECT_EQ(pool.take(only, contribution, 1), 4u) << "the first that was never used";
}

TEST(ShmSlots, new_slots_are_added_one_at_a_time) {
  for (const uint32_t in_turn : {1u, 5u, 100u}) {
    SlotPool pool({.slots = 12, .regions = 1, .quota_min = 2, .quota_max = 6, .in_turn = in_turn});
    const uint16_t only[] = {0};
    const uint32_t cycle = std::min(in_turn, 12u);
    const auto take = [&] {
      const auto slot = pool.take(only, contribution, 1);
      EXPECT_TRUE(pool.release(slot, 0));
      return slot;
    };
    std::set<uint32_t> used{take()};
    for (uint32_t takes = 0; used.size() < cycle; ++takes) {
      ASSERT_LT(takes, 8 * cycle);
      used.insert(take());
      EXPECT_LE(used.size(), 1 + (takes + 1) / 8);
    }
    std::vector<uint32_t> turns;
    for (uint32_t i = 0; i < 3 * cycle; ++i) turns.push_back(take());
    EXPECT_EQ(std::set<uint32_t>(turns.begin(), turns.end()), used);
    for (uint32_t i = cycle; i < 3 * cycle; ++i) EXPECT_EQ(turns[i], turns[i - cycle]);
  }
}

TEST(ShmSlots, large_payloads_reuse_slots_up_to_the_byte_limit) {
  SlotPool pool({.slots = 12, .regions = 1, .quota_min = 2, .quota_max = 12, .in_turn = 8, .in_turn_bytes = 1000});
  const uint16_t only[] = {0};
  const auto used_by = [&](size_t bytes) {
    std::set<uint32_t> used;
    for (int i = 0; i < 100; ++i) {
      const auto slot = pool.take(only, contribution, bytes);
      used.insert(slot);
      EXPECT_TRUE(pool.release(slot, 0));
    }
    return used.size();
  };
  EXPECT_EQ(used_by(300), 3u);
  EXPECT_EQ(used_by(0), 8u) << "no more than in_turn are new";
  EXPECT_EQ(used_by(300), 3u) << "though more have been used";
  EXPECT_EQ(used_by(251), 3u);
  EXPECT_EQ(used_by(250), 4u);
  EXPECT_EQ(used_by(501), 2u);
  EXPECT_EQ(used_by(1'000'000), 2u) << "one is read while the other is written";
  EXPECT_EQ(used_by(1), 8u);

  std::vector<uint32_t> held;
  for (int i = 0; i < 12; ++i) held.push_back(pool.take(only, contribution, 1'000'000));
  EXPECT_EQ(std::set<uint32_t>(held.begin(), held.end()).size(), 12u) << "what is in flight has slots of its own";
  for (const auto slot : held) EXPECT_TRUE(pool.release(slot, 0));
  EXPECT_EQ(pool.take(only, contribution, 400), held[10]) << "the older of the two given back last";
  EXPECT_EQ(pool.take(only, contribution, 400), held[9]);
  EXPECT_EQ(pool.take(only, contribution, 1), held[0]);
}

TEST(ShmSlots, contributions_leave_credit_for_results) {
  SlotPool pool({.slots = 8, .regions = 2, .quota_min = 2, .quota_max = 8});
  const uint16_t one[] = {1};
  while (pool.may_take(one, contribution)) (void)pool.take(one, contribution, 1);
  EXPECT_EQ(pool.held(1, contribution), 2u);
  EXPECT_EQ(pool.available(1, result), 2u);
  EXPECT_TRUE(pool.may_take(one, result));
}

TEST(ShmSlots, a_slot_being_written_is_not_free_after_its_holders_are_gone) {
  SlotPool pool({.slots = 4, .regions = 1, .quota_min = 2, .quota_max = 2});
  const uint16_t only[] = {0};
  const uint32_t slot = pool.take(only, result, 1);
  pool.begin_writing(slot);
  pool.release_all(0);
  for (int i = 0; i < 2; ++i) EXPECT_NE(pool.take(only, result, 1), slot);
  EXPECT_NE(pool.take(only, contribution, 1), slot);
  EXPECT_FALSE(pool.may_take(only, contribution)) << "the last one is still written to";
  pool.end_writing(slot);
  ASSERT_TRUE(pool.may_take(only, contribution));
  EXPECT_EQ(pool.take(only, contribution, 1), slot);
}

TEST(ShmSlots, a_missing_slot_cannot_be_released) {
  SlotPool pool({.slots = 4, .regions = 1});
  EXPECT_FALSE(pool.release(4, 0));
  EXPECT_FALSE(pool.release(UINT32_MAX, 0));
  EXPECT_FALSE(pool.release(0, 0)) << "free";
}

TEST(ShmSlots, guaranteed_slots_are_available_whatever_other_peers_hold) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    const auto regions = static_cast<uint16_t>(1 + random.below(5));
    SlotPool pool(
        {.slots = regions * 4u + static_cast<uint32_t>(random.below(20)), .regions = regions, .quota_min = 2, .quota_max = 6});
    std::set<std::pair<uint32_t, uint16_t>> out;
    std::set<uint32_t> taken;
    for (int step = 0; step < 500; ++step) {
      if (random.chance(0.6)) {
        std::vector<uint16_t> to;
        for (uint16_t r = 0; r < regions; ++r) {
          if (random.chance(0.5)) to.push_back(r);
        }
        const Purpose purpose = random.chance(0.5) ? contribution : result;
        if (to.empty() || !pool.may_take(to, purpose)) continue;
        const uint32_t slot = pool.take(to, purpose, 1);
        for (const auto& [held, region] : out) ASSERT_NE(held, slot);
        for (const uint16_t r : to) out.emplace(slot, r);
      } else if (!out.empty()) {
        auto it = out.begin();
        std::advance(it, static_cast<long>(random.below(out.size())));
        ASSERT_TRUE(pool.release(it->first, it->second));
        out.erase(it);
      }
      for (uint16_t r = 0; r < regions; ++r) {
        for (const Purpose purpose : {contribution, result}) {
          const uint16_t only[] = {r};
          ASSERT_EQ(pool.may_take(only, purpose), pool.available(r, purpose) > 0);
          ASSERT_GE(pool.available(r, purpose) + pool.held(r, purpose), 2u);
        }
      }
    }
    for (uint16_t r = 0; r < regions; ++r) pool.release_all(r);
    EXPECT_EQ(pool.available(0, result), std::min<uint32_t>(6, 2 + pool.shared()));
  }
}

}  // namespace
}  // namespace unisono::shm

#include "engine/slot_stores.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

constexpr size_t slice = 256u << 10;

// Cost in ns per byte through the caches, and past them.
struct Machine {
  double through = 0, past = 0;
};
constexpr Machine near_cores = {.through = 0.04, .past = 0.06};
constexpr Machine far_cores = {.through = 0.25, .past = 0.06};

// Writes `times` slices. Returns how many of them bypassed the caches.
int fill(SlotStores& stores, int times, const Machine& machine, size_t bytes = slice) {
  int past = 0;
  for (int i = 0; i < times; ++i) {
    const bool way = stores.past_caches(bytes);
    past += way;
    stores.filled(bytes, static_cast<Nanos>((way ? machine.past : machine.through) * static_cast<double>(bytes)));
  }
  return past;
}

TEST(SlotStores, go_through_the_caches_between_near_cores_except_for_tries) {
  SlotStores stores;
  EXPECT_EQ(fill(stores, 256, near_cores), 0);
  EXPECT_EQ(fill(stores, 8, near_cores), 8);
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(fill(stores, 2048, near_cores), 0);
    EXPECT_EQ(fill(stores, 8, near_cores), 8);
  }
  EXPECT_FALSE(stores.past());
}

TEST(SlotStores, bypass_the_caches_between_far_cores_most_of_the_time) {
  SlotStores stores;
  EXPECT_EQ(fill(stores, 264, far_cores), 8);
  EXPECT_TRUE(stores.past());
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(fill(stores, 2048, far_cores), 2048);
    EXPECT_EQ(fill(stores, 32, far_cores), 0);
  }
  EXPECT_TRUE(stores.past());
}

TEST(SlotStores, the_loss_of_the_reader_counts_too) {
  for (const double past : {0.04, 0.03, 0.027}) {
    SlotStores stores;
    fill(stores, 264, {.through = 0.04, .past = past});
    EXPECT_FALSE(stores.past()) << past;
  }
  SlotStores stores;
  fill(stores, 264, {.through = 0.04, .past = 0.025});
  EXPECT_TRUE(stores.past());
}

TEST(SlotStores, return_to_the_caches_when_a_try_is_faster) {
  SlotStores stores;
  fill(stores, 264, far_cores);
  ASSERT_TRUE(stores.past());
  fill(stores, 2048 + 32, {.through = 0.07, .past = 0.06});
  EXPECT_FALSE(stores.past()) << "a little slower than past them: the reader's gain is more";

  fill(stores, 2048 + 8, far_cores);
  ASSERT_TRUE(stores.past());
  fill(stores, 2048 + 32, {.through = 0.08, .past = 0.06});
  EXPECT_TRUE(stores.past());
}

TEST(SlotStores, only_the_last_slices_of_a_try_through_the_caches_count) {
  for (const bool quick : {false, true}) {
    SlotStores stores;
    fill(stores, 264 + 2048, far_cores);
    ASSERT_TRUE(stores.past());
    fill(stores, 24, quick ? far_cores : near_cores);
    fill(stores, 8, quick ? near_cores : far_cores);
    EXPECT_EQ(stores.past(), !quick);
  }
}

TEST(SlotStores, slower_writes_start_a_try) {
  SlotStores stores;
  fill(stores, 264 + 100, near_cores);
  EXPECT_EQ(fill(stores, 16 + 8, far_cores), 8);
  EXPECT_TRUE(stores.past());

  SlotStores slower;
  fill(slower, 264 + 100, near_cores);
  const Machine slow{.through = 0.08, .past = 0.12};  // memory has become slower for both ways
  EXPECT_EQ(fill(slower, 16 + 8, slow), 8);
  EXPECT_FALSE(slower.past());
  fill(slower, 1, slow);
  fill(slower, 1, {.through = 0.3, .past = 0.3});
  EXPECT_EQ(fill(slower, 2046, slow), 0) << "that is usual now";

  SlotStores mixed;
  fill(mixed, 264, near_cores);
  int past = 0;
  for (int i = 0; i < 14; ++i) past += fill(mixed, 2, far_cores) + fill(mixed, 1, near_cores);
  EXPECT_EQ(past, 0);
  past = fill(mixed, 2, far_cores) + fill(mixed, 8, far_cores);
  EXPECT_EQ(past, 8) << "16 more slow ones than others";
}

TEST(SlotStores, new_pages_and_interrupted_slices_change_nothing) {
  SlotStores stores;
  fill(stores, 16, {.through = 10, .past = 10});
  fill(stores, 248, near_cores);
  EXPECT_FALSE(stores.past());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(fill(stores, 2, {.through = 100, .past = 100}), 0);
    EXPECT_EQ(fill(stores, 3, near_cores), 0);
  }

  SlotStores interrupted;
  fill(interrupted, 255, near_cores);
  fill(interrupted, 1, {.through = 100, .past = 100});
  EXPECT_EQ(fill(interrupted, 8, near_cores), 8);
  EXPECT_FALSE(interrupted.past());
}

TEST(SlotStores, a_slice_is_compared_with_slices_of_its_size) {
  SlotStores stores;
  constexpr Machine small{.through = 0.3, .past = 0.3};
  for (int i = 0; i < 32; ++i) {
    fill(stores, 4, near_cores);
    fill(stores, 4, small, 16u << 10);
  }
  EXPECT_EQ(fill(stores, 8, small, 16u << 10), 8);
  EXPECT_FALSE(stores.past());

  // Fast slices of a new size have no usual cost to be compared with, so nothing changes.
  fill(stores, 2048, near_cores);
  EXPECT_EQ(fill(stores, 8, {.through = 0.001, .past = 0.001}, 64u << 10), 8);
  EXPECT_FALSE(stores.past());
  // Slices of a new size do not count in a try. The three slices of the old size decide alone.
  fill(stores, 2048, near_cores);
  EXPECT_EQ(fill(stores, 5, small, 128u << 10) + fill(stores, 3, {.through = 0.001, .past = 0.001}), 8);
  EXPECT_TRUE(stores.past());
}

TEST(SlotStores, costs_are_forgotten_when_the_way_changes) {
  SlotStores stores;
  fill(stores, 128, far_cores, 64u << 10);
  fill(stores, 136, far_cores);
  ASSERT_TRUE(stores.past());
  fill(stores, 2048, far_cores);
  EXPECT_EQ(fill(stores, 32, far_cores, 64u << 10), 0);
  EXPECT_TRUE(stores.past());
}

TEST(SlotStores, short_slices_follow_long_ones_without_tries_and_pages_stay_in_the_caches) {
  SlotStores stores;
  EXPECT_FALSE(stores.past_caches(8192));
  fill(stores, 256, far_cores);
  EXPECT_TRUE(stores.past_caches(SlotStores::bytes_min)) << "a try";
  EXPECT_FALSE(stores.past_caches(8192));
  fill(stores, 8, far_cores);
  EXPECT_TRUE(stores.past_caches(8192));
  EXPECT_FALSE(stores.past_caches(4096));
}

}  // namespace
}  // namespace unisono

#include "node/slot_stores.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

constexpr size_t slice = 256u << 10;

// Where other work on memory takes 0.05 ns a byte.
SlotStores experienced() {
  SlotStores stores;
  for (int i = 0; i < 100; ++i) stores.worked(slice, slice / 20);
  return stores;
}

void fill(SlotStores& stores, int times, double ns_per_byte) {
  for (int i = 0; i < times; ++i) stores.filled(slice, static_cast<Nanos>(ns_per_byte * slice));
}

TEST(SlotStores, go_through_the_caches_while_that_costs_what_other_work_costs) {
  auto stores = experienced();
  fill(stores, 1000, 0.1);
  EXPECT_FALSE(stores.far());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(stores.past_caches(slice));
}

TEST(SlotStores, go_past_the_caches_when_these_take_much_longer_again_and_again) {
  auto stores = experienced();
  fill(stores, 31, 0.3);
  EXPECT_FALSE(stores.far());
  fill(stores, 1, 0.3);
  EXPECT_TRUE(stores.far());
  EXPECT_TRUE(stores.past_caches(slice));
}

TEST(SlotStores, new_pages_and_interrupted_slices_change_nothing) {
  auto stores = experienced();
  fill(stores, 16, 10);  // as many as two ranks have slots
  for (int i = 0; i < 100; ++i) {
    fill(stores, 2, 100);
    fill(stores, 2, 0.05);
  }
  EXPECT_FALSE(stores.far());
}

// How many slices go past the caches until the next try.
int slices_past(SlotStores& stores) {
  int past = 0;
  while (past < 10'000 && stores.past_caches(slice)) ++past;
  return past;
}

TEST(SlotStores, now_and_then_slices_go_through_the_caches_to_see_whether_that_is_quick_again) {
  auto stores = experienced();
  fill(stores, 32, 0.5);
  ASSERT_TRUE(stores.far());
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(slices_past(stores), 2048);
    for (int i = 0; i < 32; ++i) {
      EXPECT_FALSE(stores.past_caches(slice)) << "slice " << i << " of the try";
      fill(stores, 1, 0.5);
    }
    EXPECT_TRUE(stores.far());
  }
}

TEST(SlotStores, only_the_last_slices_of_a_try_count) {
  for (const bool quick : {false, true}) {
    auto stores = experienced();
    fill(stores, 32, 0.5);
    slices_past(stores);
    fill(stores, 24, quick ? 0.5 : 0.06);
    fill(stores, 8, quick ? 0.06 : 0.5);
    EXPECT_EQ(stores.far(), !quick);
    EXPECT_EQ(stores.past_caches(slice), !quick);
  }
}

TEST(SlotStores, short_slices_go_as_long_ones_do_and_are_no_try_but_pages_stay_in_the_caches) {
  auto stores = experienced();
  EXPECT_FALSE(stores.past_caches(8192));
  fill(stores, 32, 0.5);
  for (int i = 0; i < 10'000; ++i) EXPECT_TRUE(stores.past_caches(8192));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(stores.past_caches(4096));
}

TEST(SlotStores, nothing_is_concluded_before_there_is_anything_to_compare_with) {
  SlotStores stores;
  fill(stores, 100, 100);
  EXPECT_FALSE(stores.far());
}

TEST(SlotStores, what_is_usual_follows_the_machine) {
  auto stores = experienced();
  for (int i = 0; i < 200; ++i) stores.worked(slice, slice / 2);  // all memory has become ten times slower
  fill(stores, 100, 0.9);
  EXPECT_FALSE(stores.far());
}

}  // namespace
}  // namespace unisono

#include "transports/payload_pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace unisono {
namespace {

TEST(PayloadPool, gives_aligned_memory_of_any_size) {
  PayloadPool pool({});
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{16} << 20}) {
    const auto block = pool.take(1, bytes);
    ASSERT_TRUE(block);
    EXPECT_NE(block.handle, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % 64, 0u);
    std::memset(block.data, 1, bytes);
    pool.give(block.handle);
  }
  EXPECT_EQ(pool.blocks_out(), 0u);
}

TEST(PayloadPool, uses_a_returned_block_again) {
  PayloadPool pool({});
  const auto first = pool.take(1, 5000);
  pool.give(first.handle);
  EXPECT_EQ(pool.take(2, 8000).data, first.data);
}

TEST(PayloadPool, limits_each_owner_alone) {
  PayloadPool pool({.owner_bytes_max = 16384});
  EXPECT_TRUE(pool.take(1, 8192));
  EXPECT_TRUE(pool.take(1, 8192));
  EXPECT_FALSE(pool.may_take(1, 1));
  EXPECT_FALSE(pool.take(1, 1));
  EXPECT_TRUE(pool.take(2, 8192));
  EXPECT_TRUE(pool.take(PayloadPool::no_owner, 1 << 20));
}

TEST(PayloadPool, never_refuses_an_owner_that_holds_nothing) {
  PayloadPool pool({.owner_bytes_max = 4096});
  const auto block = pool.take(1, 1 << 20);
  ASSERT_TRUE(block);
  EXPECT_FALSE(pool.take(1, 1));
  pool.give(block.handle);
  EXPECT_TRUE(pool.take(1, 1));
}

TEST(PayloadPool, a_shared_block_comes_back_when_each_user_has_returned_it) {
  PayloadPool pool({.owner_bytes_max = 8192});
  const auto block = pool.take(PayloadPool::inbox_owner, 8192);
  EXPECT_EQ(pool.blocks_out(), 0u);
  pool.share(block.handle);
  EXPECT_TRUE(pool.is_shared(block.handle));
  pool.set_owner(block.handle, 1);
  EXPECT_EQ(pool.blocks_out(), 1u);
  EXPECT_EQ(pool.held_bytes(1), 8192u);
  EXPECT_FALSE(pool.has_room(1, 1));
  pool.give(block.handle);
  EXPECT_FALSE(pool.is_shared(block.handle));
  EXPECT_EQ(pool.kept_bytes(), 0u);
  EXPECT_NE(pool.take(2, 8192).data, block.data);
  pool.give(block.handle);
  EXPECT_EQ(pool.held_bytes(1), 0u);
  EXPECT_EQ(pool.blocks_out(), 1u);
  EXPECT_EQ(pool.take(1, 8192).data, block.data);
}

TEST(PayloadPool, keeps_no_more_than_its_limit) {
  PayloadPool pool({.kept_bytes_max = 8192});
  std::vector<uint64_t> handles;
  for (int i = 0; i < 10; ++i) handles.push_back(pool.take(1, 4096).handle);
  for (const auto handle : handles) pool.give(handle);
  EXPECT_EQ(pool.kept_bytes(), 8192u);
  EXPECT_EQ(pool.held_bytes(1), 0u);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(pool.take(1, 4096));
}

TEST(PayloadPool, ignores_handles_that_are_not_out) {
  PayloadPool pool({});
  const auto block = pool.take(1, 10);
  pool.give(0);
  pool.give(block.handle + 1);
  pool.give(block.handle);
  pool.give(block.handle);
  EXPECT_EQ(pool.held_bytes(1), 0u);
  const auto one = pool.take(1, 10), two = pool.take(1, 10);
  EXPECT_NE(one.data, two.data);
}

}  // namespace
}  // namespace unisono

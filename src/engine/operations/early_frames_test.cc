#include "engine/operations/early_frames.h"

#include <gtest/gtest.h>

#include <vector>

namespace unisono {
namespace {

struct EarlyFramesTest : testing::Test {
  void keep(PeerIndex from, uint64_t operation, size_t bytes = 8) {
    const Bytes payload(bytes, static_cast<std::byte>(operation));
    early.keep(from, {.group = 1, .operation = operation, .payload_bytes = static_cast<uint32_t>(bytes)}, payload);
  }
  static auto of(uint64_t operation) {
    return [operation](const EarlyFrame& frame) { return frame.header.operation == operation; };
  }
  BufferPool pool{1 << 20};
  EarlyFrames early{pool, 100};
};

TEST_F(EarlyFramesTest, frames_are_taken_in_order_of_arrival_and_their_memory_is_released) {
  for (const PeerIndex from : {3u, 1u, 2u}) keep(from, 7), keep(from, 8);
  std::vector<PeerIndex> order;
  early.take(of(7), [&](const EarlyFrame& frame) {
    EXPECT_EQ(frame.payload()[0], static_cast<std::byte>(7));
    order.push_back(frame.from);
    return false;
  });
  EXPECT_EQ(order, (std::vector<PeerIndex>{3, 1, 2}));
  EXPECT_EQ(early.frames().size(), 3u);
  EXPECT_EQ(early.bytes(), 24u);
  early.drop_if(of(8));
  EXPECT_TRUE(early.empty());
  EXPECT_EQ(early.bytes(), 0u);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST_F(EarlyFramesTest, a_payload_that_its_operation_keeps_is_not_released) {
  keep(0, 7);
  std::byte* data = nullptr;
  early.take(of(7), [&](const EarlyFrame& frame) {
    data = frame.data;
    return true;
  });
  EXPECT_EQ(early.bytes(), 0u);
  EXPECT_GT(pool.used_bytes(), 0u);
  pool.release(data, 8);
}

TEST_F(EarlyFramesTest, fits_reports_a_frame_that_exceeds_the_limit) {
  keep(0, 7, 60);
  EXPECT_TRUE(early.fits(40));
  EXPECT_FALSE(early.fits(41));
  early.drop_if(of(7));
  EXPECT_TRUE(early.fits(100));
}

TEST_F(EarlyFramesTest, using_a_frame_may_take_others) {
  for (const uint64_t operation : {7u, 8u, 7u, 9u}) keep(0, operation);
  std::vector<uint64_t> order;
  early.take(of(7), [&](const EarlyFrame& frame) {
    order.push_back(frame.header.operation);
    early.take(of(8), [&](const EarlyFrame& inner) { return order.push_back(inner.header.operation), false; });
    return false;
  });
  EXPECT_EQ(order, (std::vector<uint64_t>{7, 8, 7}));
  EXPECT_EQ(early.frames().size(), 1u);
}

}  // namespace
}  // namespace unisono

#include "engine/call_position.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

CallPosition position() {
  const OperationRequest q{.count = 10};
  return {.rank = 3,
          .lossy = 7,
          .reliable = uint64_t{1} << 40,
          .in_lossy = true,
          .call = describe(q, ScheduleKind::two_step, 1472, 4)};
}

TEST(CallPosition, decodes_to_what_was_encoded) {
  const auto written = position();
  const auto read = CallPosition::decode(written.encode());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->rank, written.rank);
  EXPECT_EQ(read->lossy, written.lossy);
  EXPECT_EQ(read->reliable, written.reliable);
  EXPECT_EQ(read->in_lossy, written.in_lossy);
  EXPECT_EQ(read->call.bits, written.call.bits);
  EXPECT_EQ(read->call.amount, written.call.amount);
}

TEST(CallPosition, a_truncated_too_long_or_other_message_is_corrupt) {
  auto bytes = position().encode();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(CallPosition::decode(ByteView(bytes).first(size)).status().code(), Code::corrupt) << size;
  bytes.push_back(std::byte{0});
  EXPECT_EQ(CallPosition::decode(bytes).status().code(), Code::corrupt);
  bytes.pop_back();
  bytes[0] = std::byte{1};
  EXPECT_EQ(CallPosition::decode(bytes).status().code(), Code::corrupt);
}

TEST(CallPosition, counts_the_calls_before_the_one_that_waits) {
  CallPosition ours{.lossy = 4, .reliable = 6, .in_lossy = true, .call = position().call};
  EXPECT_EQ(ours.text(),
            "calls all_reduce(f32 sum, 10 elements, two_step) with lossy delivery, after 3 lossy and 6 other calls");
  ours.in_lossy = false;
  EXPECT_EQ(ours.text(),
            "calls all_reduce(f32 sum, 10 elements, two_step) with reliable delivery, after 4 lossy and 5 other calls");
}

}  // namespace
}  // namespace unisono

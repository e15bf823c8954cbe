#include "transports/udp/path/udp_size_change.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

constexpr const char* receiver = "rank 3 on host b";

TEST(DatagramSizeChange, the_text_names_the_receiver_the_size_and_the_reason) {
  const DatagramSizeChange fallen{.count = 1, .bytes = 1200, .before = 1472, .largest = 1472};
  EXPECT_TRUE(fallen.is_reduced());
  EXPECT_EQ(describe_size_change(receiver, fallen),
            "datagrams to rank 3 on host b are now 1200 bytes, because larger ones get no acknowledgement");
}

TEST(DatagramSizeChange, the_text_says_when_the_own_host_refuses_datagrams) {
  EXPECT_EQ(describe_size_change(receiver, {.count = 1, .bytes = 1472, .before = 8972, .largest = 8972, .refused = true}),
            "datagrams to rank 3 on host b are now 1472 bytes, because the network of this host refuses larger ones");
}

TEST(DatagramSizeChange, the_text_says_when_the_size_comes_back) {
  const DatagramSizeChange back{.count = 2, .bytes = 1472, .before = 1200, .largest = 1472};
  EXPECT_FALSE(back.is_reduced());
  EXPECT_EQ(describe_size_change(receiver, back),
            "datagrams to rank 3 on host b are now 1472 bytes, because datagrams of this size get acknowledgements");
}

TEST(DatagramSizeChange, a_size_that_comes_back_in_part_is_still_reduced) {
  const DatagramSizeChange part{.count = 2, .bytes = 1472, .before = 1200, .largest = 8972};
  EXPECT_TRUE(part.is_reduced());
  EXPECT_EQ(describe_size_change(receiver, part),
            "datagrams to rank 3 on host b are now 1472 bytes, because larger ones get no acknowledgement");
}

}  // namespace
}  // namespace unisono

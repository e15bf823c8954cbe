#include "wire/frame.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace unisono {
namespace {

TEST(Frame, fields_lie_where_the_wire_format_says) {
  EXPECT_EQ(offsetof(FrameHeader, kind), 5u);
  EXPECT_EQ(offsetof(FrameHeader, flags), 6u);
  EXPECT_EQ(offsetof(FrameHeader, operation), 16u);
  EXPECT_EQ(offsetof(FrameHeader, sender), 24u);
  EXPECT_EQ(offsetof(FrameHeader, round), 26u);
  EXPECT_EQ(offsetof(FrameHeader, confirmed), 28u);
  EXPECT_EQ(offsetof(FrameHeader, chunk), 32u);
  EXPECT_EQ(offsetof(FrameHeader, amount), 40u);
}

TEST(Frame, kinds_of_streams_are_refused_elsewhere) {
  for (const auto kind : {FrameKind::confirm, FrameKind::nothing, FrameKind::leaving}) {
    FrameHeader header{.kind = kind};
    seal_frame(header);
    EXPECT_EQ(check_frame(header), FrameFault::kind);
    EXPECT_EQ(check_frame(header, FrameKind::leaving), FrameFault::none);
  }
  FrameHeader unknown{.kind = static_cast<FrameKind>(12)};
  seal_frame(unknown);
  EXPECT_EQ(check_frame(unknown, FrameKind::leaving), FrameFault::kind);
}

TEST(Frame, the_checksum_covers_what_is_confirmed) {
  FrameHeader header{.confirmed = 5};
  seal_frame(header);
  header.confirmed = 6;
  EXPECT_EQ(check_frame(header), FrameFault::header_checksum);
}

TEST(Frame, the_largest_rank_fits) { EXPECT_EQ(frame_sender(frame_ranks_max - 1), frame_ranks_max - 1); }

}  // namespace
}  // namespace unisono

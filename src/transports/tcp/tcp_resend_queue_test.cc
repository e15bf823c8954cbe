#include "transports/tcp/tcp_resend_queue.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/transport_cluster.h"

namespace unisono::conformance {
namespace {

constexpr size_t header_bytes = sizeof(FrameHeader);
using Ids = std::vector<uint64_t>;

class TcpResendQueueTest : public testing::Test {
 protected:
  bool push(uint64_t id, ByteView payload) { return queue.push({.operation = id}, payload, id, received); }
  // Moves up to `limit` bytes from the queue to `wire`, as a socket would.
  size_t write(size_t limit) {
    iovec parts[TcpResendQueue::gather_max];
    size_t bytes = 0;
    const int count = queue.gather(parts, bytes);
    bytes = std::min(bytes, limit);
    size_t left = bytes;
    for (int i = 0; i < count && left > 0; ++i) {
      const size_t step = std::min(left, parts[i].iov_len);
      const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
      wire.insert(wire.end(), data, data + step);
      left -= step;
    }
    queue.wrote(bytes);
    return bytes;
  }
  void write_all() {
    while (write(SIZE_MAX) > 0) {}
  }
  // The connection is lost, and the peer has read up to `position`. What was written beyond it is gone.
  Status rewind(uint64_t position) {
    wire.resize(position);
    return queue.rewind(position, received, sent);
  }
  FrameHeader header_at(size_t position) const {
    FrameHeader header;
    std::memcpy(&header, wire.data() + position, sizeof header);
    EXPECT_EQ(check_frame(header, FrameKind::leaving), FrameFault::none) << position;
    return header;
  }
  Bytes payload_at(size_t position, size_t bytes) const {
    const auto from = wire.begin() + static_cast<ptrdiff_t>(position + header_bytes);
    return {from, from + static_cast<ptrdiff_t>(bytes)};
  }
  static void poison(Bytes& memory) { std::ranges::fill(memory, std::byte{0xDE}); }

  PayloadPool pool{{}};
  ResendMemory memory{64u << 10};
  TcpResendQueue queue{pool, memory, 4};
  uint64_t received = 0;
  Bytes wire;
  Ids sent;
};

TEST_F(TcpResendQueueTest, frames_keep_order_and_bytes_in_any_split_of_writes) {
  std::vector<Bytes> payloads;
  for (size_t i = 0; i < 40; ++i) payloads.push_back(pattern(i % 3 == 0 ? 0 : i * 1000, i));
  for (size_t i = 0; i < payloads.size(); ++i) push(i, payloads[i]);
  for (size_t step = 1; queue.unwritten_frames() > 0; step = step * 3 + 1) write(step % 50'000);
  size_t position = 0;
  for (size_t i = 0; i < payloads.size(); ++i) {
    EXPECT_EQ(header_at(position).operation, i);
    EXPECT_EQ(payload_at(position, payloads[i].size()), payloads[i]);
    position += header_bytes + payloads[i].size();
  }
  EXPECT_EQ(wire.size(), position);
  EXPECT_EQ(queue.written(), queue.queued());
}

TEST_F(TcpResendQueueTest, a_frame_leaves_when_it_is_confirmed_and_not_when_it_is_written) {
  const auto payload = pattern(10'000, 1);
  EXPECT_FALSE(push(1, payload));
  write_all();
  EXPECT_EQ(queue.unwritten_frames(), 0u);
  EXPECT_EQ(queue.unconfirmed_frames(), 1u);
  EXPECT_TRUE(sent.empty());
  EXPECT_TRUE(queue.confirm(header_bytes + 9'999, sent));
  EXPECT_TRUE(sent.empty());
  EXPECT_TRUE(queue.confirm(header_bytes + 10'000, sent));
  EXPECT_EQ(sent, Ids{1});
  EXPECT_EQ(queue.unconfirmed_frames(), 0u);
  EXPECT_FALSE(queue.has_unconfirmed());
}

TEST_F(TcpResendQueueTest, small_payloads_are_copied_until_they_are_confirmed) {
  auto small = pattern(TcpResendQueue::copied_bytes_max, 1), large = pattern(TcpResendQueue::copied_bytes_max + 1, 2);
  EXPECT_TRUE(push(1, small));
  EXPECT_FALSE(push(2, large));
  EXPECT_TRUE(push(3, {}));
  const auto copy = small;
  poison(small);
  write_all();
  EXPECT_EQ(payload_at(0, copy.size()), copy);
  EXPECT_EQ(memory.used(), PayloadPool::block_bytes(copy.size()));
  ASSERT_TRUE(queue.confirm(static_cast<uint32_t>(queue.written()), sent));
  EXPECT_EQ(memory.used(), 0u);
  EXPECT_EQ(pool.blocks_out(), 0u);
  EXPECT_EQ(sent, Ids{2});
}

TEST_F(TcpResendQueueTest, headers_say_how_far_this_side_has_read) {
  received = (uint64_t{7} << 32) + 1234;
  push(1, {});
  write_all();
  EXPECT_EQ(header_at(0).confirmed, 1234u);
  received += 5;
  ASSERT_TRUE(rewind(0).ok());
  write_all();
  EXPECT_EQ(header_at(0).confirmed, 1239u);
}

TEST_F(TcpResendQueueTest, confirmations_wrap_at_32_bits_and_stale_ones_are_passed_over) {
  const auto payload = pattern(payload_bytes_max, 1);
  uint32_t last = 0;
  while (queue.confirmed() < (uint64_t{1} << 32) + payload_bytes_max) {
    push(1, payload);
    iovec parts[TcpResendQueue::gather_max];
    for (size_t bytes = 1; bytes > 0; queue.wrote(bytes)) queue.gather(parts, bytes);
    const auto low = static_cast<uint32_t>(queue.written());
    ASSERT_TRUE(queue.confirm(low, sent));
    ASSERT_FALSE(queue.confirm(last, sent));
    ASSERT_FALSE(queue.confirm(low + 1, sent));
    last = low;
  }
  EXPECT_EQ(queue.unconfirmed_frames(), 0u);
}

TEST_F(TcpResendQueueTest, an_acknowledgement_gives_memory_back_but_keeps_the_frame) {
  const auto first = pattern(10'000, 1), second = pattern(10'000, 2);
  push(1, first);
  push(2, second);
  write(2 * header_bytes + 15'000);
  queue.acknowledged(queue.written(), sent);
  EXPECT_EQ(sent, Ids{1});
  EXPECT_EQ(queue.unconfirmed_frames(), 2u);
  EXPECT_FALSE(queue.has_held());
}

TEST_F(TcpResendQueueTest, what_is_sent_again_comes_from_copies) {
  auto first = pattern(10'000, 1), second = pattern(10'000, 2);
  const auto first_copy = first, second_copy = second;
  push(1, first);
  push(2, second);
  write_all();
  queue.release_early(0, 0, sent);
  EXPECT_EQ(sent, (Ids{1, 2}));
  poison(first);
  poison(second);
  ASSERT_TRUE(rewind(100).ok());
  write_all();
  EXPECT_EQ(payload_at(0, 10'000), first_copy);
  EXPECT_EQ(payload_at(10'000 + header_bytes, 10'000), second_copy);
}

TEST_F(TcpResendQueueTest, only_what_is_not_acknowledged_is_copied) {
  auto payload = pattern(60'000, 1);
  const auto copy = payload;
  push(1, payload);
  write_all();
  queue.acknowledged(header_bytes + 59'000, sent);
  queue.release_early(1, UINT64_MAX, sent);
  EXPECT_EQ(sent, Ids{1});
  EXPECT_EQ(memory.used(), PayloadPool::block_bytes(1'000));
  poison(payload);
  ASSERT_TRUE(rewind(header_bytes + 59'000).ok());
  write_all();
  EXPECT_EQ(payload_at(0, 60'000), copy);
}

TEST_F(TcpResendQueueTest, early_release_waits_for_the_last_byte_to_be_written) {
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  write(500);
  queue.release_early(1, UINT64_MAX, sent);
  queue.copy_early(sent);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(memory.used(), 0u);
  write_all();
  EXPECT_TRUE(queue.has_early());
  queue.copy_early(sent);
  EXPECT_EQ(sent, Ids{1});
  EXPECT_FALSE(queue.has_early());
}

TEST_F(TcpResendQueueTest, early_release_leaves_other_payloads_alone) {
  const auto payload = pattern(10'000, 1);
  push(0x11, payload);
  push(0x21, payload);
  write_all();
  queue.release_early(0x20, 0xF0, sent);
  EXPECT_EQ(sent, Ids{0x21});
}

TEST_F(TcpResendQueueTest, without_budget_it_waits_for_the_confirm) {
  const auto payload = pattern(100'000, 1);
  push(1, payload);
  write_all();
  EXPECT_FALSE(queue.wants_confirm());
  queue.release_early(1, UINT64_MAX, sent);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(memory.used(), 0u);
  EXPECT_TRUE(queue.wants_confirm());
  ASSERT_TRUE(queue.push_confirm(0));
  EXPECT_FALSE(queue.wants_confirm());
  queue.copy_early(sent);
  EXPECT_FALSE(queue.wants_confirm()) << "one payload asks once";
  write_all();
  EXPECT_EQ(header_at(header_bytes + payload.size()).flags, frame_flag_confirm_now);
  queue.confirm(static_cast<uint32_t>(header_bytes + payload.size()), sent);
  EXPECT_EQ(sent, Ids{1});
}

TEST_F(TcpResendQueueTest, without_budget_a_small_payload_waits_and_its_frame_asks) {
  ASSERT_TRUE(memory.take(64u << 10));
  const auto payload = pattern(100, 1);
  EXPECT_FALSE(push(1, payload));
  write_all();
  EXPECT_EQ(header_at(0).flags, frame_flag_confirm_now);
  ASSERT_TRUE(queue.confirm(header_bytes + 100, sent));
  EXPECT_EQ(sent, Ids{1});
  memory.give(64u << 10);
}

TEST_F(TcpResendQueueTest, cancel_drops_frames_never_begun_and_copies_the_others) {
  auto first = pattern(10'000, 1), second = pattern(10'000, 2), third = pattern(10'000, 3), fourth = pattern(10'000, 4);
  const auto first_copy = first, second_copy = second, fourth_copy = fourth;
  push(0x11, first);
  push(0x12, second);
  push(0x13, third);
  push(0x21, fourth);
  write(2 * header_bytes + 15'000);
  EXPECT_TRUE(queue.cancel(0x10, 0xF0));
  for (auto* payload : {&first, &second, &third}) poison(*payload);
  EXPECT_EQ(queue.unwritten_frames(), 2u);
  EXPECT_EQ(queue.queued(), 3 * (header_bytes + 10'000));
  ASSERT_TRUE(rewind(200).ok());
  write_all();
  ASSERT_EQ(wire.size(), queue.queued());
  EXPECT_EQ(payload_at(0, 10'000), first_copy);
  EXPECT_EQ(payload_at(header_bytes + 10'000, 10'000), second_copy);
  EXPECT_EQ(payload_at(2 * (header_bytes + 10'000), 10'000), fourth_copy);
  ASSERT_TRUE(queue.confirm(static_cast<uint32_t>(queue.written()), sent));
  EXPECT_EQ(sent, Ids{0x21});
  EXPECT_EQ(pool.blocks_out(), 0u);
  EXPECT_EQ(memory.used(), 0u);
}

TEST_F(TcpResendQueueTest, a_withdrawn_frame_goes_as_nothing) {
  auto payload = pattern(100'000, 1);
  const auto last = pattern(3, 2);
  const uint8_t flags = frame_flag_payload_checksum | frame_flag_confirm_now;
  queue.push({.flags = flags, .operation = 1, .payload_checksum = 5}, payload, 1, 0);
  push(2, last);
  write_all();
  EXPECT_TRUE(queue.cancel(1, UINT64_MAX));
  poison(payload);
  EXPECT_EQ(memory.used(), PayloadPool::block_bytes(3));
  ASSERT_TRUE(rewind(0).ok());
  write_all();
  const auto header = header_at(0);
  EXPECT_EQ(header.kind, FrameKind::nothing);
  EXPECT_EQ(header.payload_bytes, 100'000u);
  EXPECT_EQ(header.flags, frame_flag_confirm_now) << "it still asks, but has no checksum";
  EXPECT_EQ(header.payload_checksum, 0u);
  EXPECT_EQ(std::ranges::count(payload_at(0, 100'000), std::byte{}), 100'000);
  EXPECT_EQ(payload_at(100'000 + header_bytes, 3), last);
  EXPECT_TRUE(sent.empty());
}

TEST_F(TcpResendQueueTest, a_half_written_frame_without_budget_is_completed_on_its_connection) {
  auto payload = pattern(100'000, 1);
  const auto copy = payload;
  push(1, payload);
  write(40'000);
  EXPECT_TRUE(queue.cancel(1, UINT64_MAX));
  poison(payload);
  write_all();
  EXPECT_EQ(payload_at(0, 100'000), copy);
  EXPECT_EQ(pool.blocks_out(), 0u) << "the rest is kept no longer than needed";
  ASSERT_TRUE(rewind(0).ok());
  write_all();
  EXPECT_EQ(header_at(0).kind, FrameKind::nothing);
}

TEST_F(TcpResendQueueTest, a_peer_that_stopped_inside_a_withdrawn_frame_is_lost_by_name) {
  auto payload = pattern(100'000, 1);
  push(1, payload);
  write_all();
  EXPECT_TRUE(queue.cancel(1, UINT64_MAX));
  const auto status = rewind(header_bytes + 30'000);
  EXPECT_EQ(status.code(), Code::peer_lost);
  EXPECT_NE(status.message().find("70000 bytes cannot be sent again"), std::string::npos) << status.message();
}

TEST_F(TcpResendQueueTest, a_peer_that_stopped_behind_what_is_missing_goes_on) {
  auto payload = pattern(100'000, 1);
  const auto copy = payload;
  push(1, payload);
  write(40'000);
  EXPECT_TRUE(queue.cancel(1, UINT64_MAX));
  poison(payload);
  ASSERT_TRUE(rewind(40'000).ok());
  write_all();
  EXPECT_EQ(payload_at(0, 100'000), copy);
}

TEST_F(TcpResendQueueTest, nothing_waits_for_a_cancelled_frame) {
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  write_all();
  EXPECT_TRUE(queue.has_held());
  queue.cancel(1, UINT64_MAX);
  EXPECT_FALSE(queue.has_held());
  push(2, payload);
  queue.release_early(2, UINT64_MAX, sent);
  EXPECT_TRUE(queue.has_early());
  queue.cancel(2, UINT64_MAX);
  EXPECT_FALSE(queue.has_early());
}

TEST_F(TcpResendQueueTest, a_dropped_frame_that_asked_is_not_the_last_to_ask) {
  ASSERT_TRUE(memory.take(64u << 10));
  const auto payload = pattern(100, 1);
  push(1, payload);
  EXPECT_FALSE(queue.wants_confirm());
  queue.cancel(1, UINT64_MAX);
  EXPECT_TRUE(queue.wants_confirm());
  memory.give(64u << 10);
}

TEST_F(TcpResendQueueTest, an_acknowledgement_from_before_a_rewind_counts_no_more) {
  const auto first = pattern(10'000, 1), second = pattern(10'000, 2);
  push(1, first);
  write_all();
  EXPECT_TRUE(queue.has_held());
  queue.acknowledged(9'000, sent);
  ASSERT_TRUE(rewind(0).ok());
  EXPECT_FALSE(queue.has_held());
  queue.cancel(1, UINT64_MAX);
  push(2, second);
  write_all();
  queue.release_early(2, UINT64_MAX, sent);
  ASSERT_TRUE(rewind(0).ok());
  write_all();
  EXPECT_EQ(payload_at(0, 10'000), second);
}

TEST_F(TcpResendQueueTest, a_wrong_acknowledgement_is_noticed_at_the_rewind) {
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  write_all();
  queue.acknowledged(queue.written(), sent);
  const auto status = rewind(header_bytes + 9'000);
  EXPECT_EQ(status.code(), Code::peer_lost);
  EXPECT_NE(status.message().find("1000 bytes cannot be sent again"), std::string::npos) << status.message();
}

TEST_F(TcpResendQueueTest, a_position_that_cannot_be_right_is_corrupt) {
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  push(2, payload);
  write(header_bytes + 10'000);
  ASSERT_TRUE(queue.confirm(500, sent));
  EXPECT_EQ(queue.rewind(499, 0, sent).code(), Code::corrupt);
  EXPECT_EQ(queue.rewind(header_bytes + 10'001, 0, sent).code(), Code::corrupt);
  EXPECT_TRUE(queue.rewind(500, 0, sent).ok());
}

TEST_F(TcpResendQueueTest, a_rewind_confirms_and_goes_on_inside_a_header) {
  auto first = pattern(10'000, 1), second = pattern(5'000, 2);
  push(1, first);
  push(2, second);
  write_all();
  ASSERT_TRUE(rewind(header_bytes + 10'000 + 7).ok());
  EXPECT_EQ(sent, Ids{1});
  poison(first);
  EXPECT_EQ(queue.unwritten_bytes(), header_bytes - 7 + 5'000);
  write_all();
  EXPECT_EQ(header_at(header_bytes + 10'000).operation, 2u);
  EXPECT_EQ(payload_at(header_bytes + 10'000, 5'000), second);
}

TEST_F(TcpResendQueueTest, a_stream_writes_no_more_than_1024_unconfirmed_frames) {
  for (uint64_t i = 0; i < 2000; ++i) push(i, {});
  write_all();
  EXPECT_EQ(queue.written(), TcpResendQueue::unconfirmed_frames_max * header_bytes);
  EXPECT_EQ(queue.unwritten_frames(), 2000 - TcpResendQueue::unconfirmed_frames_max);
  ASSERT_TRUE(queue.confirm(10 * header_bytes, sent));
  write_all();
  EXPECT_EQ(queue.written(), (TcpResendQueue::unconfirmed_frames_max + 10) * header_bytes);
}

TEST_F(TcpResendQueueTest, a_stream_writes_no_more_than_a_gibibyte_unconfirmed) {
  const auto payload = pattern(payload_bytes_max, 1);
  for (uint64_t i = 0; i < 70; ++i) push(i, payload);
  iovec parts[TcpResendQueue::gather_max];
  for (size_t bytes = 1; bytes > 0; queue.wrote(bytes)) queue.gather(parts, bytes);
  EXPECT_GE(queue.written(), TcpResendQueue::unconfirmed_bytes_max);
  EXPECT_LT(queue.written(), TcpResendQueue::unconfirmed_bytes_max + header_bytes + payload_bytes_max);
}

TEST_F(TcpResendQueueTest, confirmations_pass_what_waits_but_not_what_is_begun) {
  for (uint64_t i = 0; i < 1100; ++i) push(i, {});
  write_all();
  ASSERT_TRUE(queue.push_confirm(77));
  write_all();
  EXPECT_EQ(header_at(TcpResendQueue::unconfirmed_frames_max * header_bytes).kind, FrameKind::confirm);
  size_t more = 0;
  for (; queue.push_confirm(78); ++more) write_all();
  EXPECT_EQ(more, TcpResendQueue::confirming_frames_max - 1);

  queue.clear(sent);
  wire.clear();
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  push(2, {});
  write(10);
  ASSERT_TRUE(queue.push_confirm(79));
  write_all();
  EXPECT_EQ(header_at(0).operation, 1u);
  EXPECT_EQ(header_at(header_bytes + 10'000).kind, FrameKind::confirm);
  EXPECT_EQ(header_at(2 * header_bytes + 10'000).operation, 2u);
}

TEST_F(TcpResendQueueTest, a_confirmation_that_waits_is_renewed) {
  ASSERT_TRUE(queue.push_confirm(1));
  ASSERT_TRUE(queue.push_confirm(2));
  write_all();
  EXPECT_EQ(wire.size(), header_bytes);
  EXPECT_EQ(header_at(0).confirmed, 2u);
}

TEST_F(TcpResendQueueTest, a_confirmation_alone_need_not_be_confirmed) {
  ASSERT_TRUE(queue.push_confirm(1));
  write_all();
  EXPECT_FALSE(queue.has_unconfirmed());
  push(1, {});
  EXPECT_TRUE(queue.has_unconfirmed());
}

TEST_F(TcpResendQueueTest, the_last_bytes_of_a_stream_come_from_own_memory) {
  auto payload = pattern(10'000, 1);
  const auto small = pattern(10, 2);
  push(1, payload);
  push(2, payload);
  push(3, small);
  write(100);
  EXPECT_TRUE(queue.cancel_all(sent));
  EXPECT_EQ(sent, (Ids{1, 2}));
  EXPECT_EQ(queue.queued(), header_bytes + 10'000 + header_bytes + 10);
  const auto whole = std::exchange(payload, Bytes(10'000));
  write_all();
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), wire.begin() + header_bytes));
}

TEST_F(TcpResendQueueTest, clear_reports_pending_ids) {
  const auto payload = pattern(10'000, 1);
  push(1, payload);
  push(2, std::span(payload).first(10));
  push(3, payload);
  write(header_bytes + 10'000);
  queue.release_early(3, UINT64_MAX, sent);
  queue.clear(sent);
  EXPECT_EQ(sent, (Ids{1, 3}));
  EXPECT_EQ(pool.blocks_out(), 0u);
  EXPECT_EQ(memory.used(), 0u);
  EXPECT_EQ(queue.queued(), 0u);
}

}  // namespace
}  // namespace unisono::conformance

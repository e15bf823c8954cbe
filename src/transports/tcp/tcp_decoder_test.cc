#include "transports/tcp/tcp_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/transport_cluster.h"
#include "wire/checksum.h"

namespace unisono::conformance {
namespace {

struct RecordingSink final : Sink {
  explicit RecordingSink(PayloadPool& p) : pool(p) {}
  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    ++buffer_requests;
    return target ? target(header) : nullptr;
  }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    headers.push_back(header);
    Bytes payload;
    if (view.bytes > 0) payload.assign(view.data, view.data + view.bytes);
    payloads.push_back(std::move(payload));
    if (keep) views.push_back(view);
    else pool.give(view.handle);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}
  PayloadPool& pool;
  std::function<std::byte*(const FrameHeader&)> target;
  bool keep = false;
  size_t buffer_requests = 0;
  std::vector<FrameHeader> headers;
  std::vector<Bytes> payloads;
  std::vector<View> views;
};

class TcpDecoderTest : public testing::Test {
 protected:
  TcpDecoderTest() : pool({.owner_bytes_max = 1u << 20}), sink(pool), decoder(3, pool, counters) {}

  static FrameHeader header(uint64_t operation, size_t bytes) {
    FrameHeader header;
    header.group = 1;
    header.operation = operation;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    seal_frame(header);
    return header;
  }
  void frame(uint64_t operation, size_t bytes) { append(header(operation, bytes), pattern(bytes, operation)); }
  void append(const FrameHeader& head, ByteView payload) {
    const auto bytes = std::as_bytes(std::span(&head, 1));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
    stream.insert(stream.end(), payload.begin(), payload.end());
  }
  // Feeds the rest of the stream to the decoder, at most `step` bytes per read and `limit` bytes in all.
  TcpDecoder::Progress feed(size_t step, size_t limit = SIZE_MAX) {
    auto progress = TcpDecoder::Progress::more;
    for (size_t fed = 0; at < stream.size() && fed < limit && progress == TcpDecoder::Progress::more;) {
      const auto space = decoder.space();
      EXPECT_GT(space.bytes(), 0u);
      size_t count = std::min({step, limit - fed, stream.size() - at, space.bytes()});
      const size_t first = std::min(count, space.parts[0].iov_len);
      std::memcpy(space.parts[0].iov_base, stream.data() + at, first);
      if (count > first) std::memcpy(space.parts[1].iov_base, stream.data() + at + first, count - first);
      at += count;
      fed += count;
      progress = decoder.took(count, sink);
    }
    return progress;
  }
  void expect_all(size_t count) {
    ASSERT_EQ(sink.payloads.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(sink.payloads[i], pattern(sink.headers[i].payload_bytes, sink.headers[i].operation));
    }
  }
  TcpDecoder::Progress feed_damaged(size_t offset, std::byte flip) {
    frame(1, 100);
    stream[offset] ^= flip;
    return feed(SIZE_MAX);
  }

  PayloadPool pool;
  TcpReceiveCounters counters;
  RecordingSink sink;
  TcpDecoder decoder;
  Bytes stream;
  size_t at = 0;
};

TEST_F(TcpDecoderTest, frames_are_found_in_any_split_of_the_bytes) {
  for (const size_t step : {1, 7, 63, 64, 65, 1000, 70'000, 1 << 24}) {
    stream.clear();
    at = 0;
    sink.headers.clear();
    sink.payloads.clear();
    size_t count = 0;
    for (const size_t bytes : {0, 1, 64, 3000, 20'000, 0, 100'000, 5, 70'000, 70'000}) frame(++count, bytes);
    EXPECT_EQ(feed(step), TcpDecoder::Progress::more);
    expect_all(count);
    EXPECT_TRUE(decoder.between_frames());
  }
  EXPECT_EQ(pool.blocks_out(), 0u);
}

TEST_F(TcpDecoderTest, receive_buffer_is_called_once_per_frame_with_payload) {
  for (uint64_t i = 0; i < 10; ++i) frame(i, i % 2 == 0 ? 0 : 5000);
  feed(100);
  EXPECT_EQ(sink.buffer_requests, 5u);
  expect_all(10);
}

TEST_F(TcpDecoderTest, payloads_land_in_the_receive_buffer) {
  Bytes memory(100'000);
  sink.target = [&](const FrameHeader&) { return memory.data(); };
  frame(1, memory.size());
  feed(999);
  expect_all(1);
  EXPECT_EQ(memory, pattern(memory.size(), 1));
  EXPECT_EQ(pool.blocks_out(), 0u);
}

TEST_F(TcpDecoderTest, a_payload_that_lies_whole_in_the_inbox_is_a_view_of_it) {
  sink.keep = true;
  frame(1, 20'000);
  const auto* const inbox = static_cast<const std::byte*>(decoder.space().parts[0].iov_base);
  feed(SIZE_MAX);
  ASSERT_EQ(sink.views.size(), 1u);
  EXPECT_EQ(sink.views[0].data, inbox + sizeof(FrameHeader));
  EXPECT_EQ(sink.buffer_requests, 0u);
  pool.give(sink.views[0].handle);
  EXPECT_EQ(decoder.space().parts[0].iov_base, inbox) << "nobody uses it any more";
  EXPECT_EQ(pool.blocks_out(), 0u);
}

TEST_F(TcpDecoderTest, kept_views_of_the_inbox_keep_their_bytes) {
  sink.keep = true;
  for (uint64_t i = 0; i < 40; ++i) frame(i, i % 3 == 0 ? 64 : 8192 + 64 * i);
  for (const size_t step : {50'000, 3, 20'000, 1 << 20}) feed(step, 60'000);
  feed(SIZE_MAX);
  expect_all(40);
  ASSERT_EQ(sink.views.size(), 40u);
  EXPECT_GT(pool.held_bytes(3), 0u);
  for (size_t i = 0; i < 40; ++i) {
    const auto& view = sink.views[i];
    EXPECT_EQ(Bytes(view.data, view.data + view.bytes), pattern(view.bytes, i));
    pool.give(view.handle);
  }
  decoder.space();
  EXPECT_EQ(pool.blocks_out(), 0u);
  EXPECT_EQ(pool.held_bytes(3), 0u);
}

TEST_F(TcpDecoderTest, kept_views_of_the_inbox_use_up_the_share_of_the_peer) {
  sink.keep = true;
  for (uint64_t i = 0; i < 400; ++i) frame(i, 5056);
  EXPECT_EQ(feed(SIZE_MAX), TcpDecoder::Progress::no_memory);
  EXPECT_LE(pool.held_bytes(3), 1u << 20);
  EXPECT_GT(sink.views.size(), 100u);
  for (const auto& view : sink.views) pool.give(view.handle);
}

TEST_F(TcpDecoderTest, a_view_of_the_inbox_may_outlive_the_stream) {
  sink.keep = true;
  frame(1, 8000);
  feed(SIZE_MAX);
  decoder.reset();
  stream.clear();
  at = 0;
  frame(2, 8000);
  feed(SIZE_MAX);
  expect_all(2);
  EXPECT_TRUE(std::ranges::equal(Bytes(sink.views[0].data, sink.views[0].data + 8000), pattern(8000, 1)));
  for (const auto& view : sink.views) pool.give(view.handle);
}

TEST_F(TcpDecoderTest, a_payload_that_is_not_aligned_or_too_small_is_copied) {
  sink.keep = true;
  frame(1, 4095);
  frame(2, 8000);
  feed(SIZE_MAX);
  expect_all(2);
  EXPECT_EQ(sink.buffer_requests, 2u);
  for (const auto& view : sink.views) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
    pool.give(view.handle);
  }
}

TEST_F(TcpDecoderTest, a_frame_without_payload_does_not_change_what_is_read_ahead) {
  frame(1, TcpDecoder::large_bytes);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().parts[0].iov_len, TcpDecoder::ahead_bytes);
  frame(2, 0);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().parts[0].iov_len, TcpDecoder::ahead_bytes);
  frame(3, 1);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().parts[0].iov_len, TcpDecoder::inbox_bytes);
  frame(4, 0);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().parts[0].iov_len, TcpDecoder::inbox_bytes);
}

TEST_F(TcpDecoderTest, reads_large_payloads_behind_each_other_without_a_copy) {
  Bytes memory(256u << 10);
  sink.target = [&](const FrameHeader&) { return memory.data(); };
  frame(1, memory.size());
  frame(2, memory.size());
  feed(SIZE_MAX, sizeof(FrameHeader));
  feed(SIZE_MAX, memory.size() + sizeof(FrameHeader));
  const auto space = decoder.space();
  ASSERT_EQ(space.count, 2);
  EXPECT_EQ(space.parts[0].iov_base, memory.data());
  EXPECT_EQ(space.parts[0].iov_len, memory.size());
}

// Frames without payload, like `credit`, come between the chunks of a tensor. After a small payload, small frames are likely.
TEST_F(TcpDecoderTest, only_a_frame_with_payload_changes_how_far_the_decoder_reads_ahead) {
  constexpr size_t large = 256u << 10;
  frame(1, 100);
  feed(SIZE_MAX);
  const auto far_ahead = decoder.space().bytes();
  frame(2, large);
  feed(SIZE_MAX);
  const auto little_ahead = decoder.space().bytes();
  ASSERT_LT(little_ahead, far_ahead);
  frame(3, 0);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().bytes(), little_ahead) << "the next frame may be large again";
  frame(4, 100);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().bytes(), far_ahead);
  frame(5, 0);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.space().bytes(), far_ahead);
  expect_all(5);
}

TEST_F(TcpDecoderTest, the_decoder_stops_at_the_view_limit_and_continues_after_release) {
  sink.keep = true;
  for (uint64_t i = 0; i < 5; ++i) frame(i, 500'000);
  EXPECT_EQ(feed(SIZE_MAX), TcpDecoder::Progress::no_memory);
  EXPECT_EQ(sink.views.size(), 2u);
  EXPECT_EQ(decoder.space().count, 0);
  EXPECT_EQ(decoder.resume(sink), TcpDecoder::Progress::no_memory);
  while (sink.payloads.size() < 5) {
    ASSERT_FALSE(sink.views.empty());
    for (const auto& view : sink.views) pool.give(view.handle);
    sink.views.clear();
    decoder.resume(sink);
    feed(SIZE_MAX);
  }
  expect_all(5);
  EXPECT_EQ(sink.buffer_requests, 5u);
}

TEST_F(TcpDecoderTest, the_rest_of_a_cancelled_payload_is_discarded) {
  Bytes memory(50'000);
  sink.target = [&](const FrameHeader& head) { return head.operation == 1 ? memory.data() : nullptr; };
  frame(1, memory.size());
  frame(2, 3000);
  feed(SIZE_MAX, 30'000);
  decoder.cancel(1, 99);  // no frame of operation 99 is being received, so this has no effect
  decoder.cancel(1, 1);
  std::ranges::fill(memory, std::byte{9});
  EXPECT_EQ(feed(10'000), TcpDecoder::Progress::more);
  EXPECT_EQ(std::ranges::count(memory, std::byte{9}), 50'000);
  ASSERT_EQ(sink.headers.size(), 1u);
  EXPECT_EQ(sink.headers[0].operation, 2u);
  expect_all(1);
}

TEST_F(TcpDecoderTest, a_cancelled_operation_leaves_views_intact) {
  frame(1, 50'000);
  feed(SIZE_MAX, 30'000);
  decoder.cancel(1, 1);
  feed(SIZE_MAX);
  expect_all(1);
}

TEST_F(TcpDecoderTest, forgets_everything_on_reset) {
  frame(1, 50'000);
  feed(SIZE_MAX, 30'000);
  EXPECT_EQ(pool.blocks_out(), 1u);
  decoder.reset();
  EXPECT_EQ(pool.blocks_out(), 0u);
  stream.clear();
  at = 0;
  frame(2, 10);
  feed(SIZE_MAX);
  expect_all(1);
}

TEST_F(TcpDecoderTest, a_reset_inside_a_placed_payload_costs_no_byte) {
  // The stream is one sequence of bytes, whatever connections carry it. A break may be at each byte, and the decoder is told
  // nothing about it.
  frame(1, 300);
  frame(2, 0);
  frame(3, 5000);
  Bytes memory(5000);
  sink.target = [&](const FrameHeader& head) { return head.payload_bytes == 5000 ? memory.data() : nullptr; };
  for (size_t cut = 0; cut <= stream.size(); cut += cut < 600 ? 1 : 97) {
    at = 0;
    sink.payloads.clear();
    sink.headers.clear();
    sink.buffer_requests = 0;
    const uint64_t before = decoder.position();
    feed(70, cut);
    EXPECT_EQ(decoder.position(), before + cut);
    EXPECT_EQ(feed(1000), TcpDecoder::Progress::more);
    expect_all(3);
    EXPECT_EQ(sink.buffer_requests, 2u) << "no payload is placed twice";
    EXPECT_EQ(decoder.position(), before + stream.size());
  }
  EXPECT_EQ(memory, pattern(5000, 3));
}

TEST_F(TcpDecoderTest, the_position_counts_bytes_that_wait_for_memory) {
  sink.keep = true;
  for (uint64_t i = 0; i < 3; ++i) frame(i, 500'000);
  EXPECT_EQ(feed(SIZE_MAX), TcpDecoder::Progress::no_memory);
  EXPECT_EQ(decoder.position(), at);
  for (const auto& view : sink.views) pool.give(view.handle);
  decoder.resume(sink);
  feed(SIZE_MAX);
  EXPECT_EQ(decoder.position(), stream.size());
}

TEST_F(TcpDecoderTest, tells_what_a_frame_confirms_before_it_asks_for_the_buffer) {
  struct Heard final : TcpDecoder::Confirmations {
    std::vector<std::pair<uint32_t, size_t>> values;
    RecordingSink* sink = nullptr;
    void confirmed(uint32_t low, Sink&) override { values.emplace_back(low, sink->buffer_requests); }
  } heard;
  heard.sink = &sink;
  TcpDecoder hearing(1, pool, counters, &heard);
  for (const uint32_t low : {7u, 9u}) {
    auto head = header(1, 100);
    head.confirmed = low;
    seal_frame(head);
    append(head, pattern(100, 1));
  }
  for (size_t at = 0; at < stream.size();) {
    const auto space = hearing.space();
    const size_t count = std::min({space.parts[0].iov_len, stream.size() - at, size_t{70}});
    std::memcpy(space.parts[0].iov_base, stream.data() + at, count);
    at += count;
    ASSERT_EQ(hearing.took(count, sink), TcpDecoder::Progress::more);
  }
  EXPECT_EQ(heard.values, (std::vector<std::pair<uint32_t, size_t>>{{7, 0}, {9, 1}}));
}

TEST_F(TcpDecoderTest, a_frame_asks_for_a_confirmation_when_it_is_complete) {
  auto head = header(1, 1000);
  head.flags = frame_flag_confirm_now;
  seal_frame(head);
  append(head, pattern(1000, 1));
  feed(SIZE_MAX, 900);
  EXPECT_FALSE(decoder.take_request().now);
  feed(SIZE_MAX);
  const auto told = decoder.take_request();
  EXPECT_TRUE(told.now);
  EXPECT_EQ(told.frames, 1u);
  EXPECT_FALSE(decoder.take_request().now);
}

TEST_F(TcpDecoderTest, swallows_what_is_for_the_stream_alone) {
  for (const auto kind : {FrameKind::confirm, FrameKind::nothing, FrameKind::leaving}) {
    frame(1, 10);
    auto head = header(2, kind == FrameKind::nothing ? 3'000'000 : 0);
    head.kind = kind;
    seal_frame(head);
    append(head, Bytes(head.payload_bytes));
    EXPECT_EQ(feed(100'000), TcpDecoder::Progress::more);
    EXPECT_EQ(decoder.left(), kind == FrameKind::leaving);
    EXPECT_EQ(decoder.take_request().frames, kind == FrameKind::confirm ? 1u : 2u);
  }
  expect_all(3);
  for (const auto& head : sink.headers) EXPECT_EQ(head.operation, 1u);
  EXPECT_EQ(pool.blocks_out(), 0u);
}

TEST_F(TcpDecoderTest, refuses_another_magic) {
  EXPECT_EQ(feed_damaged(0, std::byte{1}), TcpDecoder::Progress::fault);
  EXPECT_EQ(decoder.fault(), FrameFault::magic);
  EXPECT_EQ(decoder.space().count, 0);
}

TEST_F(TcpDecoderTest, refuses_another_version) {
  feed_damaged(4, std::byte{2});
  EXPECT_EQ(decoder.fault(), FrameFault::version);
}

TEST_F(TcpDecoderTest, refuses_an_unknown_kind) {
  feed_damaged(5, std::byte{0x80});
  EXPECT_EQ(decoder.fault(), FrameFault::kind);
}

TEST_F(TcpDecoderTest, refuses_a_payload_that_is_too_long) {
  feed_damaged(offsetof(FrameHeader, payload_bytes) + 3, std::byte{0xFF});
  EXPECT_EQ(decoder.fault(), FrameFault::payload_bytes);
}

TEST_F(TcpDecoderTest, refuses_a_header_with_one_wrong_bit) {
  feed_damaged(offsetof(FrameHeader, operation), std::byte{1});
  EXPECT_EQ(decoder.fault(), FrameFault::header_checksum);
  EXPECT_TRUE(sink.headers.empty());
}

TEST_F(TcpDecoderTest, refuses_a_payload_that_does_not_match_its_checksum) {
  auto payload = pattern(100'000, 1);
  FrameHeader head;
  head.flags = frame_flag_payload_checksum;
  head.payload_bytes = static_cast<uint32_t>(payload.size());
  head.payload_checksum = crc32c(payload.data(), payload.size());
  seal_frame(head);
  append(head, payload);
  EXPECT_EQ(feed(SIZE_MAX), TcpDecoder::Progress::more);
  EXPECT_EQ(sink.headers.size(), 1u);
  payload[70'000] ^= std::byte{4};
  append(head, payload);
  EXPECT_EQ(feed(SIZE_MAX), TcpDecoder::Progress::fault);
  EXPECT_EQ(decoder.fault(), FrameFault::payload_checksum);
  EXPECT_EQ(sink.headers.size(), 1u);
}

}  // namespace
}  // namespace unisono::conformance

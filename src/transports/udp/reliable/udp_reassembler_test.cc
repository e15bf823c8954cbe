#include "transports/udp/reliable/udp_reassembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/random.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

constexpr uint32_t fragment_bytes = 512;

// A frame of `payload_bytes` whose contents depend on its number.
struct Original {
  Original(uint32_t frame_number, uint32_t payload_bytes, uint32_t cut_bytes = fragment_bytes)
      : number(frame_number), cut(cut_bytes), payload(payload_bytes) {
    for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 31 + number * 17 + 1);
    header.group = 4;
    header.operation = number;
    header.payload_bytes = payload_bytes;
    seal_frame(header);
  }
  FragmentPosition position(uint32_t index) const { return {{number, index}, 64 + header.payload_bytes, cut}; }
  std::vector<std::byte> bytes(uint32_t index) const {
    const auto parts = fragment_parts(position(index), header, payload);
    std::vector<std::byte> joined(parts.header.begin(), parts.header.end());
    joined.insert(joined.end(), parts.payload.begin(), parts.payload.end());
    return joined;
  }
  uint32_t number, cut;
  FrameHeader header;
  std::vector<std::byte> payload;
};

struct TestSink : Sink {
  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    ++asked;
    if (target.size() < header.payload_bytes) return nullptr;
    return target.data();
  }
  void received(PeerIndex from, const FrameHeader& header, const View& view) override {
    EXPECT_EQ(from, 3u);
    frames.push_back(header);
    payloads.emplace_back(view.data, view.data + view.bytes);
    handles.push_back(view.handle);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}
  int asked = 0;
  std::vector<std::byte> target;  // the receive buffer that receive_buffer() returns; empty: receive_buffer() returns null
  std::vector<FrameHeader> frames;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<uint64_t> handles;
};

struct Receiver {
  explicit Receiver(size_t owner_bytes_max = 1u << 20) : pool({.owner_bytes_max = owner_bytes_max}), frames(3, pool) {}
  FragmentResult add(const Original& frame, uint32_t index) {
    const auto bytes = frame.bytes(index);
    // exact size, so that the address sanitizer finds a read past the end
    const auto exact = std::make_unique<std::byte[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), exact.get());
    return frames.add(frame.position(index), {exact.get(), bytes.size()}, sink);
  }
  PayloadPool pool;
  Reassembler frames;
  TestSink sink;
};

TEST(Reassembler, a_frame_is_delivered_whole_in_any_order_of_its_fragments) {
  const uint64_t seed = 1;
  Random random(seed);
  for (const bool placed : {false, true}) {
    for (uint32_t round = 0; round < 200; ++round) {
      Receiver receiver;
      const Original frame(0, static_cast<uint32_t>(random.below(6000)));
      if (placed) receiver.sink.target.resize(frame.payload.size());
      std::vector<uint32_t> order(frame.position(0).fragments());
      std::iota(order.begin(), order.end(), 0u);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      for (size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(receiver.add(frame, order[i]), i + 1 < order.size() ? FragmentResult::stored : FragmentResult::whole);
        EXPECT_EQ(receiver.add(frame, order[i]), FragmentResult::duplicate);
      }
      ASSERT_EQ(receiver.sink.payloads.size(), 1u);
      EXPECT_EQ(receiver.sink.payloads[0], frame.payload);
      EXPECT_EQ(receiver.sink.frames[0].header_checksum, frame.header.header_checksum);
      EXPECT_EQ(receiver.sink.asked, frame.payload.empty() ? 0 : 1);
      EXPECT_EQ(receiver.sink.handles[0] != 0, !placed && !frame.payload.empty());
      EXPECT_EQ(receiver.pool.blocks_out(), !placed && !frame.payload.empty() ? 1u : 0u) << "what it waited in is given back";
      EXPECT_EQ(receiver.frames.partial_frames(), 0u);
    }
  }
}

TEST(Reassembler, several_partial_frames_are_each_delivered_when_whole) {
  Receiver receiver;
  const Original first(0, 900), second(1, 900), third(2, 0);
  receiver.add(first, 0);
  receiver.add(second, 1);
  EXPECT_EQ(receiver.add(third, 0), FragmentResult::whole);
  EXPECT_EQ(receiver.add(second, 0), FragmentResult::whole);
  EXPECT_EQ(receiver.frames.partial_frames(), 1u);
  EXPECT_EQ(receiver.frames.oldest(), 0u);
  EXPECT_EQ(receiver.add(third, 0), FragmentResult::duplicate) << "over, but not the oldest";
  EXPECT_EQ(receiver.add(first, 1), FragmentResult::whole);
  EXPECT_EQ(receiver.frames.oldest(), 3u);
  EXPECT_EQ(receiver.add(second, 1), FragmentResult::duplicate);
  EXPECT_EQ(receiver.sink.frames.size(), 3u);
}

TEST(Reassembler, finished_frames_are_duplicates_and_frames_too_far_ahead_are_refused) {
  Receiver receiver;
  for (uint32_t number = 0; number < 1000; ++number) {
    const Original frame(number, 10);
    EXPECT_EQ(receiver.add(Original(number + fragment_frames_max, 10), 0), FragmentResult::ahead);
    EXPECT_EQ(receiver.add(frame, 0), FragmentResult::whole);
    receiver.pool.give(receiver.sink.handles.back());
    for (const uint32_t back : {0u, 1u, 255u, 256u, 257u, 999u}) {
      const Original old(number - std::min(back, number), 10);
      EXPECT_EQ(receiver.add(old, 0), FragmentResult::duplicate);
    }
  }
  EXPECT_EQ(receiver.sink.frames.size(), 1000u);
}

TEST(Reassembler, refuses_fragments_of_another_frame_size) {
  Receiver receiver;
  receiver.add(Original(0, 2000), 1);
  EXPECT_EQ(receiver.add(Original(0, 2001), 2), FragmentResult::inconsistent);
  const Original frame(0, 2000);
  auto position = frame.position(1);
  position.fragment_bytes = 600;
  EXPECT_EQ(receiver.frames.add(position, std::vector<std::byte>(600), receiver.sink), FragmentResult::inconsistent);
  EXPECT_EQ(receiver.add(frame, 2), FragmentResult::stored);
}

TEST(Reassembler, a_fragment_without_memory_is_refused_and_accepted_later) {
  Receiver receiver(8192);
  const Original first(0, 8000), second(1, 8000);
  EXPECT_EQ(receiver.add(first, 1), FragmentResult::stored);
  EXPECT_EQ(receiver.add(second, 0), FragmentResult::no_memory);
  EXPECT_EQ(receiver.add(second, 1), FragmentResult::no_memory);
  for (uint32_t index = 0; index < first.position(0).fragments(); ++index) receiver.add(first, index);
  ASSERT_EQ(receiver.sink.handles.size(), 1u);
  EXPECT_EQ(receiver.add(second, 1), FragmentResult::no_memory) << "still lent";
  receiver.pool.give(receiver.sink.handles[0]);
  for (uint32_t index = 0; index < second.position(0).fragments(); ++index)
    EXPECT_TRUE(to_be_acknowledged(receiver.add(second, index)));
  ASSERT_EQ(receiver.sink.payloads.size(), 2u);
  EXPECT_EQ(receiver.sink.payloads[1], second.payload);
  EXPECT_EQ(receiver.sink.asked, 2) << "once per frame, also if it came twice";
}

TEST(Reassembler, a_cancelled_receive_buffer_is_not_written) {
  Receiver receiver;
  const Original frame(0, 2000), other(1, 2000);
  receiver.sink.target.resize(2000);
  receiver.add(frame, 0);
  receiver.frames.cancel(4, 0);
  std::fill(receiver.sink.target.begin(), receiver.sink.target.end(), std::byte{0});
  for (uint32_t index = 1; index < 4; ++index) EXPECT_EQ(receiver.add(frame, index), FragmentResult::stored);
  EXPECT_EQ(receiver.add(frame, 4), FragmentResult::whole);
  EXPECT_TRUE(receiver.sink.frames.empty());
  EXPECT_EQ(std::count(receiver.sink.target.begin(), receiver.sink.target.end(), std::byte{0}), 2000);
  receiver.frames.cancel(4, 1);
  for (uint32_t index = 0; index < 5; ++index) receiver.add(other, index);
  EXPECT_EQ(receiver.sink.frames.size(), 1u) << "what comes later is the sink's to refuse";
}

TEST(Reassembler, a_header_that_check_frame_refuses_ends_the_link) {
  Receiver receiver;
  Original frame(0, 100);
  frame.header.epoch ^= 1;
  EXPECT_EQ(receiver.add(frame, 0), FragmentResult::corrupt);
  EXPECT_EQ(receiver.frames.fault(), FrameFault::header_checksum);
  EXPECT_EQ(receiver.add(Original(1, 100), 0), FragmentResult::corrupt);
  receiver.frames.reset();
  EXPECT_EQ(receiver.add(Original(0, 100), 0), FragmentResult::whole);
}

TEST(Reassembler, a_header_with_another_size_than_the_fragments_ends_the_link) {
  Receiver receiver;
  const Original frame(0, 100);
  auto position = frame.position(0);
  position.frame_bytes = 300;
  auto bytes = frame.bytes(0);
  bytes.resize(300);
  EXPECT_EQ(receiver.frames.add(position, bytes, receiver.sink), FragmentResult::corrupt);
  EXPECT_EQ(receiver.frames.fault(), FrameFault::payload_bytes);
  EXPECT_EQ(receiver.sink.asked, 0);
}

TEST(Reassembler, a_payload_that_does_not_match_its_checksum_ends_the_link) {
  for (const bool damaged : {false, true}) {
    Receiver receiver;
    Original frame(0, 1500);
    frame.header.flags = frame_flag_payload_checksum;
    frame.header.payload_checksum = crc32c(frame.payload.data(), frame.payload.size());
    seal_frame(frame.header);
    if (damaged) frame.payload[1499] ^= std::byte{1};
    for (uint32_t index = 0; index < 3; ++index) receiver.add(frame, index);
    EXPECT_EQ(receiver.add(frame, 3), damaged ? FragmentResult::corrupt : FragmentResult::whole);
    EXPECT_EQ(receiver.sink.frames.size(), damaged ? 0u : 1u);
    receiver.frames.reset();
    EXPECT_EQ(receiver.pool.blocks_out(), damaged ? 0u : 1u);
  }
}

TEST(Reassembler, no_datagram_causes_writes_outside_of_the_frame) {
  const uint64_t seed = 77;
  SCOPED_TRACE(seed);
  Random random(seed);
  uint64_t results[fragment_result_count] = {};
  for (int round = 0; round < 40; ++round) {
    Receiver receiver(1u << 20);
    receiver.sink.target.reserve(1400);  // must not move, because frames write into it
    for (int i = 0; i < 2000; ++i) {
      DatagramHeader header;
      header.op = random.chance(0.9) ? static_cast<uint32_t>(random.below(4)) : static_cast<uint32_t>(random.next());
      header.slice = static_cast<uint16_t>(random.chance(0.8)   ? 512 + random.below(2)
                                           : random.chance(0.7) ? recut_fragment_bytes + random.below(2)
                                                                : random.next());
      header.deadline_us = random.chance(0.9) ? static_cast<uint32_t>(60 + random.below(3) * 700)
                                              : static_cast<uint32_t>(random.below(2 * frame_bytes_max));
      header.packet_index = random.chance(0.9) ? static_cast<uint32_t>(random.below(4)) : static_cast<uint32_t>(random.next());
      const auto last = header.slice == 0 ? 0 : header.deadline_us % header.slice;
      header.payload_bytes = static_cast<uint16_t>(random.chance(0.5)   ? header.slice
                                                   : random.chance(0.8) ? last
                                                                        : random.next());
      FragmentPosition position;
      if (!read_position(header, position)) continue;
      const auto payload = std::make_unique<std::byte[]>(position.bytes());
      for (uint32_t at = 0; at < position.bytes(); ++at) payload[at] = static_cast<std::byte>(random.next());
      if (position.name.index == 0 && random.chance(0.97)) {
        FrameHeader frame;
        frame.payload_bytes = position.frame_bytes - 64;
        seal_frame(frame);
        std::memcpy(payload.get(), &frame, sizeof frame);
      }
      receiver.sink.target.resize(random.below(2) * 1400);
      if (!receiver.sink.frames.empty() && random.chance(0.1)) receiver.frames.cancel(0, 0);
      const auto result = receiver.frames.add(position, {payload.get(), position.bytes()}, receiver.sink);
      ++results[static_cast<int>(result)];
      if (result == FragmentResult::whole && receiver.sink.handles.back() != 0)
        receiver.pool.give(receiver.sink.handles.back());
      if (result == FragmentResult::corrupt) receiver.frames.reset();
    }
  }
  for (int result = 0; result < fragment_result_count; ++result)
    EXPECT_GT(results[result], 0u) << name(static_cast<FragmentResult>(result));
}

TEST(Reassembler, a_frame_that_is_cut_again_is_delivered_whole_and_keeps_what_has_arrived) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Receiver receiver;
    const Original frame(0, static_cast<uint32_t>(random.below(40'000)), random.chance(0.5) ? 1416 : 8916);
    if (random.chance(0.5)) receiver.sink.target.resize(frame.payload.size());
    Original again = frame;
    again.cut = recut_fragment_bytes;
    const auto fragments = frame.position(0).fragments();
    std::vector<uint64_t> arrived((fragments + 63) / 64);
    for (uint32_t index = 0; index + 1 < fragments; ++index) {
      if (!random.chance(0.5)) continue;
      EXPECT_EQ(receiver.add(frame, index), FragmentResult::stored);
      arrived[index / 64] |= uint64_t{1} << (index % 64);
    }
    const auto kept = recut_bits(arrived, 64 + frame.header.payload_bytes, frame.cut, again.cut);
    uint32_t left = again.position(0).fragments() - count_bits(kept);
    const bool begun = count_bits(arrived) > 0;
    for (uint32_t index = again.position(0).fragments(); index-- > 0;) {
      const bool known = begun && (kept[index / 64] >> (index % 64) & 1) != 0;
      const auto result = receiver.add(again, index);
      if (left == 0) break;
      EXPECT_EQ(result, known ? FragmentResult::duplicate : --left > 0 ? FragmentResult::stored : FragmentResult::whole);
    }
    ASSERT_EQ(receiver.sink.payloads.size(), 1u);
    EXPECT_EQ(receiver.sink.payloads[0], frame.payload);
  }
}

TEST(Reassembler, fragments_from_before_the_recut_are_outdated_and_other_sizes_are_inconsistent) {
  Receiver receiver;
  const Original frame(0, 9000, 1416);
  auto again = frame, other = frame, shorter = frame;
  again.cut = recut_fragment_bytes, other.cut = 1300, shorter.cut = 600;
  EXPECT_EQ(receiver.add(frame, 1), FragmentResult::stored);
  EXPECT_EQ(receiver.add(other, 0), FragmentResult::inconsistent);
  EXPECT_EQ(receiver.add(again, 0), FragmentResult::stored);
  EXPECT_EQ(receiver.add(frame, 2), FragmentResult::outdated);
  EXPECT_EQ(receiver.add(shorter, 2), FragmentResult::inconsistent);
  Receiver fresh;
  EXPECT_EQ(fresh.add(again, 0), FragmentResult::stored);
  EXPECT_EQ(fresh.add(frame, 2), FragmentResult::outdated) << "it left before the frame was cut again, and was slower";
  Receiver small;
  EXPECT_EQ(small.add(shorter, 0), FragmentResult::stored);
  EXPECT_EQ(small.add(again, 1), FragmentResult::inconsistent) << "a frame is never cut into longer fragments";
}

TEST(Reassembler, a_reset_returns_blocks_of_partial_frames) {
  Receiver receiver;
  for (uint32_t number = 0; number < 20; ++number) receiver.add(Original(number, 5000), 1);
  EXPECT_EQ(receiver.pool.blocks_out(), 20u);
  receiver.frames.reset();
  EXPECT_EQ(receiver.pool.blocks_out(), 0u);
}

}  // namespace
}  // namespace unisono

// Promises about frames: each frame arrives once and whole, in the buffer of the sink, and obeys the flow control.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "transport_cluster.h"

namespace unisono::conformance {

inline FrameHeader data_header(uint64_t operation, size_t bytes) {
  FrameHeader header;
  header.group = 7;
  header.operation = operation;
  header.payload_bytes = static_cast<uint32_t>(bytes);
  return header;
}

// Sends a frame as soon as there is credit (permission to send). `recorders` keeps a copy of the payload until sent() is
// called, because a sender may need the payload even after the frame has arrived.
inline void send_soon(Cluster& cluster, Recorders& recorders, size_t from, size_t to, const FrameHeader& header,
                      ByteView payload, uint64_t id = 0) {
  const auto peer = static_cast<PeerIndex>(to);
  ASSERT_TRUE(recorders.until([&] { return cluster.at(from).credit(peer) > 0; })) << "no credit in time";
  cluster.at(from).send(peer, header, recorders[from].keep(payload), id);
}

inline void expect_frame(const Recorder::Frame& frame, ByteView payload, bool placed) {
  auto sealed = frame.header;  // The transport sets header_checksum, so compute it here, too.
  seal_frame(sealed);
  EXPECT_EQ(check_frame(sealed), FrameFault::none);
  EXPECT_EQ(frame.header.payload_bytes, payload.size());
  EXPECT_TRUE(same(frame.payload, payload)) << payload.size() << " bytes of operation " << frame.header.operation;
  if (!payload.empty()) {
    EXPECT_EQ(frame.placed, placed);
  }
}

inline constexpr std::array<size_t, 9> frame_sizes = {0, 1, 63, 4096, 4097, 64u << 10, 65537, 1u << 20, payload_bytes_max};

// Sends frames of every size between the transports 0 and 1. Sends frames of up to 1 MiB between all other pairs.
inline void frames_of_every_size(Cluster& cluster, bool place) {
  Recorders recorders(cluster);
  Bytes target(payload_bytes_max);
  for (size_t i = 0; i < cluster.size(); ++i) {
    if (place) recorders[i].on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return target.data(); };
  }
  uint64_t operation = 0;
  for (size_t from = 0; from < cluster.size(); ++from) {
    for (size_t to = 0; to < cluster.size(); ++to) {
      if (from == to) continue;
      for (const size_t size : frame_sizes) {
        if (size > (1u << 20) && from + to != 1) continue;
        const auto payload = pattern(size, test_seed() + ++operation);
        ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, from, to, data_header(operation, size), payload, operation));
        ASSERT_TRUE(recorders.until([&] { return !recorders[to].frames.empty(); })) << size << " bytes did not arrive";
        ASSERT_EQ(recorders[to].frames.size(), 1u);
        EXPECT_EQ(recorders[to].frames[0].from, from);
        EXPECT_EQ(recorders[to].frames[0].header.operation, operation);
        // If the transport already has the payload in memory, it may pass a zero-copy view, although the sink has offered a
        // buffer.
        expect_frame(recorders[to].frames[0], payload, recorders[to].buffer_requests > 0 && place);
        recorders[to].frames.clear();
        recorders[to].buffer_requests = 0;
      }
    }
  }
  for (int turn = 0; turn < 100; ++turn) recorders.turn_all();
  for (size_t i = 0; i < cluster.size(); ++i) EXPECT_TRUE(recorders[i].frames.empty()) << "a frame came twice";
}

inline void frames_of_every_size_are_placed_intact(Cluster& cluster) { frames_of_every_size(cluster, true); }
inline void frames_of_every_size_come_intact_as_views(Cluster& cluster) { frames_of_every_size(cluster, false); }

inline void unaligned_payloads_arrive_intact(Cluster& cluster) {
  Recorders recorders(cluster);
  for (size_t shift = 0; shift < 9; ++shift) {
    for (const size_t size : {size_t{5}, size_t{1000}, size_t{100'003}}) {
      Bytes source(size + shift), target(size + 16, std::byte{0xEE});
      const auto payload = std::span(source).subspan(shift);
      fill(payload, test_seed() + shift);
      auto* place = target.data() + 9 - shift;
      recorders[1].on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return place; };
      ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(1, size), payload));
      ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == 1; }));
      expect_frame(recorders[1].frames[0], payload, recorders[1].frames[0].placed);
      EXPECT_EQ(*(place - 1), std::byte{0xEE}) << "the byte before the target was written";
      EXPECT_EQ(place[size], std::byte{0xEE}) << "the byte behind the target was written";
      recorders[1].frames.clear();
    }
  }
}

inline void headers_arrive_unchanged(Cluster& cluster) {
  Recorders recorders(cluster);
  FrameHeader header;
  header.kind = FrameKind::control;
  header.codec = 9;
  header.epoch = 0xE0E1E2E3;
  header.group = 0x60616263;
  header.operation = 0x0001020304050607;
  header.sender = 3;
  header.round = 0x7FFF;
  header.chunk = 0xC0000001;
  header.slice = 0x50000001;
  header.amount = UINT64_MAX;
  header.descriptor = 0xDEADBEEF;
  const auto payload = pattern(100, test_seed());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 1, 0, header, payload));
  ASSERT_TRUE(recorders.until([&] { return recorders[0].frames.size() == 1; }));
  const auto& got = recorders[0].frames[0].header;
  EXPECT_EQ(got.payload_bytes, 100u);
  // All fields before payload_bytes must arrive unchanged. Only `flags` and `confirmed` may differ, because they belong to the
  // transport.
  header.flags = got.flags;
  header.confirmed = got.confirmed;
  EXPECT_EQ(std::memcmp(&got, &header, offsetof(FrameHeader, payload_bytes)), 0);
}

// next() returns the same expected frame again and again, until take_next() takes it. poll() delivers the frames that were not
// taken. If a transport does not look ahead, its next() never returns the expected frame.
inline void next_shows_the_frame_that_arrives(Cluster& cluster) {
  Recorders recorders(cluster);
  auto& transport = cluster.at(1);
  const Bytes payloads[] = {pattern(100, test_seed()), {}, pattern(5000, test_seed() + 1)};
  for (size_t i = 0; i < std::size(payloads); ++i) {
    ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(i, payloads[i].size()), payloads[i]));
    if (!transport.looks_ahead()) continue;
    ASSERT_TRUE(recorders[1].frames.empty()) << "it was polled before it could look";
  }
  const auto expected = [&](size_t i) { return data_header(i, payloads[i].size()); };
  const std::byte* payload = nullptr;
  size_t taken = 0;
  for (; transport.looks_ahead() && taken < 2; ++taken) {
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(transport.next(0, expected(taken + 1), payload), Next::other);
      ASSERT_EQ(transport.next(0, expected(taken), payload), Next::expected);
      EXPECT_TRUE(same({payload, payloads[taken].size()}, payloads[taken]));
    }
    const PeerIndex from[] = {0};
    transport.take_next(from);
  }
  if (!transport.looks_ahead()) {
    EXPECT_NE(transport.next(0, expected(0), payload), Next::expected);
  }
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() >= std::size(payloads) - taken; }));
  for (const auto& frame : recorders[1].frames) EXPECT_TRUE(same(frame.payload, payloads[frame.header.operation]));
  EXPECT_EQ(recorders[1].frames.size(), std::size(payloads) - taken);
  EXPECT_EQ(transport.next(0, expected(0), payload), Next::none) << "there is nothing left";
  EXPECT_EQ(transport.counters().received_frames, std::size(payloads));
}

inline void many_frames_obey_flow_control(Cluster& cluster) {
  Recorders recorders(cluster);
  constexpr size_t count = 3000, distinct = 16;
  std::vector<Bytes> payloads;
  for (size_t i = 0; i < distinct; ++i) payloads.push_back(pattern(100 + i * 2500, test_seed() + i));
  size_t next = 0, refusals = 0;
  bool waits = false;
  const bool all = recorders.until([&] {
    // If there is no credit, wait for a credit() upcall: nothing else may announce new credit.
    if (waits && recorders[0].credits[1] > 0) waits = false;
    while (!waits && next < count) {
      if (cluster.at(0).credit(1) == 0) {
        recorders[0].credits[1] = 0;
        waits = true;
        ++refusals;
        break;
      }
      const auto& payload = payloads[next % distinct];
      cluster.at(0).send(1, data_header(next, payload.size()), payload, next);
      ++next;
    }
    return recorders[1].frames.size() >= count;
  });
  ASSERT_TRUE(all) << next << " sent, " << recorders[1].frames.size() << " arrived, " << refusals << " refusals, waits "
                   << waits;
  ASSERT_EQ(recorders[1].frames.size(), count);
  std::vector<int> seen(count);
  for (const auto& frame : recorders[1].frames) {
    ++seen.at(frame.header.operation);
    ASSERT_TRUE(same(frame.payload, payloads[frame.header.operation % distinct]));
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
}

inline void all_peers_send_to_all_peers(Cluster& cluster) {
  Recorders recorders(cluster);
  const size_t count = cluster.size(), each = 50;
  std::vector<Bytes> payloads;
  for (size_t i = 0; i < each; ++i) payloads.push_back(pattern((i * i * 97) % 70'000, test_seed() + i));
  std::vector<std::vector<size_t>> next(count, std::vector<size_t>(count, 0));
  const bool all = recorders.until([&] {
    bool complete = true;
    for (size_t from = 0; from < count; ++from) {
      for (size_t to = 0; to < count; ++to) {
        auto& n = next[from][to];
        const auto peer = static_cast<PeerIndex>(to);
        while (from != to && n < each && cluster.at(from).credit(peer) > 0) {
          cluster.at(from).send(peer, data_header(n, payloads[n].size()), payloads[n], n);
          ++n;
        }
      }
      complete &= recorders[from].frames.size() >= each * (count - 1);
    }
    return complete;
  });
  ASSERT_TRUE(all);
  for (size_t to = 0; to < count; ++to) {
    ASSERT_EQ(recorders[to].frames.size(), each * (count - 1));
    std::map<std::pair<PeerIndex, uint64_t>, int> seen;
    for (const auto& frame : recorders[to].frames) {
      ++seen[{frame.from, frame.header.operation}];
      ASSERT_TRUE(same(frame.payload, payloads.at(frame.header.operation)));
    }
    EXPECT_EQ(seen.size(), each * (count - 1));
  }
}

inline void the_sink_may_answer_from_inside_an_upcall(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(3000, test_seed());
  constexpr uint64_t rounds = 200;
  const auto answer = [&](size_t self) {
    return [&, self](PeerIndex from, const FrameHeader& header) {
      if (header.operation < rounds && cluster.at(self).credit(from) > 0) {
        cluster.at(self).send(from, data_header(header.operation + 1, payload.size()), payload, 0);
      }
    };
  };
  recorders[0].on_received = answer(0);
  recorders[1].on_received = answer(1);
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(0, payload.size()), payload));
  ASSERT_TRUE(recorders.until([&] { return recorders[0].frames.size() + recorders[1].frames.size() == rounds + 1; }));
}

}  // namespace unisono::conformance

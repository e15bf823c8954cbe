// The path's datagram size changes while a link is up: frames and ranges that were cut for longer datagrams still arrive.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_test_support.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using conformance::same;

constexpr uint32_t whole = 1472;

class UdpPathSize : public testing::Test {
 protected:
  void begin(uint32_t carries = whole) {
    for (size_t i = 0; i < 2; ++i) cluster.start(i);
    cluster.network.datagram_bytes_max = carries;
    cluster.link_all();
    cluster.pass(100 * millisecond);
    ASSERT_EQ(bytes(0), carries);
    ASSERT_EQ(bytes(1), carries);
  }
  // Loses longer datagrams from now on, as routers do that send no notice.
  void carry_only(size_t bytes_max) {
    cluster.network.filter = [bytes_max](const VirtualNetwork::Datagram& datagram) {
      return datagram.bytes.size() <= bytes_max;
    };
  }
  uint32_t bytes(size_t from) const {
    return cluster.transports[from]->flow(static_cast<PeerIndex>(1 - from))->datagram_bytes();
  }
  DatagramSizeChange change(size_t from) const {
    return cluster.transports[from]->size_change(static_cast<PeerIndex>(1 - from));
  }
  std::string link_state(size_t from) const { return cluster.transports[from]->link_state(static_cast<PeerIndex>(1 - from)); }
  void send(const Bytes& payload) {
    cluster.transports[0]->send(1, data_header(next_, payload.size()), payload, next_), ++next_;
  }
  bool all_arrived(size_t frames) {
    return cluster.frame_sinks[1]->frames.size() == frames && !cluster.transports[0]->has_pending();
  }

  VirtualCluster cluster{0};
  uint64_t next_ = 1;
};

constexpr const char* acknowledgement_text = "datagrams to it are now 1200 bytes, because larger ones get no acknowledgement";

TEST_F(UdpPathSize, frames_in_flight_arrive_after_the_path_became_smaller) {
  begin();
  const auto first = pattern(3'000'000, 1), later = pattern(500'000, 2);
  send(first);
  ASSERT_TRUE(cluster.until([&] { return cluster.transports[0]->flow(1)->losses().outstanding() > 20; }));
  carry_only(1400);
  const auto since = cluster.network.now;
  send(later);
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == 1200; }, 300 * millisecond));
  ASSERT_TRUE(cluster.until([&] { return all_arrived(2); }, 3 * second));
  EXPECT_LE(cluster.network.now - since, 2 * second);
  for (const auto& frame : cluster.frame_sinks[1]->frames)
    EXPECT_TRUE(same(frame.payload, frame.header.operation == 1 ? first : later));
  for (const auto id : {uint64_t{1}, uint64_t{2}})
    EXPECT_EQ(cluster.frame_sinks[0]->sent_ids[id], 1) << "its memory is given back once";
  EXPECT_TRUE(cluster.frame_sinks[0]->losses.empty());
  EXPECT_EQ(change(0), (DatagramSizeChange{.count = 1, .bytes = 1200, .before = whole, .largest = whole}));
  EXPECT_EQ(link_state(0), acknowledgement_text);
  EXPECT_NE(cluster.transports[0]->describe(1).find(acknowledgement_text), std::string::npos);
}

TEST_F(UdpPathSize, each_change_of_the_size_is_noticed_once) {
  begin();
  EXPECT_TRUE(cluster.frame_sinks[0]->notices.empty()) << "the size that is found when the link is made is no change";
  carry_only(1400);
  const auto payload = pattern(500'000, 1);
  send(payload);
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == 1200; }, second));
  cluster.pass(100 * millisecond);
  using Notices = decltype(cluster.frame_sinks[0]->notices);
  const Notices smaller = {{1, EventKind::smaller_datagrams, acknowledgement_text}};
  EXPECT_EQ(cluster.frame_sinks[0]->notices, smaller);
  carry_only(whole);
  cluster.pass(PathProbe::raise_max + second);
  ASSERT_EQ(bytes(0), whole);
  auto both = smaller;
  both.push_back({1, EventKind::larger_datagrams,
                  "datagrams to it are now 1472 bytes, because datagrams of this size get "
                  "acknowledgements"});
  EXPECT_EQ(cluster.frame_sinks[0]->notices, both);
}

TEST_F(UdpPathSize, jumbo_frames_fall_to_the_size_of_ethernet) {
  begin(8972);
  const auto payload = pattern(2'000'000, 1);
  send(payload);
  ASSERT_TRUE(cluster.until([&] { return cluster.transports[0]->flow(1)->losses().outstanding() > 5; }));
  carry_only(whole);
  ASSERT_TRUE(cluster.until([&] { return all_arrived(1); }, 3 * second));
  EXPECT_TRUE(same(cluster.frame_sinks[1]->frames[0].payload, payload));
  EXPECT_EQ(bytes(0), whole);
}

TEST_F(UdpPathSize, frames_arrive_at_many_sizes_losses_and_orders) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    VirtualCluster lossy(2, seed);
    lossy.network.datagram_bytes_max = seed % 2 == 0 ? 8972 : whole;
    lossy.link_all();
    lossy.pass(100 * millisecond);
    lossy.network.lose = 0.02 * static_cast<double>(seed % 5);
    lossy.network.jitter = seed % 3 == 0 ? millisecond : 0;
    lossy.network.repeat = 0.05;
    Random random(seed);
    std::vector<Bytes> payloads;
    for (int i = 0; i < 30; ++i) payloads.push_back(pattern(random.below(200'000), i + 1));
    for (size_t i = 0; i < payloads.size(); ++i)
      lossy.transports[0]->send(1, data_header(i, payloads[i].size()), payloads[i], i + 1);
    lossy.pass(static_cast<Nanos>(random.below(20)) * millisecond);
    const auto carries = 1200 + random.below(200);
    lossy.network.filter = [carries](const VirtualNetwork::Datagram& datagram) { return datagram.bytes.size() <= carries; };
    ASSERT_TRUE(lossy.until(
        [&] { return lossy.frame_sinks[1]->frames.size() == payloads.size() && !lossy.transports[0]->has_pending(); },
        20 * second));
    for (const auto& frame : lossy.frame_sinks[1]->frames) EXPECT_TRUE(same(frame.payload, payloads[frame.header.operation]));
    for (size_t i = 0; i < payloads.size(); ++i) EXPECT_LE(lossy.frame_sinks[0]->sent_ids[i + 1], 1);
  }
}

TEST_F(UdpPathSize, a_size_that_comes_back_is_used_again) {
  begin();
  carry_only(1400);
  const auto payload = pattern(500'000, 1);
  send(payload);
  ASSERT_TRUE(cluster.until([&] { return all_arrived(1); }));
  ASSERT_EQ(bytes(0), 1200u);
  cluster.network.filter = nullptr;
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == whole; }, PathProbe::raise_max + second));
  EXPECT_EQ(link_state(0), "");
  EXPECT_EQ(change(0).count, 2u);
  EXPECT_EQ(describe_size_change("rank 1", change(0)),
            "datagrams to rank 1 are now 1472 bytes, because datagrams of this size get acknowledgements");
  size_t longest = 0;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
    if (datagram.header().kind == DatagramKind::fragment) longest = std::max(longest, datagram.bytes.size());
  };
  send(payload);
  ASSERT_TRUE(cluster.until([&] { return all_arrived(2); }));
  EXPECT_EQ(longest, whole);
}

TEST_F(UdpPathSize, losses_and_outages_without_a_black_hole_leave_the_size_as_it_is) {
  begin();
  for (const double lose : {0.0, 0.1, 0.2}) {
    cluster.network.lose = lose;
    const auto payload = pattern(2'000'000, 1);
    const auto before = cluster.frame_sinks[1]->frames.size();
    send(payload);
    ASSERT_TRUE(cluster.until([&] { return all_arrived(before + 1); }, 60 * second));
    EXPECT_EQ(change(0).count, 0u) << lose;
  }
  cluster.network.lose = 0;
  const auto payload = pattern(500'000, 1);
  send(payload);
  carry_only(0);
  cluster.pass(5 * second);
  cluster.network.filter = nullptr;
  ASSERT_TRUE(cluster.until([&] { return !cluster.transports[0]->has_pending(); }, 5 * second));
  EXPECT_EQ(change(0).count, 0u);
}

TEST_F(UdpPathSize, a_size_that_the_own_host_refuses_ends_no_link) {
  begin();
  const auto payload = pattern(1'000'000, 1);
  send(payload);
  ASSERT_TRUE(cluster.until([&] { return cluster.transports[0]->flow(1)->losses().outstanding() > 20; }));
  cluster.network.datagram_bytes_max = 1400;
  ASSERT_TRUE(cluster.until([&] { return all_arrived(1); }, 3 * second));
  EXPECT_TRUE(same(cluster.frame_sinks[1]->frames[0].payload, payload));
  EXPECT_EQ(link_state(0), "datagrams to it are now 1200 bytes, because the network of this host refuses larger ones");
  cluster.network.datagram_bytes_max = whole;
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == whole; }, PathProbe::raise_max + second));
}

// Streams of a lossy group -----------------------------------------------------------------------------------------------

class Ranges final : public DatagramSink {
 public:
  DatagramFault datagram(uint32_t, Rank, const DatagramHeader& header, std::span<const std::byte> payload, Nanos) override {
    if (header.kind == DatagramKind::end) {
      ++ends;
      return DatagramFault::none;
    }
    EXPECT_EQ(header.flags & datagram_part, 0);
    EXPECT_EQ(header.payload_bytes, payload.size());
    const bool fresh = ranges.emplace(header.packet_index, Bytes(payload.begin(), payload.end())).second;
    return fresh ? DatagramFault::none : DatagramFault::duplicate;
  }
  void stream_requested(uint32_t, Rank, const StreamRequest&, Nanos) override {}
  void stream_sent(uint32_t, Rank, StreamName) override { ++sent; }
  Bytes joined() const {
    Bytes bytes;
    for (const auto& [index, range] : ranges) bytes.insert(bytes.end(), range.begin(), range.end());
    return bytes;
  }
  std::map<uint32_t, Bytes> ranges;
  int ends = 0, sent = 0;
};

class UdpPathSizeOfStreams : public UdpPathSize {
 protected:
  void open(uint32_t carries = whole) {
    begin(carries);
    const std::vector<PeerIndex> peers{0, 1};
    for (Rank rank = 0; rank < 2; ++rank) {
      group.self = rank;
      ASSERT_TRUE(cluster.transports[rank]->open_group(group_number, group, peers, sinks[rank]).ok());
    }
  }
  void send_stream(const Bytes& payload, uint32_t op, size_t range_bytes) {
    sinks[1].ranges.clear();
    cluster.transports[0]->send_stream(group_number, {.to = 1,
                                                      .name = {.op = op, .phase = 0},
                                                      .bytes = payload,
                                                      .range_bytes = range_bytes,
                                                      .contributors = {},
                                                      .deadline_us = 1});
  }
  void ask_for(uint32_t op, uint32_t ranges) {
    Bytes bitmap((ranges + 7) / 8, std::byte{0});
    for (uint32_t range = 0; range < ranges; ++range) {
      if (!sinks[1].ranges.contains(range)) bitmap[range / 8] |= std::byte{1} << (range % 8);
    }
    cluster.transports[1]->request_repair(group_number, 0, {.op = op, .phase = 0}, 0, 0, bitmap);
  }
  Ranges sinks[2];
  DatagramGroup group{.run_id = 77, .epoch = 7, .self = 0, .world = 2, .auth = DatagramAuth::mac, .key = {}};
};

TEST_F(UdpPathSizeOfStreams, ranges_of_a_running_stream_arrive_in_parts_when_they_are_asked_for) {
  open();
  const auto payload = pattern(100 * 1408, 3);
  carry_only(1400);
  send_stream(payload, 1, 1408);
  for (int round = 0; round < 60 && sinks[1].ranges.size() < 100; ++round) {
    cluster.pass(10 * millisecond);
    ask_for(1, 100);
  }
  EXPECT_TRUE(same(sinks[1].joined(), payload));
  EXPECT_EQ(bytes(0), 1200u);
}

TEST_F(UdpPathSizeOfStreams, long_ranges_travel_in_several_parts_also_if_parts_are_lost_and_overtake_each_other) {
  open(8972);
  const auto payload = pattern(40 * 8896, 3);
  cluster.network.lose = 0.05;
  cluster.network.jitter = millisecond;
  carry_only(1300);
  send_stream(payload, 1, 8896);
  for (int round = 0; round < 100 && sinks[1].ranges.size() < 40; ++round) {
    cluster.pass(20 * millisecond);
    ask_for(1, 40);
  }
  EXPECT_TRUE(same(sinks[1].joined(), payload));
}

TEST_F(UdpPathSizeOfStreams, later_streams_lose_nothing) {
  open();
  const auto payload = pattern(50 * 1408, 3);
  carry_only(1400);
  for (uint32_t op = 1; op <= 5; ++op) {
    send_stream(payload, op, 1408);
    cluster.pass(100 * millisecond);
    cluster.transports[0]->drop_stream(group_number, 1, {.op = op, .phase = 0});
    EXPECT_EQ(sinks[1].ranges.size(), op == 1 ? sinks[1].ranges.size() : 50u) << op;
  }
  EXPECT_EQ(sinks[0].sent, 5);
  EXPECT_EQ(change(0).count, 1u);
  EXPECT_GT(cluster.transports[0]->datagram_counters(group_number, 1).sent, 4u * 100);
}

TEST_F(UdpPathSizeOfStreams, a_stream_of_shorter_ranges_than_the_link_carries_shows_a_black_hole_too) {
  open(8972);
  const auto payload = pattern(100 * 1408, 3);
  carry_only(1400);
  send_stream(payload, 1, 1408);
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == 1200; }, 300 * millisecond));
}

TEST_F(UdpPathSizeOfStreams, whole_ranges_travel_again_when_the_size_comes_back) {
  open();
  const auto payload = pattern(50 * 1408, 3);
  carry_only(1400);
  send_stream(payload, 1, 1408);
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == 1200; }, 300 * millisecond));
  cluster.transports[0]->drop_stream(group_number, 1, {.op = 1, .phase = 0});
  cluster.network.filter = nullptr;
  ASSERT_TRUE(cluster.until([&] { return bytes(0) == whole; }, PathProbe::raise_max + second));
  size_t parts = 0;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
    parts += datagram.header().kind == DatagramKind::data && (datagram.header().flags & datagram_part) != 0;
  };
  send_stream(payload, 2, 1408);
  cluster.pass(100 * millisecond);
  EXPECT_TRUE(same(sinks[1].joined(), payload));
  EXPECT_EQ(parts, 0u);
}

}  // namespace
}  // namespace unisono

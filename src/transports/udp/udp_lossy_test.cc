// Tests of the streams of lossy groups: whole transports over a virtual network.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_test_support.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using conformance::same;

// Keeps the ranges that one receiver gets, by sender and stream.
class Collector final : public DatagramSink {
 public:
  struct Stream {
    std::map<uint32_t, Bytes> ranges;  // key: slice * ranges_per_slice + packet_index
    size_t ends = 0, tails = 0, repaired = 0, duplicates = 0;
    std::set<uint16_t> contributors;
  };
  DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                         Nanos) override {
    EXPECT_EQ(group, group_number);
    ++calls;
    auto& stream = streams[{from, header.op, header.phase}];
    if (header.kind == DatagramKind::end) {
      ++stream.ends;
      return DatagramFault::none;
    }
    stream.tails += (header.flags & datagram_tail) != 0;
    stream.repaired += (header.flags & datagram_repaired) != 0;
    stream.contributors.insert(header.contributors);
    deadline_us = header.deadline_us;
    const bool fresh =
        stream.ranges.emplace(header.slice * ranges_per_slice + header.packet_index, Bytes(payload.begin(), payload.end()))
            .second;
    stream.duplicates += !fresh;
    return fresh ? verdict : DatagramFault::duplicate;
  }
  void stream_requested(uint32_t group, Rank from, const StreamRequest& request, Nanos) override {
    EXPECT_EQ(group, group_number);
    requests.emplace_back(from, request);
  }
  void stream_sent(uint32_t, Rank to, StreamName stream) override { ++sent[{to, stream.op, stream.phase}]; }
  Bytes whole(Rank from, uint32_t op, uint8_t phase) {
    Bytes bytes;
    for (const auto& [index, range] : streams[{from, op, phase}].ranges) bytes.insert(bytes.end(), range.begin(), range.end());
    return bytes;
  }

  std::map<std::tuple<Rank, uint32_t, uint8_t>, Stream> streams;
  std::map<std::tuple<Rank, uint32_t, uint8_t>, int> sent;
  std::vector<std::pair<Rank, StreamRequest>> requests;
  DatagramFault verdict = DatagramFault::none;
  size_t calls = 0;
  uint32_t deadline_us = 0;
};

class UdpLossy : public testing::Test {
 protected:
  void begin(size_t count, UdpOptions options = {}) {
    cluster.options = options;
    for (size_t i = 0; i < count; ++i) cluster.start(i);
    cluster.link_all();
    cluster.pass(50 * millisecond);  // time for the path probes
    sinks.resize(count);
    std::vector<PeerIndex> peers(count);
    for (size_t i = 0; i < count; ++i) peers[i] = static_cast<PeerIndex>(i);
    for (size_t i = 0; i < count; ++i) {
      group.self = static_cast<Rank>(i);
      group.world = static_cast<uint32_t>(count);
      ASSERT_TRUE(cluster.transports[i]->open_group(group_number, group, peers, sinks[i]).ok());
    }
    group.self = 0;
  }
  OutStream stream(Rank to, const Bytes& bytes, StreamName name, size_t range_bytes = 1000) {
    return {.to = to, .name = name, .bytes = bytes, .range_bytes = range_bytes, .contributors = {}, .deadline_us = 77'000};
  }
  Collector::Stream& got(size_t at, Rank from, StreamName name) { return sinks[at].streams[{from, name.op, name.phase}]; }
  uint64_t dropped(size_t at) const {
    uint64_t sum = 0;
    for (int fault = 0; fault < datagram_fault_count; ++fault)
      sum += cluster.transports[at]->dropped(static_cast<DatagramFault>(fault));
    return sum;
  }
  // Process `at` requests from rank `from` the missing ranges of a stream of `ranges` ranges. If none is missing, it confirms
  // the stream.
  void ask_for_missing(size_t at, Rank from, StreamName name, uint32_t ranges) {
    Bytes bitmap((ranges + 7) / 8, std::byte{0});
    bool any = false;
    for (uint32_t range = 0; range < ranges; ++range) {
      if (got(at, from, name).ranges.contains(range)) continue;
      bitmap[range / 8] |= std::byte{static_cast<uint8_t>(1u << (range % 8))};
      any = true;
    }
    if (!any) bitmap.clear();
    cluster.transports[at]->request_repair(group_number, from, name, 0, 0, bitmap);
  }

  VirtualCluster cluster{0};
  std::deque<Collector> sinks;
  DatagramGroup group{.run_id = 0x1122334455667788, .epoch = 7, .self = 0, .world = 2, .auth = DatagramAuth::mac, .key = {}};
};

TEST_F(UdpLossy, without_loss_every_range_arrives_once_exactly_as_it_was_cut) {
  begin(3);
  const auto dropped_before = dropped(0) + dropped(1) + dropped(2);
  const StreamName name{.op = 41, .phase = 1};
  std::vector<Bytes> payloads;
  std::vector<uint16_t> contributors(200, 3);
  for (size_t i = 0; i < 6; ++i) payloads.push_back(pattern(199'500, i));
  for (Rank from = 0; from < 3; ++from) {
    for (Rank to = 0; to < 3; ++to) {
      auto out = stream(to, payloads[from * 2 + (to > from ? to - 1 : to)], name);
      out.contributors = contributors;
      if (from != to) cluster.transports[from]->send_stream(group_number, out);
    }
  }
  cluster.pass(300 * millisecond);
  for (Rank from = 0; from < 3; ++from) {
    for (Rank to = 0; to < 3; ++to) {
      if (from == to) continue;
      auto& arrived = got(to, from, name);
      EXPECT_EQ(arrived.ranges.size(), 200u);
      EXPECT_EQ(arrived.duplicates, 0u);
      EXPECT_EQ(arrived.tails, 8u);
      EXPECT_GE(arrived.ends, 3u);
      EXPECT_EQ(arrived.contributors, std::set<uint16_t>{3});
      EXPECT_TRUE(same(sinks[to].whole(from, 41, 1), payloads[from * 2 + (to > from ? to - 1 : to)]));
      const auto told = sinks[from].sent[{to, 41, uint8_t{1}}];
      EXPECT_EQ(told, 1);
      EXPECT_EQ(cluster.transports[to]->datagram_counters(group_number, from).dropped[static_cast<size_t>(DatagramFault::tag)],
                0u);
    }
  }
  EXPECT_EQ(sinks[1].deadline_us, 77'000u);
  EXPECT_EQ(dropped(0) + dropped(1) + dropped(2), dropped_before);
}

TEST_F(UdpLossy, lost_ranges_are_missing_and_arrive_when_requested) {
  begin(2);
  const StreamName name{.op = 5, .phase = 0};
  const auto payload = pattern(300'000, 4);
  std::set<uint32_t> lost;
  Random random(99);
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    const auto header = datagram.header();
    if (header.kind != DatagramKind::data || !random.chance(0.1)) return true;
    lost.insert(header.packet_index);
    return false;
  };
  cluster.transports[0]->send_stream(group_number, stream(1, payload, name));
  ASSERT_TRUE(cluster.until([&] { return got(1, 0, name).ends > 0; }));
  cluster.pass(2 * millisecond);
  EXPECT_EQ(got(1, 0, name).ranges.size() + lost.size(), 300u);
  for (const auto range : lost) EXPECT_FALSE(got(1, 0, name).ranges.contains(range));
  EXPECT_GT(lost.size(), 15u);
  for (int round = 0; round < 100 && got(1, 0, name).ranges.size() < 300; ++round) {
    ask_for_missing(1, 0, name, 300);
    cluster.pass(5 * millisecond);
  }
  EXPECT_TRUE(same(sinks[1].whole(0, 5, 0), payload));
  const auto counters = cluster.transports[0]->datagram_counters(group_number, 1);
  EXPECT_EQ(got(1, 0, name).duplicates, 0u);
  EXPECT_GE(counters.repaired, 15u);
  EXPECT_TRUE(cluster.transports[0]->stream_unconfirmed(group_number, 1, name));
  ask_for_missing(1, 0, name, 300);
  cluster.pass(5 * millisecond);
  EXPECT_FALSE(cluster.transports[0]->stream_unconfirmed(group_number, 1, name));
  const auto quiet = cluster.transports[0]->datagram_counters(group_number, 1).sent;
  cluster.pass(500 * millisecond);
  EXPECT_EQ(cluster.transports[0]->datagram_counters(group_number, 1).sent, quiet) << "it is confirmed, and goes on";
}

TEST_F(UdpLossy, each_request_and_each_answer_is_reported_and_an_answer_changes_no_stream) {
  begin(3);
  const StreamName name{.op = 5, .phase = 1}, unsent{.op = 5, .phase = 0};
  const auto payload = pattern(30'000, 4);
  cluster.transports[0]->send_stream(group_number, stream(1, payload, name));
  ASSERT_TRUE(cluster.until([&] { return got(1, 0, name).ends > 0; }));
  const auto say = [&](StreamName stream, uint32_t first, std::span<const std::byte> bitmap) {
    sinks[0].requests.clear();
    cluster.transports[1]->request_repair(group_number, 0, stream, 0, first, bitmap);
    (void)cluster.until([&] { return !sinks[0].requests.empty(); });
    EXPECT_EQ(sinks[0].requests.size(), 1u);
    if (sinks[0].requests.empty()) return StreamRequest{};
    EXPECT_EQ(sinks[0].requests[0].first, 1u);
    EXPECT_EQ(sinks[0].requests[0].second.stream, stream);
    return sinks[0].requests[0].second;
  };
  const auto bitmap = pattern(1, 1);
  EXPECT_EQ(say(unsent, 0, bitmap).kind, StreamRequest::Kind::ranges) << "this process does not hold it yet";
  const auto repaired = cluster.transports[0]->datagram_counters(group_number, 1).repaired;
  const auto answer = say(name, 2, pending_bitmap);
  EXPECT_EQ(answer.kind, StreamRequest::Kind::pending);
  EXPECT_EQ(answer.waits_for, 2u);
  cluster.pass(20 * millisecond);
  EXPECT_EQ(cluster.transports[0]->datagram_counters(group_number, 1).repaired, repaired);
  EXPECT_TRUE(cluster.transports[0]->stream_unconfirmed(group_number, 1, name));
  EXPECT_EQ(say(name, 0, {}).kind, StreamRequest::Kind::complete);
  EXPECT_FALSE(cluster.transports[0]->stream_unconfirmed(group_number, 1, name));
}

TEST_F(UdpLossy, a_receiver_that_missed_the_whole_tail_receives_the_end) {
  begin(2);
  const StreamName name{.op = 5, .phase = 0};
  const auto payload = pattern(30'000, 4);
  size_t ends = 0;
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    const auto header = datagram.header();
    if (header.kind == DatagramKind::data) return (header.flags & datagram_tail) == 0;
    return header.kind != DatagramKind::end || ++ends > 4;
  };
  cluster.transports[0]->send_stream(group_number, stream(1, payload, name));
  ASSERT_TRUE(cluster.until([&] { return got(1, 0, name).ends > 0; }, 200 * millisecond));
  EXPECT_EQ(got(1, 0, name).ranges.size(), 22u);
  cluster.network.filter = nullptr;
  ask_for_missing(1, 0, name, 30);
  cluster.pass(20 * millisecond);
  EXPECT_TRUE(same(sinks[1].whole(0, 5, 0), payload));
}

TEST_F(UdpLossy, requests_faster_than_answers_cause_no_storm) {
  begin(2);
  const StreamName name{.op = 5, .phase = 0};
  const auto payload = pattern(50'000, 4);
  cluster.transports[0]->send_stream(group_number, stream(1, payload, name));
  cluster.pass(50 * millisecond);
  cluster.network.filter = [](const VirtualNetwork::Datagram& datagram) {
    return datagram.header().kind != DatagramKind::data;
  };
  got(1, 0, name).ranges.clear();
  const auto before = cluster.transports[0]->datagram_counters(group_number, 1).repaired;
  const auto since = cluster.network.now;
  for (int i = 0; i < 200; ++i) {
    ask_for_missing(1, 0, name, 50);
    cluster.pass(20 * microsecond);
  }
  const auto passed = cluster.network.now - since;
  const auto rounds = 1 + passed / cluster.transports[0]->answer_time(group_number, 1);
  EXPECT_LE(cluster.transports[0]->datagram_counters(group_number, 1).repaired - before, static_cast<uint64_t>(50 * rounds));
}

TEST_F(UdpLossy, memory_of_a_dropped_stream_is_not_read) {
  begin(2);
  const StreamName name{.op = 5, .phase = 0};
  auto payload = std::make_unique<Bytes>(pattern(900'000, 4));
  cluster.transports[0]->send_stream(group_number, stream(1, *payload, name));
  cluster.pass(500 * microsecond);
  const auto sent = cluster.transports[0]->datagram_counters(group_number, 1).sent;
  EXPECT_LT(sent, 900u);
  cluster.transports[0]->drop_stream(group_number, 1, name);
  payload.reset();  // the address sanitizer would report a read of this memory
  ask_for_missing(1, 0, name, 900);
  cluster.pass(50 * millisecond);
  EXPECT_EQ(cluster.transports[0]->datagram_counters(group_number, 1).sent, sent);
  EXPECT_GT(cluster.transports[0]->datagram_counters(group_number, 1).dropped[static_cast<size_t>(DatagramFault::op_old)], 0u);
}

TEST_F(UdpLossy, streams_keep_to_the_rate_limit) {
  begin(2, {.rate_limit = 2'000'000});
  const auto payload = pattern(200'000, 4);
  const auto since = cluster.network.now;
  cluster.transports[0]->send_stream(group_number, stream(1, payload, {.op = 1, .phase = 0}));
  ASSERT_TRUE(cluster.until([&] { return got(1, 0, {.op = 1, .phase = 0}).ranges.size() == 200; }));
  EXPECT_GE(cluster.network.now - since, 95 * millisecond);
}

TEST_F(UdpLossy, streams_to_several_peers_and_frames_share_the_link) {
  begin(3);
  const auto payload = pattern(300'000, 4), frame = pattern(300'000, 5);
  for (Rank to = 1; to < 3; ++to) cluster.transports[0]->send_stream(group_number, stream(to, payload, {.op = 1, .phase = 0}));
  cluster.transports[0]->send(1, data_header(1, frame.size()), frame, 1);
  size_t least = 0;
  ASSERT_TRUE(cluster.until([&] {
    const auto one = got(1, 0, {.op = 1, .phase = 0}).ranges.size(), two = got(2, 0, {.op = 1, .phase = 0}).ranges.size();
    if (std::max(one, two) < 300) least = std::min(one, two);
    return one == 300 && two == 300 && !cluster.frame_sinks[1]->frames.empty();
  }));
  // When one peer has all 300 ranges, the other must have more than 30. More cannot be expected: the rates to the two peers are
  // not doubled at the same time.
  EXPECT_GT(least, 30u) << "one peer waited for the other";
  EXPECT_TRUE(same(cluster.frame_sinks[1]->frames[0].payload, frame));
}

// Rank 0 sends to four peers. Its rate for all peers together is the limit, so each peer gets less than half of its own rate.
// The rate of each peer must still rise, because datagrams always wait.
TEST_F(UdpLossy, rates_rise_although_several_peers_share_what_the_rank_sends) {
  begin(5);
  cluster.pass(200 * millisecond);
  const auto payload = pattern(300'000, 4);
  std::vector<uint64_t> before;
  for (PeerIndex peer = 1; peer < 5; ++peer) before.push_back(cluster.transports[0]->flow(peer)->rate());
  for (Rank to = 1; to < 5; ++to) cluster.transports[0]->send_stream(group_number, stream(to, payload, {.op = 1, .phase = 0}));
  ASSERT_TRUE(cluster.until([&] {
    for (Rank to = 1; to < 5; ++to) {
      if (got(to, 0, {.op = 1, .phase = 0}).ranges.size() != 300) return false;
    }
    return true;
  }));
  for (PeerIndex peer = 1; peer < 5; ++peer) EXPECT_GT(cluster.transports[0]->flow(peer)->rate(), 2 * before[peer - 1]) << peer;
}

TEST_F(UdpLossy, impossible_groups_are_refused) {
  begin(2);
  const std::vector<PeerIndex> peers{0, 1}, unknown{0, 5}, few{0};
  auto& transport = *cluster.transports[0];
  Collector sink;
  EXPECT_EQ(transport.open_group(group_number, group, peers, sink).code(), Code::invalid) << "it is open";
  EXPECT_EQ(transport.open_group(2, group, peers, sink).code(), Code::invalid) << "its epoch is in use";
  auto other = group;
  other.epoch = 8;
  EXPECT_EQ(transport.open_group(2, other, few, sink).code(), Code::invalid);
  EXPECT_EQ(transport.open_group(2, other, unknown, sink).code(), Code::unavailable);
  EXPECT_TRUE(transport.open_group(2, other, peers, sink).ok());
  transport.close_group(2);
  transport.close_group(2);
  EXPECT_TRUE(transport.open_group(2, other, peers, sink).ok());
}

// Invalid datagrams ---------------------------------------------------------------------------------------------------------

class UdpLossyFaults : public UdpLossy {
 protected:
  void SetUp() override {
    begin(3);
    const auto payload = pattern(4'000, 4);
    cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) {
      if (datagram.header().kind == DatagramKind::data && datagram.header().receiver == 1) genuine = datagram;
    };
    cluster.transports[0]->send_stream(group_number, stream(1, payload, {.op = 1, .phase = 0}));
    cluster.pass(20 * millisecond);
    cluster.network.watcher = nullptr;
    cluster.transports[0]->drop_stream(group_number, 1, {.op = 1, .phase = 0});
    cluster.pass(20 * millisecond);
    ASSERT_FALSE(genuine.bytes.empty());
  }
  // Sends a changed copy of a genuine datagram to rank 1. Rank 1 must count it once, under `reason`, and do nothing else.
  void expect_dropped(const std::function<void(VirtualNetwork::Datagram&, DatagramHeader&)>& change, DatagramFault reason,
                      bool seal = false, bool reaches_sink = false) {
    auto datagram = genuine;
    auto header = datagram.header();
    change(datagram, header);
    const auto payload = std::span(datagram.bytes).subspan(std::min(datagram.bytes.size(), sizeof header));
    if (seal)
      seal_datagram(header, payload,
                    {link_key(group.key, header.sender, header.receiver, header.epoch, header.run_id), DatagramAuth::mac});
    std::memcpy(datagram.bytes.data(), &header, std::min(datagram.bytes.size(), sizeof header));
    datagram.at = cluster.network.now;
    cluster.network.watcher = [](const VirtualNetwork::Datagram& answer) {
      ADD_FAILURE() << "it was answered, kind " << static_cast<int>(answer.header().kind);
    };
    const auto calls = sinks[1].calls, before = dropped(1), reasons = cluster.transports[1]->dropped(reason);
    cluster.network.inject(datagram);
    cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
    EXPECT_EQ(cluster.transports[1]->dropped(reason) - reasons, 1u) << name(reason);
    EXPECT_EQ(dropped(1) - before, 1u) << "counted twice";
    EXPECT_EQ(sinks[1].calls - calls, reaches_sink ? 1u : 0u);
    cluster.network.watcher = nullptr;
  }
  VirtualNetwork::Datagram genuine;
};

TEST_F(UdpLossyFaults, too_short) {
  expect_dropped([](auto& datagram, auto&) { datagram.bytes.resize(40); }, DatagramFault::too_short);
}
TEST_F(UdpLossyFaults, other_magic) {
  expect_dropped([](auto&, auto& header) { header.magic = 1; }, DatagramFault::magic, true);
}
TEST_F(UdpLossyFaults, other_version) {
  expect_dropped([](auto&, auto& header) { header.version = 9; }, DatagramFault::version, true);
}
TEST_F(UdpLossyFaults, unknown_kind) {
  expect_dropped([](auto&, auto& header) { header.kind = static_cast<DatagramKind>(99); }, DatagramFault::kind, true);
}
TEST_F(UdpLossyFaults, kind_of_links_in_a_group) {
  expect_dropped([](auto&, auto& header) { header.kind = DatagramKind::fragment, header.flow_seq += 100; }, DatagramFault::kind,
                 true);
}
TEST_F(UdpLossyFaults, other_run) {
  expect_dropped([](auto&, auto& header) { header.run_id ^= 1; }, DatagramFault::run, true);
}
TEST_F(UdpLossyFaults, other_epoch) {
  expect_dropped([](auto&, auto& header) { header.epoch = 6; }, DatagramFault::epoch, true);
}
TEST_F(UdpLossyFaults, other_receiver) {
  expect_dropped([](auto&, auto& header) { header.receiver = 2; }, DatagramFault::receiver, true);
}
TEST_F(UdpLossyFaults, impossible_sender) {
  expect_dropped([](auto&, auto& header) { header.sender = 3; }, DatagramFault::sender, true);
}
TEST_F(UdpLossyFaults, own_rank_as_sender) {
  expect_dropped([](auto&, auto& header) { header.sender = 1; }, DatagramFault::sender, true);
}
TEST_F(UdpLossyFaults, other_address) {
  expect_dropped([](auto& datagram, auto&) { datagram.from.set_port(4501); }, DatagramFault::address);
}
TEST_F(UdpLossyFaults, address_of_another_peer) {
  expect_dropped([](auto&, auto& header) { header.sender = 2; }, DatagramFault::address, true);
}
TEST_F(UdpLossyFaults, other_length) {
  expect_dropped([](auto& datagram, auto&) { datagram.bytes.pop_back(); }, DatagramFault::length);
}
TEST_F(UdpLossyFaults, flipped_bit) {
  expect_dropped([](auto& datagram, auto&) { datagram.bytes.back() ^= std::byte{1}; }, DatagramFault::tag);
}
TEST_F(UdpLossyFaults, changed_header) {
  expect_dropped([](auto&, auto& header) { ++header.packet_index; }, DatagramFault::tag);
}
TEST_F(UdpLossyFaults, repeated_datagram) {
  expect_dropped([](auto&, auto&) {}, DatagramFault::duplicate);
}
TEST_F(UdpLossyFaults, repair_of_an_arrived_range) {
  expect_dropped([](auto&, auto& header) { header.flow_seq += 100; }, DatagramFault::duplicate, true, true);
}
TEST_F(UdpLossyFaults, faults_from_the_sink_are_counted_by_sender) {
  for (const auto fault :
       {DatagramFault::op_old, DatagramFault::op_ahead, DatagramFault::place, DatagramFault::size, DatagramFault::late}) {
    sinks[1].verdict = fault;
    expect_dropped([&](auto&, auto& header) { header.flow_seq += header.packet_index = 100 + static_cast<uint32_t>(fault); },
                   fault, true, true);
    EXPECT_EQ(cluster.transports[1]->datagram_counters(group_number, 0).dropped[static_cast<size_t>(fault)], 1u);
    EXPECT_EQ(cluster.transports[1]->datagram_counters(group_number, 2).dropped[static_cast<size_t>(fault)], 0u);
  }
}

// All datagrams of a link and a group are recorded and replayed, first unchanged and then with flipped bits. No frame or range
// may be delivered again.
TEST_F(UdpLossyFaults, a_replayed_recording_changes_nothing) {
  std::vector<VirtualNetwork::Datagram> recorded;
  cluster.network.watcher = [&](const VirtualNetwork::Datagram& datagram) { recorded.push_back(datagram); };
  const auto payload = pattern(50'000, 4);
  cluster.transports[0]->send_stream(group_number, stream(1, payload, {.op = 2, .phase = 0}));
  for (uint64_t i = 0; i < 5; ++i) cluster.transports[0]->send(1, data_header(i, payload.size()), payload, i);
  ASSERT_TRUE(cluster.until(
      [&] { return cluster.frame_sinks[1]->frames.size() == 5 && got(1, 0, {.op = 2, .phase = 0}).ranges.size() == 50; }));
  cluster.pass(50 * millisecond);
  cluster.network.watcher = nullptr;
  Random random(3);
  for (int round = 0; round < 2; ++round) {
    for (auto datagram : recorded) {
      if (round == 1)
        datagram.bytes[random.below(datagram.bytes.size())] ^= std::byte{static_cast<uint8_t>(1u << random.below(8))};
      datagram.at = cluster.network.now;
      cluster.network.inject(datagram);
      cluster.turn();
    }
  }
  cluster.pass(50 * millisecond);
  EXPECT_EQ(cluster.frame_sinks[1]->frames.size(), 5u);
  EXPECT_EQ(got(1, 0, {.op = 2, .phase = 0}).ranges.size(), 50u);
  EXPECT_TRUE(same(sinks[1].whole(0, 2, 0), payload));
  for (const auto& frame_sink : cluster.frame_sinks) EXPECT_TRUE(frame_sink->losses.empty());
}

}  // namespace
}  // namespace unisono

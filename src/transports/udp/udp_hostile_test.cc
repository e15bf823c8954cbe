// An unauthenticated attacker sends datagrams to a transport with links and a group. No datagram may be accepted or answered,
// each is counted once, and no memory grows. The attacker has recorded the datagrams that the process received and sent. It
// also has recordings of an older job and an older epoch.
#include <gtest/gtest.h>

#include <malloc.h>

#include <array>
#include <chrono>
#include <iostream>
#include <numeric>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_test_support.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using Datagram = VirtualNetwork::Datagram;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool counts_memory = false;
constexpr int slower = 10;
#else
constexpr bool counts_memory = true;
constexpr int slower = 1;
#endif
constexpr uint64_t seed = 20261124;

size_t memory_in_use() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Silent final : DatagramSink {
  DatagramFault datagram(uint32_t, Rank, const DatagramHeader&, std::span<const std::byte>, Nanos) override {
    return ++heard, DatagramFault::none;
  }
  void stream_requested(uint32_t, Rank, const StreamRequest&, Nanos) override {}
  void stream_sent(uint32_t, Rank, StreamName) override {}
  uint64_t heard = 0;
};

// Records a corpus of datagrams, each of which was authentic for some receiver at some time.
class RecordedTraffic {
 public:
  RecordedTraffic(uint8_t job, std::shared_ptr<const TlsContext> tls) : cluster(0), sinks(3) {
    cluster.options.tls = std::move(tls);
    for (size_t i = 0; i < 3; ++i) cluster.start(i);
    for (auto& transport : cluster.transports) transport->set_job(VirtualCluster::job(job));
    cluster.network.watcher = [this](const Datagram& datagram) { corpus.push_back(datagram); };
    cluster.link_all();
    for (const uint32_t epoch : {6u, 7u}) {
      open(epoch);
      for (Rank to : {1u, 2u, 0u}) exchange(to, epoch);
      cluster.pass(20 * millisecond);
    }
    cluster.pass(3 * second);  // so that the corpus contains keep-alive pings
    cluster.network.watcher = nullptr;
    for (auto& sink : sinks) sink.heard = 0;
  }
  uint64_t dropped() const {
    uint64_t sum = 0;
    for (int fault = 0; fault < datagram_fault_count; ++fault)
      sum += cluster.transports[0]->dropped(static_cast<DatagramFault>(fault));
    return sum;
  }

  VirtualCluster cluster;
  std::vector<Datagram> corpus;
  std::vector<Silent> sinks;

 private:
  void open(uint32_t epoch) {
    const std::vector<PeerIndex> peers{0, 1, 2};
    for (Rank self = 0; self < 3; ++self) {
      cluster.transports[self]->close_group(group_number);
      const DatagramGroup group{.run_id = 77, .epoch = epoch, .self = self, .world = 3, .auth = DatagramAuth::mac, .key = {}};
      ASSERT_TRUE(cluster.transports[self]->open_group(group_number, group, peers, sinks[self]).ok());
    }
  }
  void exchange(Rank to, uint32_t epoch) {
    const auto payload = pattern(5000, epoch);
    const Rank from = (to + 1) % 3;
    const StreamName name{.op = epoch, .phase = 0};
    cluster.transports[from]->send(to, data_header(epoch, payload.size()), payload, epoch);
    cluster.transports[from]->send_stream(
        group_number, {.to = to, .name = name, .bytes = payload, .range_bytes = 1000, .contributors = {}, .deadline_us = 1});
    cluster.pass(2 * millisecond);
    cluster.transports[to]->request_repair(group_number, from, name, 0, 0, pattern(1, 1));
    cluster.transports[to]->request_repair(group_number, from, name, 0, 0, {});
    cluster.pass(20 * millisecond);
    cluster.transports[from]->drop_stream(group_number, to, name);
  }
};

enum Attack { replay, spoofed_address, spoofed_rank, other_field, bits, cut, longer, noise, attack_count };

// Makes a hostile datagram from a genuine one and writes it into `datagram`, whose memory is reused.
void attack(Random& random, const Datagram& genuine, Datagram& datagram) {
  datagram.from = genuine.from;
  datagram.bytes.assign(genuine.bytes.begin(), genuine.bytes.end());
  auto& bytes = datagram.bytes;
  const auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  switch (static_cast<Attack>(random.below(attack_count))) {
    case replay: break;
    case spoofed_address: datagram.from.set_port(static_cast<uint16_t>(random.next() | 1)); break;
    case spoofed_rank:
      put(random.below(2) == 0 ? offsetof(DatagramHeader, sender) : offsetof(DatagramHeader, receiver),
          static_cast<uint16_t>(random.below(4)));
      break;
    case other_field: put(random.below(datagram_header_bytes - 3), static_cast<uint32_t>(random.next())); break;
    case bits:
      for (uint64_t flips = 1 + random.below(3); flips > 0; --flips)
        bytes[random.below(bytes.size())] ^= std::byte{1} << random.below(8);
      break;
    case cut: bytes.resize(random.below(bytes.size())); break;
    case longer: bytes.insert(bytes.end(), 1 + random.below(40), std::byte{static_cast<uint8_t>(random.next())}); break;
    default:
      for (size_t at = random.below(bytes.size()); at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(random.next());
      break;
  }
}

void expect_nothing_of(uint64_t datagrams, const std::shared_ptr<const TlsContext>& tls = nullptr) {
  std::cout << "seed " << seed << '\n';
  RecordedTraffic old_job(0x11, tls), traffic(0x5A, tls);
  auto& network = traffic.cluster.network;
  auto& victim = *traffic.cluster.transports[0];
  auto& frame_sink = *traffic.cluster.frame_sinks[0];
  auto corpus = traffic.corpus, meant = traffic.corpus;
  corpus.insert(corpus.end(), old_job.corpus.begin(), old_job.corpus.end());
  std::erase_if(meant, [&](const Datagram& said) { return said.to.to_string() != traffic.cluster.endpoint(0); });
  const auto frames = frame_sink.frames.size();
  const auto received = victim.counters().received_frames, carried = network.carried;
  Random random(seed);
  Datagram datagram{corpus[0].from, corpus[0].to, {}, network.now};
  datagram.bytes.reserve(70'000);
  datagram.to = *parse_tcp_endpoint("tcp://" + traffic.cluster.endpoint(0));
  const auto one = [&] {
    const auto before = traffic.dropped();
    // mostly datagrams sent to this process, because they pass most checks
    const auto& genuine = random.below(4) > 0 ? meant : corpus;
    attack(random, genuine[random.below(genuine.size())], datagram);
    network.inject(datagram);
    victim.poll(network.now, frame_sink);
    return traffic.dropped() - before;
  };
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(one(), 1u);
  const auto memory = memory_in_use();
  const auto since = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < datagrams; ++i)
    ASSERT_EQ(one(), 1u) << "datagram " << i << " of kind "
                         << static_cast<int>(datagram.bytes.size() > 3 ? datagram.bytes[3] : std::byte{});
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  const auto grown = static_cast<int64_t>(memory_in_use()) - static_cast<int64_t>(memory);
  std::cout << "    " << datagrams << " hostile datagrams in " << seconds << " s, "
            << static_cast<double>(datagrams) / seconds / 1e6 << " million/s; memory " << grown << " bytes more\n    ";
  for (int i = 1; i < datagram_fault_count; ++i)
    std::cout << name(static_cast<DatagramFault>(i)) << ' ' << victim.dropped(static_cast<DatagramFault>(i)) << ", ";
  std::cout << '\n';
  if (counts_memory) {
    EXPECT_LT(grown, 64 << 10);
  }
  EXPECT_EQ(traffic.sinks[0].heard, 0u) << "something was delivered to the group";
  EXPECT_EQ(frame_sink.frames.size(), frames);
  EXPECT_EQ(victim.counters().received_frames, received);
  EXPECT_EQ(network.carried, carried) << "something was answered";
  EXPECT_TRUE(frame_sink.losses.empty());
  for (const auto fault : {DatagramFault::too_short, DatagramFault::magic, DatagramFault::version, DatagramFault::kind,
                           DatagramFault::run, DatagramFault::epoch, DatagramFault::receiver, DatagramFault::sender,
                           DatagramFault::address, DatagramFault::length, DatagramFault::tag, DatagramFault::duplicate}) {
    EXPECT_GT(victim.dropped(fault), datagrams / 1000) << name(fault);
  }
  traffic.cluster.pass(second);
  EXPECT_TRUE(frame_sink.losses.empty()) << "the links stand";
}

TEST(UdpHostile, datagrams_of_unauthenticated_peers_are_dropped_and_counted_once) { expect_nothing_of(100'000 / slower); }
TEST(UdpHostile, encrypted_links_drop_and_count_them_too) {
  expect_nothing_of(100'000 / slower, *TlsContext::make({*SecretKey::draw()}));
}
TEST(LongUdpHostile, datagrams_of_unauthenticated_peers_are_dropped_and_counted_once) {
  expect_nothing_of(10'000'000 / slower);
}

// A hostile member of the job sends arbitrary contents with valid tags and new numbers, but nothing that ends the link. The
// victim's memory must stay within the limits.
TEST(UdpHostile, memory_for_a_hostile_member_is_bounded) {
  VirtualCluster cluster(0);
  constexpr size_t pool_bytes = 4u << 20;
  cluster.options.pool = {.owner_bytes_max = pool_bytes, .kept_bytes_max = pool_bytes};
  cluster.start(0);
  cluster.start(1);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.paused = 1;
  cluster.network.filter = [](const Datagram&) { return false; };
  auto& victim = *cluster.transports[0];
  const auto* flow = victim.flow(1);
  const DatagramGroup group = flow->group();
  std::cout << "seed " << seed << '\n';
  Random random(seed);
  Datagram datagram{
      *parse_tcp_endpoint("tcp://" + cluster.endpoint(1)), *parse_tcp_endpoint("tcp://" + cluster.endpoint(0)), {}, 0};
  const auto memory = memory_in_use();
  int64_t most = 0;
  uint32_t number = 1000;
  for (int i = 0; i < 200'000 / slower; ++i) {
    DatagramHeader header;
    header.kind =
        std::array{DatagramKind::fragment,    DatagramKind::fragment,       DatagramKind::control,     DatagramKind::path_probe,
                   DatagramKind::control_ack, DatagramKind::repair_request, DatagramKind::fragment_ack}[random.below(7)];
    header.run_id = group.run_id;
    header.epoch = group.epoch;
    header.sender = static_cast<uint16_t>(1 - group.self);
    header.receiver = static_cast<uint16_t>(group.self);
    header.flow_seq = number += static_cast<uint32_t>(1 + random.below(3));
    header.op = static_cast<uint32_t>(random.below(300));
    header.packet_index = static_cast<uint32_t>(random.below(16));
    header.deadline_us = 16;
    Bytes payload(random.below(200));
    if (header.kind == DatagramKind::fragment) {
      // Frames of the largest size with the most fragments. Leave out fragment 0: a random frame header would end the link.
      header.slice = fragment_bytes_min;
      header.deadline_us = frame_bytes_max;
      header.packet_index = static_cast<uint32_t>(1 + random.below(frame_bytes_max / fragment_bytes_min - 2));
      payload.resize(fragment_bytes_min);
    } else if (header.kind == DatagramKind::control) {
      payload.assign(5, std::byte{1});  // a ping with a random id
      payload[0] = static_cast<std::byte>(random.next());
    }
    header.payload_bytes = static_cast<uint16_t>(payload.size());
    seal_datagram(header, payload, flow->in_seal());
    datagram.bytes.resize(sizeof header + payload.size());
    std::memcpy(datagram.bytes.data(), &header, sizeof header);
    std::copy(payload.begin(), payload.end(), datagram.bytes.begin() + sizeof header);
    datagram.at = cluster.network.now += microsecond;
    cluster.network.inject(datagram);
    victim.poll(cluster.network.now, *cluster.frame_sinks[0]);
    most = std::max(most, static_cast<int64_t>(memory_in_use()) - static_cast<int64_t>(memory));
    ASSERT_TRUE(victim.flow(1) == flow && cluster.frame_sinks[0]->losses.empty())
        << cluster.frame_sinks[0]->losses[1].at(0).message();
  }
  std::cout << "    at most " << most << " bytes more\n";
  // So that a peer can always make progress, a pool accepts the first frame whatever its size. Therefore the bound may be above
  // pool_bytes.
  if (counts_memory) {
    EXPECT_LT(most, static_cast<int64_t>(std::max<size_t>(pool_bytes, 2 * payload_bytes_max) + UdpFlow::table_bytes_max));
  }
  EXPECT_TRUE(cluster.frame_sinks[0]->frames.empty());
}

// A peer confirms nothing. The queue of frames to this peer must stay bounded.
TEST(UdpHostile, memory_for_a_peer_that_confirms_nothing_is_bounded) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.paused = 1;
  const auto memory = memory_in_use();
  const auto payload = pattern(UdpFrames::copied_bytes_max, 1);
  size_t frames = 0;
  for (; cluster.transports[0]->credit(1) > 0; ++frames)
    cluster.transports[0]->send(1, data_header(1, payload.size()), payload, 1);
  EXPECT_EQ(frames, cluster.options.queue_frames_max);
  int64_t most = 0;
  for (; cluster.frame_sinks[0]->losses.empty() && frames < 100'000; ++frames) {
    cluster.transports[0]->send(1, data_header(1, 0), {}, 1);
    if (frames % 16 == 0) cluster.transports[0]->poll(cluster.network.now += 10 * microsecond, *cluster.frame_sinks[0]);
    most = std::max(most, static_cast<int64_t>(memory_in_use()) - static_cast<int64_t>(memory));
  }
  std::cout << "    " << frames << " frames, at most " << most << " bytes more\n";
  ASSERT_FALSE(cluster.frame_sinks[0]->losses.empty());
  EXPECT_NE(cluster.frame_sinks[0]->losses[1].at(0).message().find("the peer confirms nothing"), std::string::npos);
  if (counts_memory) {
    EXPECT_LT(most, static_cast<int64_t>(UdpFlow::table_bytes_max +
                                         2 * cluster.options.queue_frames_max * UdpFrames::copied_bytes_max));
  }
}

}  // namespace
}  // namespace unisono

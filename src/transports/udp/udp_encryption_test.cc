// Links that are encrypted, because their processes have a key: whole transports over a virtual network.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/udp_test_support.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;
using conformance::same;
using Datagram = VirtualNetwork::Datagram;

std::shared_ptr<const TlsContext> keys(std::vector<char> last = {'1'}) {
  std::vector<SecretKey> keys;
  for (const char digit : last) keys.push_back(*SecretKey::from_hex(std::string(63, '0') + digit));
  return *TlsContext::make(std::move(keys));
}

bool contains(const Bytes& bytes, ByteView what) {
  return std::search(bytes.begin(), bytes.end(), what.begin(), what.end()) != bytes.end();
}

class UdpEncryption : public testing::Test {
 protected:
  void begin(size_t count, const UdpOptions& options = {.tls = keys()}) {
    cluster.options = options;
    for (size_t i = 0; i < count; ++i) cluster.start(i);
    cluster.link_all();
    cluster.pass(50 * millisecond);  // time for the path probes
  }
  void start(size_t i, std::shared_ptr<const TlsContext> tls) {
    cluster.options.tls = std::move(tls);
    cluster.start(i);
  }
  // `payload` must stay valid until the frame has arrived.
  void send(const Bytes& payload, uint64_t id) { cluster.transports[0]->send(1, data_header(id, payload.size()), payload, id); }
  const auto& frames() const { return cluster.frame_sinks[1]->frames; }
  bool frames_arrive(size_t count) {
    return cluster.until([&] { return frames().size() >= count; }, 60 * second);
  }
  // Sends 40 frames of many sizes.
  void expect_frames_arrive() {
    std::vector<Bytes> payloads;
    for (size_t i = 0; i < 40; ++i) payloads.push_back(pattern((i * 7919) % 60'000, i));
    for (size_t i = 0; i < payloads.size(); ++i) send(payloads[i], i);
    ASSERT_TRUE(frames_arrive(payloads.size()));
    cluster.pass(second);
    ASSERT_EQ(frames().size(), payloads.size());
    for (const auto& frame : frames()) EXPECT_TRUE(same(frame.payload, payloads[frame.header.operation]));
  }
  // Links two processes that do not share a key. Returns why process i has no link.
  std::string why_not(size_t i) {
    EXPECT_TRUE(cluster.add(0, 1, 0, true, second).ok());
    EXPECT_TRUE(cluster.add(1, 0, 0, false, second).ok());
    EXPECT_TRUE(
        cluster.until([&] { return !cluster.frame_sinks[0]->losses.empty() && !cluster.frame_sinks[1]->losses.empty(); }));
    return cluster.frame_sinks[i]->losses.begin()->second.at(0).message();
  }
  VirtualCluster cluster{0};
};

TEST_F(UdpEncryption, frames_arrive_and_the_link_says_that_it_is_encrypted) {
  begin(2);
  expect_frames_arrive();
  EXPECT_NE(cluster.transports[0]->describe(1).find("encrypted by "), std::string::npos) << cluster.transports[0]->describe(1);
}

TEST_F(UdpEncryption, both_processes_must_wish_for_aes) {
  for (const auto of_one : {SealCipher::aes_128_gcm, SealCipher::chacha20_poly1305}) {
    for (const auto of_other : {SealCipher::aes_128_gcm, SealCipher::chacha20_poly1305}) {
      VirtualCluster two(0);
      two.options.tls = keys();
      two.options.cipher = of_one;
      two.start(0);
      two.options.cipher = of_other;
      two.start(1);
      two.link_all();
      const bool aes = of_one == SealCipher::aes_128_gcm && of_other == of_one;
      for (size_t i = 0; i < 2; ++i) {
        const auto text = two.transports[i]->describe(static_cast<PeerIndex>(1 - i));
        EXPECT_NE(text.find(aes ? "AES-128-GCM" : "ChaCha20-Poly1305"), std::string::npos) << text;
      }
    }
  }
}

TEST_F(UdpEncryption, keys_change_over_a_bad_network) {
  for (const double lose : {0.01, 0.1, 0.3}) {
    SCOPED_TRACE(lose);
    VirtualCluster two(0, 17);
    two.network.lose = lose;
    two.network.repeat = 0.05;
    two.network.jitter = 200 * microsecond;
    two.options.tls = keys();
    two.options.numbers_per_key = 128;
    two.start(0), two.start(1);
    two.link_all();
    const auto payload = pattern(50'000, 1);
    for (size_t i = 0; i < 60; ++i) two.transports[0]->send(1, data_header(i, payload.size()), payload, i);
    ASSERT_TRUE(two.until([&] { return two.frame_sinks[1]->frames.size() == 60; }, 60 * second));
    for (const auto& frame : two.frame_sinks[1]->frames) EXPECT_TRUE(same(frame.payload, payload));
    EXPECT_EQ(two.transports[1]->dropped(DatagramFault::tag), 0u);
    EXPECT_TRUE(two.frame_sinks[0]->losses.empty());
  }
}

TEST_F(UdpEncryption, hellos_fit_into_the_smallest_datagram_and_repeat_their_bytes) {
  std::map<std::pair<std::string, int>, std::set<Bytes>> hellos;  // by sender and step
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (datagram.header().kind != DatagramKind::hello) return;
    EXPECT_LE(datagram.bytes.size(), base_datagram_bytes);
    hellos[{datagram.from.to_string(), static_cast<int>(datagram.bytes[sizeof(DatagramHeader)])}].insert(datagram.bytes);
  };
  std::map<std::string, int> lost;  // The first three datagrams of each process are lost.
  cluster.network.filter = [&](const Datagram& datagram) { return ++lost[datagram.from.to_string()] > 3; };
  begin(2);
  EXPECT_EQ(hellos.size(), 3u);
  for (const auto& [which, bytes] : hellos) EXPECT_EQ(bytes.size(), 1u) << which.second;
}

TEST_F(UdpEncryption, a_recording_tells_neither_payload_nor_key_nor_name) {
  std::vector<Datagram> seen;
  cluster.network.watcher = [&](const Datagram& datagram) { seen.push_back(datagram); };
  begin(2);
  std::vector<float> floats(10'000, 3.25f);
  Bytes payload(floats.size() * sizeof(float));
  std::memcpy(payload.data(), floats.data(), payload.size());
  send(payload, 1);
  ASSERT_TRUE(frames_arrive(1));
  size_t bytes = 0;
  const std::string name = "rank", job(16, 0x5A);
  for (const auto& datagram : seen) {
    bytes += datagram.bytes.size();
    EXPECT_FALSE(contains(datagram.bytes, ByteView(payload).first(16 * sizeof(float))));
    EXPECT_FALSE(contains(datagram.bytes, std::as_bytes(std::span(name))));
    EXPECT_FALSE(contains(datagram.bytes, std::as_bytes(std::span(job))));
  }
  EXPECT_GT(bytes, payload.size());
}

TEST_F(UdpEncryption, every_flipped_bit_is_refused) {
  begin(2);
  Datagram genuine;
  cluster.network.filter = [&](const Datagram& datagram) {
    if (datagram.header().kind != DatagramKind::fragment || !genuine.bytes.empty()) return true;
    genuine = datagram;
    return false;
  };
  send(pattern(100, 1), 1);
  cluster.until([&] { return !genuine.bytes.empty(); });
  cluster.network.filter = nullptr;
  auto& victim = *cluster.transports[1];
  const auto bits = 8 * genuine.bytes.size();
  const auto before = victim.dropped(DatagramFault::tag);
  for (size_t bit = 0; bit < bits; ++bit) {
    auto altered = genuine;
    altered.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    altered.at = cluster.network.now;
    cluster.network.inject(altered);
    victim.poll(cluster.network.now, *cluster.frame_sinks[1]);
  }
  EXPECT_TRUE(frames().empty());
  uint64_t dropped = 0;
  for (int fault = 0; fault < datagram_fault_count; ++fault) dropped += victim.dropped(static_cast<DatagramFault>(fault));
  EXPECT_GE(dropped, bits);
  // Only the checks of magic, version, kind, epoch, run, ranks and length come before the check of the tag.
  EXPECT_GE(victim.dropped(DatagramFault::tag) - before, bits - 8 * (1 + 1 + 2 + 4 + 8 + 4 + 2 + 2));
  ASSERT_TRUE(frames_arrive(1)) << "the genuine one is repeated";
}

TEST_F(UdpEncryption, replayed_datagrams_change_nothing) {
  std::vector<Datagram> recorded;
  cluster.network.watcher = [&](const Datagram& datagram) { recorded.push_back(datagram); };
  begin(2);
  const auto payload = pattern(20'000, 1);
  send(payload, 1);
  ASSERT_TRUE(frames_arrive(1));
  cluster.pass(100 * millisecond);
  cluster.network.watcher = nullptr;
  const auto carried = cluster.network.carried;
  for (auto datagram : recorded) {
    datagram.at = cluster.network.now;
    cluster.network.inject(datagram);
  }
  cluster.transports[0]->poll(cluster.network.now, *cluster.frame_sinks[0]);
  cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
  EXPECT_EQ(frames().size(), 1u);
  EXPECT_EQ(cluster.network.carried, carried) << "something was answered";
  EXPECT_GT(cluster.transports[1]->dropped(DatagramFault::duplicate), 3u);
  EXPECT_TRUE(cluster.both_up(0, 1));
}

TEST_F(UdpEncryption, recorded_hellos_do_not_disturb_another_handshake) {
  std::vector<Datagram> old;
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (datagram.header().kind == DatagramKind::hello) old.push_back(datagram);
  };
  begin(2);
  cluster.transports[0]->close(1), cluster.transports[1]->close(0);
  cluster.pass(5 * second);
  cluster.network.watcher = nullptr;
  const auto replay = [&] {
    for (auto datagram : old) {
      datagram.at = cluster.network.now;
      cluster.network.inject(datagram);
    }
  };
  ASSERT_TRUE(cluster.add(1, 0).ok());
  replay();  // before the new ask
  cluster.turn();
  ASSERT_TRUE(cluster.add(0, 1).ok());
  for (int i = 0; i < 50 && !cluster.both_up(0, 1); ++i) cluster.turn(), replay();
  ASSERT_TRUE(cluster.until([&] { return cluster.both_up(0, 1); }));
  expect_frames_arrive();
}

TEST_F(UdpEncryption, one_of_several_keys_is_enough) {
  start(0, keys({'2'}));
  start(1, keys({'1', '2'}));
  cluster.link_all();
  expect_frames_arrive();
}

constexpr const char* other_key = "authentication failed: its key differs from ours, or it has none";

TEST_F(UdpEncryption, another_key_makes_no_link_and_gets_no_answer) {
  start(0, keys({'1'}));
  start(1, keys({'2'}));
  size_t answers = 0;
  cluster.network.watcher = [&](const Datagram& datagram) { answers += datagram.from.to_string() == cluster.endpoint(1); };
  EXPECT_NE(why_not(1).find(other_key), std::string::npos);
  EXPECT_EQ(answers, 0u);
}

TEST_F(UdpEncryption, a_key_against_none_makes_no_link) {
  start(0, keys());
  start(1, nullptr);
  EXPECT_NE(why_not(1).find(other_key), std::string::npos);
}

TEST_F(UdpEncryption, none_against_a_key_makes_no_link) {
  start(0, nullptr);
  start(1, keys());
  EXPECT_NE(why_not(1).find(other_key), std::string::npos);
}

TEST_F(UdpEncryption, checksums_are_refused_by_name) {
  const auto made = UdpTransport::make({.auth = DatagramAuth::checksum, .tls = keys()});
  ASSERT_EQ(made.status().code(), Code::invalid);
  EXPECT_NE(made.status().message().find("datagram_checksum"), std::string::npos);
}

// Streams --------------------------------------------------------------------------------------------------------------

class Ranges final : public DatagramSink {
 public:
  DatagramFault datagram(uint32_t, Rank, const DatagramHeader& header, std::span<const std::byte> payload, Nanos) override {
    if (header.kind == DatagramKind::end) return DatagramFault::none;
    return ranges.emplace(header.packet_index, Bytes(payload.begin(), payload.end())).second ? DatagramFault::none
                                                                                             : DatagramFault::duplicate;
  }
  void stream_requested(uint32_t, Rank, const StreamRequest&, Nanos) override {}
  void stream_sent(uint32_t, Rank, StreamName) override {}
  Bytes joined() const {
    Bytes bytes;
    for (const auto& [index, range] : ranges) bytes.insert(bytes.end(), range.begin(), range.end());
    return bytes;
  }
  std::map<uint32_t, Bytes> ranges;
};

class UdpEncryptedStreams : public UdpEncryption {
 protected:
  void open(size_t count) {
    begin(count, {.datagram_bytes_max = 1472, .tls = keys(), .numbers_per_key = 256});
    std::vector<PeerIndex> peers;
    for (size_t i = 0; i < count; ++i) peers.push_back(static_cast<PeerIndex>(i));
    for (Rank rank = 0; rank < count; ++rank) {
      group.self = rank, group.world = static_cast<uint32_t>(count);
      ASSERT_TRUE(cluster.transports[rank]->open_group(group_number, group, peers, sinks[rank]).ok());
    }
  }
  void send_stream(const Bytes& payload, size_t range_bytes) {
    cluster.transports[0]->send_stream(
        group_number,
        {.to = 1, .name = {.op = 1}, .bytes = payload, .range_bytes = range_bytes, .contributors = {}, .deadline_us = 1});
  }
  // Asks for what is missing until all ranges have arrived.
  void expect_whole(const Bytes& payload, uint32_t ranges) {
    for (int round = 0; round < 100 && sinks[1].ranges.size() < ranges; ++round) {
      cluster.pass(10 * millisecond);
      Bytes bitmap((ranges + 7) / 8, std::byte{0});
      for (uint32_t range = 0; range < ranges; ++range) {
        if (!sinks[1].ranges.contains(range)) bitmap[range / 8] |= std::byte{1} << (range % 8);
      }
      cluster.transports[1]->request_repair(group_number, 0, {.op = 1}, 0, 0, bitmap);
    }
    EXPECT_TRUE(same(sinks[1].joined(), payload));
  }
  Ranges sinks[3];
  DatagramGroup group{.run_id = 77, .epoch = 7, .self = 0, .world = 2, .auth = DatagramAuth::mac, .key = {}};
};

TEST_F(UdpEncryptedStreams, a_datagram_has_space_for_two_elements_less) {
  open(2);
  EXPECT_EQ(cluster.transports[0]->flow(1)->datagram_bytes(), 1472u);
  EXPECT_EQ(cluster.transports[0]->header_bytes(), 64u);
  const auto bytes = cluster.transports[0]->datagram_bytes({{1}});
  EXPECT_EQ(bytes - datagram_header_bytes, 1472u - 64);
}

TEST_F(UdpEncryptedStreams, full_ranges_arrive_over_a_bad_network_in_datagrams_of_the_size_of_the_path) {
  open(2);
  cluster.network.lose = 0.2;
  cluster.network.jitter = 100 * microsecond;
  size_t longest = 0;
  cluster.network.watcher = [&](const Datagram& datagram) { longest = std::max(longest, datagram.bytes.size()); };
  const auto payload = pattern(1000 * 1408, 3);
  send_stream(payload, 1408);
  expect_whole(payload, 1000);
  EXPECT_EQ(longest, 1472u);
  EXPECT_EQ(cluster.transports[1]->dropped(DatagramFault::tag), 0u);
}

TEST_F(UdpEncryptedStreams, ranges_travel_in_parts_and_frames_are_cut_again_if_the_path_gets_shorter) {
  open(2);
  cluster.network.filter = [](const Datagram& datagram) { return datagram.bytes.size() <= 1200; };
  const auto payload = pattern(50 * 1408, 3);
  send_stream(payload, 1408);
  const auto frame = pattern(30'000, 4);
  send(frame, 1);
  expect_whole(payload, 50);
  ASSERT_TRUE(frames_arrive(1));
  EXPECT_TRUE(same(frames()[0].payload, frame));
  EXPECT_EQ(cluster.transports[0]->flow(1)->datagram_bytes(), 1200u);
}

// The header of a group's datagram says which rank sent it. Only the keys of the link to this rank open it.
TEST_F(UdpEncryptedStreams, another_member_cannot_be_impersonated) {
  open(3);
  std::vector<Datagram> seen;
  cluster.network.watcher = [&](const Datagram& datagram) {
    if (datagram.header().kind == DatagramKind::data) seen.push_back(datagram);
  };
  const auto payload = pattern(4000, 3);
  send_stream(payload, 1000);
  cluster.pass(10 * millisecond);
  ASSERT_FALSE(seen.empty());
  auto forged = seen[0];
  auto header = forged.header();
  header.sender = 2;
  std::memcpy(forged.bytes.data(), &header, sizeof header);
  forged.from = *parse_tcp_endpoint("tcp://" + cluster.endpoint(2));
  forged.at = cluster.network.now;
  const auto before = cluster.transports[1]->dropped(DatagramFault::tag);
  cluster.network.inject(forged);
  cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
  EXPECT_EQ(cluster.transports[1]->dropped(DatagramFault::tag), before + 1);
}

}  // namespace
}  // namespace unisono

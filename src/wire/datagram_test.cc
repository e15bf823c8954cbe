// Tests the bytes of a datagram and each fault for which a datagram is dropped.
#include "wire/datagram.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "wire/test_support.h"

namespace unisono::datagram_test {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const auto byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// Applies `change` to a valid header and then seals the datagram, so its tag is right. Returns the fault that the checks find.
// Expects the same fault with both kinds of tag.
template <typename Change>
DatagramFault fault_of_sealed(Change change) {
  auto made = header();
  change(made);
  const auto fault = check(sealed(made, payload(), group()), group());
  EXPECT_EQ(check(sealed(made, payload(), group(DatagramAuth::checksum)), group(DatagramAuth::checksum)), fault);
  return fault;
}

// Applies `change` to the bytes of a sealed datagram and returns the fault.
template <typename Change>
DatagramFault fault_of_changed(Change change) {
  auto bytes = sealed(header(), payload(), group());
  change(bytes);
  return check(bytes, group());
}

// Compares the whole datagram, tag included, with fixed bytes in the layout of docs/reference/wire_format.md.
TEST(Datagram, has_the_documented_bytes) {
  const auto bytes = sealed(header(), payload(), group());
  EXPECT_EQ(hex(bytes),
            "55540100070000008877665544332211e8030000020005000001030029000000100000008403000040e20100204e0000"
            "4abce6b431033425"
            "0000803f000000c00000003f00000000");
  EXPECT_EQ(check(bytes, group()), DatagramFault::none);
}

TEST(Datagram, the_checksum_is_in_the_low_half_of_the_tag) {
  const auto trusted = group(DatagramAuth::checksum);
  const auto bytes = sealed(header(), payload(), trusted);
  EXPECT_EQ(hex(bytes),
            "55540100070000008877665544332211e8030000020005000001030029000000100000008403000040e20100204e0000"
            "5f0d232500000000"
            "0000803f000000c00000003f00000000");
  EXPECT_EQ(check(bytes, trusted), DatagramFault::none);
}

TEST(Datagram, a_refused_datagram_leaves_no_header) {
  auto made = header();
  made.version = 2;
  DatagramHeader seen{.op = 77};
  EXPECT_EQ(check_shape(sealed(made, payload(), group()), bytes_max, seen), DatagramFault::version);
  EXPECT_EQ(seen.op, 77u);
}

TEST(Datagram, a_datagram_without_payload_is_accepted) {
  EXPECT_EQ(check(sealed(header(0), {}, group()), group()), DatagramFault::none);
}

TEST(Datagram, datagrams_of_every_kind_are_accepted) {
  for (uint8_t kind = 0; kind < datagram_kind_count; ++kind) {
    EXPECT_EQ(fault_of_sealed([&](auto& made) { made.kind = static_cast<DatagramKind>(kind); }), DatagramFault::none)
        << int{kind};
  }
}

TEST(Datagram, a_datagram_of_full_length_is_accepted) {
  const std::vector<std::byte> full(bytes_max - datagram_header_bytes);
  EXPECT_EQ(check(sealed(header(static_cast<uint16_t>(full.size())), full, group()), group()), DatagramFault::none);
}

TEST(DatagramFaults, each_fault_has_a_distinct_name) {
  std::set<std::string> names;
  for (int fault = 0; fault < datagram_fault_count; ++fault) names.insert(name(static_cast<DatagramFault>(fault)));
  EXPECT_EQ(names.size(), size_t{datagram_fault_count});
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(DatagramFaults, too_short_for_a_header) {
  const auto bytes = sealed(header(0), {}, group());
  for (size_t size = 0; size < datagram_header_bytes; ++size)
    EXPECT_EQ(check(std::span(bytes).first(size), group()), DatagramFault::too_short) << size;
  EXPECT_EQ(check({}, group()), DatagramFault::too_short);
}

TEST(DatagramFaults, too_short_is_also_reported_for_too_long) {
  const std::vector<std::byte> long_one(bytes_max - datagram_header_bytes + 1);
  EXPECT_EQ(check(sealed(header(static_cast<uint16_t>(long_one.size())), long_one, group()), group()),
            DatagramFault::too_short);
}

TEST(DatagramFaults, a_path_probe_may_be_longer) {
  const std::vector<std::byte> long_one(8972 - datagram_header_bytes);
  auto made = header(static_cast<uint16_t>(long_one.size()));
  made.kind = DatagramKind::path_probe;
  EXPECT_EQ(check(sealed(made, long_one, group()), group()), DatagramFault::none);
}

TEST(DatagramFaults, magic) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.magic = 0x5454; }), DatagramFault::magic);
}
TEST(DatagramFaults, version) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.version = 2; }), DatagramFault::version);
}
TEST(DatagramFaults, kind) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.kind = static_cast<DatagramKind>(10); }), DatagramFault::kind);
}

TEST(DatagramFaults, kind_of_undefined_flags) {
  for (const unsigned bit : {8u, 16u, 32u, 64u, 128u}) {
    EXPECT_EQ(fault_of_sealed([&](auto& made) { made.flags = static_cast<uint8_t>(made.flags | bit); }), DatagramFault::kind)
        << bit;
  }
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.flags = datagram_tail | datagram_repaired; }), DatagramFault::none);
}

TEST(DatagramFaults, kind_of_a_part_that_is_not_data) {
  for (uint8_t kind = 0; kind < datagram_kind_count; ++kind) {
    const auto fault = fault_of_sealed([&](auto& made) {
      made.kind = static_cast<DatagramKind>(kind);
      made.flags = datagram_part;
    });
    EXPECT_EQ(fault, kind == 0 ? DatagramFault::none : DatagramFault::kind) << int{kind};
  }
}

TEST(DatagramParts, a_part_fits_into_a_datagram_of_the_base_size) { EXPECT_EQ(range_part_bytes, 1200u - 56 - 4); }

TEST(DatagramFaults, run) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.run_id ^= 1ull << 63; }), DatagramFault::run);
}
TEST(DatagramFaults, epoch_of_the_past) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.epoch = 6; }), DatagramFault::epoch);
}
TEST(DatagramFaults, epoch_of_the_future) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.epoch = 8; }), DatagramFault::epoch);
}
TEST(DatagramFaults, receiver) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.receiver = 4; }), DatagramFault::receiver);
}
TEST(DatagramFaults, sender_outside_the_group) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.sender = 8; }), DatagramFault::sender);
}
TEST(DatagramFaults, sender_is_the_receiver) {
  EXPECT_EQ(fault_of_sealed([](auto& made) { made.sender = 5; }), DatagramFault::sender);
}
TEST(DatagramFaults, length_longer_than_declared) {
  EXPECT_EQ(fault_of_changed([](auto& bytes) { bytes.push_back({}); }), DatagramFault::length);
}
TEST(DatagramFaults, length_shorter_than_declared) {
  EXPECT_EQ(fault_of_changed([](auto& bytes) { bytes.pop_back(); }), DatagramFault::length);
}

TEST(DatagramFaults, tag_of_every_flipped_bit) {
  for (const auto auth : {DatagramAuth::mac, DatagramAuth::checksum}) {
    const auto sound = sealed(header(), payload(), group(auth));
    for (size_t bit = 0; bit < sound.size() * 8; ++bit) {
      auto bytes = sound;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      const auto fault = check(bytes, group(auth));
      EXPECT_NE(fault, DatagramFault::none) << "bit " << bit;
      const size_t at = bit / 8;
      const bool has_its_own_check = at < 16 || (at >= 20 && at < 24) || at == 25 || at == 32 || at == 33;
      EXPECT_TRUE(fault == DatagramFault::tag || has_its_own_check) << "bit " << bit;
    }
  }
}

TEST(DatagramFaults, tag_of_a_flipped_payload_bit) {
  EXPECT_EQ(fault_of_changed([](auto& bytes) { bytes[70] ^= std::byte{16}; }), DatagramFault::tag);
}

// Each of the next tests takes a valid datagram for another rank, epoch, run or sender. It overwrites that header field with
// the expected value. The tag must be refused, because each link has another key.
TEST(DatagramFaults, tag_of_the_right_content_at_the_wrong_receiver) {
  auto other = group();
  other.self = 4;
  EXPECT_EQ(check(sealed(header(), payload(), group()), other), DatagramFault::receiver);
  auto bytes = sealed(header(), payload(), group());
  bytes[22] = std::byte{4};
  EXPECT_EQ(check(bytes, other), DatagramFault::tag);
}

TEST(DatagramFaults, tag_of_a_datagram_replayed_in_another_epoch) {
  auto other = group();
  other.epoch = 8;
  auto bytes = sealed(header(), payload(), group());
  bytes[4] = std::byte{8};
  EXPECT_EQ(check(bytes, other), DatagramFault::tag);
}

TEST(DatagramFaults, tag_of_a_datagram_replayed_in_another_run) {
  auto other = group();
  other.run_id ^= 0xff;
  auto bytes = sealed(header(), payload(), group());
  bytes[8] ^= std::byte{0xff};
  EXPECT_EQ(check(bytes, other), DatagramFault::tag);
}

TEST(DatagramFaults, tag_of_a_datagram_from_another_rank) {
  EXPECT_EQ(fault_of_changed([](auto& bytes) { bytes[20] = std::byte{3}; }), DatagramFault::tag);
}

TEST(DatagramFaults, tag_made_without_the_key) {
  auto unauthenticated = group();
  unauthenticated.key[0] ^= std::byte{1};
  EXPECT_EQ(check(sealed(header(), payload(), unauthenticated), group()), DatagramFault::tag);
}

TEST(DatagramFaults, tag_with_a_checksum_instead_of_a_mac) {
  EXPECT_EQ(check(sealed(header(), payload(), group(DatagramAuth::checksum)), group()), DatagramFault::tag);
  EXPECT_EQ(check(sealed(header(), payload(), group()), group(DatagramAuth::checksum)), DatagramFault::tag);
}

// Only the earliest check that fails is reported. The test adds faults in reverse order of the checks. So each new fault must
// hide those added before.
TEST(DatagramFaults, faults_are_checked_in_order) {
  auto made = header();
  made.payload_bytes = 15;  // payload() has one byte more: fault `length`; the tag is 0, so it is wrong, too
  const auto fault = [&] { return check(join(made, payload()), group()); };
  EXPECT_EQ(fault(), DatagramFault::length);
  made.sender = 9;
  EXPECT_EQ(fault(), DatagramFault::sender);
  made.receiver = 9;
  EXPECT_EQ(fault(), DatagramFault::receiver);
  made.epoch = 9;
  EXPECT_EQ(fault(), DatagramFault::epoch);
  made.run_id = 9;
  EXPECT_EQ(fault(), DatagramFault::run);
  made.flags = 9;
  EXPECT_EQ(fault(), DatagramFault::kind);
  made.version = 9;
  EXPECT_EQ(fault(), DatagramFault::version);
  made.magic = 9;
  EXPECT_EQ(fault(), DatagramFault::magic);
  EXPECT_EQ(check(join(made, payload()), group(), 71), DatagramFault::too_short);
}

TEST(OpDistance, wraps_around_after_the_last_number) {
  EXPECT_EQ(op_distance(0, 0xFFFFFFFF), 1);
  EXPECT_EQ(op_distance(0xFFFFFFFF, 0), -1);
  EXPECT_EQ(op_distance(1000, 1000), 0);
  EXPECT_EQ(op_distance(0x7FFFFFFF, 0), 0x7FFFFFFF);
}

}  // namespace
}  // namespace unisono::datagram_test

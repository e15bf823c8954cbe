// Records of the distributed hash table: which lines are accepted, and which are skipped.
#include "elastic/seeds/seed_record.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {

using Addresses = std::vector<std::string>;

namespace {

const std::string opening = "unisono-elastic 1\n";

}  // namespace

TEST(SeedRecord, decoding_inverts_encoding) {
  const Addresses addresses{"tcp://10.0.0.1:4040", "tcp://[2001:db8::1]:4040"};
  EXPECT_EQ(read_seed_record(write_seed_record(addresses)), addresses);
}

TEST(SeedRecord, the_first_addresses_are_written_if_there_are_too_many) {
  Addresses addresses;
  for (int host = 1; host <= 9; ++host) addresses.push_back(concat("tcp://10.0.0.", host, ":4040"));
  const auto text = write_seed_record(addresses);
  EXPECT_LE(text.size(), seed_record_bytes_max);
  EXPECT_EQ(read_seed_record(text), Addresses(addresses.begin(), addresses.begin() + seed_record_addresses_max));
}

TEST(SeedRecord, a_text_with_another_first_line_is_not_a_record) {
  for (const char* text : {"", "unisono-elastic 1", "unisono-elastic 2\ntcp://10.0.0.1:4040\n", "tcp://10.0.0.1:4040\n"})
    EXPECT_TRUE(read_seed_record(text).empty()) << text;
}

TEST(SeedRecord, a_text_that_is_too_long_is_not_a_record) {
  const auto text = opening + "tcp://10.0.0.1:4040\n";
  EXPECT_EQ(read_seed_record(text + std::string(seed_record_bytes_max - text.size(), '\n')).size(), 1u);
  EXPECT_TRUE(read_seed_record(text + std::string(seed_record_bytes_max - text.size() + 1, '\n')).empty());
}

TEST(SeedRecord, lines_without_an_address_are_skipped) {
  const auto text = opening +
                    "nonsense\ntcp://host.example:1\ntcp://10.0.0.1\ntcp://10.0.0.1:70000\ntcp://"
                    "10.0.0.1:x\n\n10.0.0.256:1\ntcp://10.0.0.2:4040";
  EXPECT_EQ(read_seed_record(text), Addresses{"tcp://10.0.0.2:4040"});
}

TEST(SeedRecord, addresses_at_which_no_process_can_listen_are_skipped) {
  const auto text = opening +
                    "tcp://0.0.0.0:1\ntcp://224.0.0.1:1\ntcp://255.255.255.255:1\ntcp://[::]:1\ntcp://[ff02::1]:1\ntcp://"
                    "[::ffff:10.0.0.1]:1\ntcp://10.0.0.1:0\n";
  EXPECT_TRUE(read_seed_record(text).empty());
}

TEST(SeedRecord, at_most_four_different_addresses_are_read) {
  EXPECT_EQ(read_seed_record(opening + "tcp://10.0.0.1:1\ntcp://10.0.0.1:1\n").size(), 1u);
  auto text = opening;
  for (int port = 1; port <= 20; ++port) text += concat("tcp://10.0.0.1:", port, '\n');
  EXPECT_EQ(read_seed_record(text).size(), seed_record_addresses_max);
}

TEST(SeedRecord, random_bytes_are_decoded_or_refused) {
  constexpr uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int turn = 0; turn < 5000; ++turn) {
    auto text = opening + "tcp://10.0.0.1:4040\ntcp://[fe80::1%eth0]:4040\n";
    for (int change = 0; change < 4; ++change)
      text[opening.size() + random.below(text.size() - opening.size())] = static_cast<char>(random.next());
    EXPECT_LE(read_seed_record(text).size(), seed_record_addresses_max);
  }
}

}  // namespace unisono

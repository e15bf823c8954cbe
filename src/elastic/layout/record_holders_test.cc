// Check A21 of docs/design/methods/moshpit.md: the hash, the scores, and the order of peers under two keys, all bit for bit.
#include "elastic/layout/record_holders.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {

namespace {

std::vector<PeerId> eight() {
  std::vector<PeerId> peers;
  for (uint64_t i = 1; i <= 8; ++i) peers.push_back({i, 100 + i});
  return peers;
}

std::vector<uint64_t> lows(const std::vector<PeerId>& peers) {
  std::vector<uint64_t> found;
  for (const auto& peer : peers) found.push_back(peer.low);
  return found;
}

}  // namespace

TEST(RecordHolders, hash_and_score_are_the_documented_ones) {
  EXPECT_EQ(fnv1a64("seat/demo/1/7/0/3"), 0xeaa8070151d2a97dull);
  EXPECT_EQ(holder_score("seat/demo/1/7/0/3", {1, 0}), 0x5976cc1ae31264ffull);
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
}

TEST(RecordHolders, peers_are_ordered_by_score) {
  EXPECT_EQ(lows(by_score("seat/demo/1/7/0/3", eight())), (std::vector<uint64_t>{5, 7, 4, 1, 2, 3, 6, 8}));
  EXPECT_EQ(lows(by_score("layout/demo/1", eight())), (std::vector<uint64_t>{1, 5, 4, 7, 6, 2, 3, 8}));
  EXPECT_EQ(lows(record_holders("layout/demo/1", eight())), (std::vector<uint64_t>{1, 5, 4}));
}

TEST(RecordHolders, fewer_peers_than_holders_are_all_holders) {
  EXPECT_TRUE(record_holders("a", {}).empty());
  EXPECT_EQ(record_holders("a", std::vector<PeerId>{{9, 9}}), (std::vector<PeerId>{{9, 9}}));
}

TEST(RecordHolders, keys_are_written_as_specified) {
  EXPECT_EQ(slot_key("demo", {1, 99, 7, 0, 3}), "seat/demo/1/7/0/3");
  EXPECT_EQ(layout_key("demo", 1), "layout/demo/1");
}

TEST(RecordHolders, rosters_that_differ_little_share_holders) {
  Random random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<PeerId> common, mine, yours;
    for (int i = 0; i < 20; ++i) common.push_back({random.next(), random.next()});
    mine = yours = common;
    const auto a = random.below(3), b = random.below(3);
    for (uint64_t i = 0; i < a; ++i) mine.push_back({random.next(), 0});
    for (uint64_t i = 0; i < b; ++i) yours.push_back({random.next(), 0});
    const auto key = concat("seat/x/1/1/0/", trial);
    const auto here = record_holders(key, mine), there = record_holders(key, yours);
    size_t shared = 0;
    for (const auto& id : here) shared += std::count(there.begin(), there.end(), id);
    EXPECT_GE(shared, 3 - std::max(a, b)) << "trial " << trial;
  }
}

}  // namespace unisono

#include "schedules/relay.h"

#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "schedules/cost.h"

namespace unisono {
namespace {

// One rank's blocks: the rank whose value each block holds, or -1 if the block is empty.
using Blocks = std::vector<int64_t>;

TEST(Relay, each_rank_receives_each_value_once_at_its_position) {
  for (uint32_t world = 1; world <= 67; ++world) {
    std::vector<std::vector<RelayRound>> rounds;
    std::vector<Blocks> has(world, Blocks(world, -1));
    for (Rank r = 0; r < world; ++r) {
      rounds.push_back(relay_rounds(r, world));
      has[r][0] = r;
    }
    for (size_t k = 0; k < rounds[0].size(); ++k) {
      const auto before = has;
      for (Rank r = 0; r < world; ++r) {
        const auto& mine = rounds[r][k];
        const auto& theirs = rounds[mine.from][k];
        ASSERT_EQ(theirs.to, r);
        ASSERT_EQ(theirs.blocks, mine.blocks);
        for (uint32_t i = 0; i < mine.blocks; ++i) {
          ASSERT_GE(before[mine.from][i], 0)
              << "rank " << mine.from << " does not have what it sends, round " << k << " of " << world;
          ASSERT_EQ(has[r][mine.position + i], -1) << "twice";
          has[r][mine.position + i] = before[mine.from][i];
        }
      }
    }
    for (Rank r = 0; r < world; ++r) {
      for (Rank of = 0; of < world; ++of)
        EXPECT_EQ(has[r][relay_position(of, r, world)], of) << "rank " << r << " of " << world;
    }
  }
}

TEST(Relay, takes_as_many_rounds_as_the_world_has_bits_and_sends_each_value_once) {
  EXPECT_TRUE(relay_rounds(0, 1).empty());
  for (const auto& [world, expected] :
       std::vector<std::pair<uint32_t, size_t>>{{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {64, 6}}) {
    const auto rounds = relay_rounds(1, world);
    EXPECT_EQ(rounds.size(), expected) << world;
    uint32_t sent = 0;
    for (const auto& round : rounds) sent += round.blocks;
    EXPECT_EQ(sent, world - 1);
    const auto traffic = relayed_traffic(world);
    EXPECT_EQ(std::tuple(traffic.rounds, traffic.batches, traffic.messages, traffic.bytes),
              std::tuple(expected, expected, expected, world - 1))
        << world;
  }
}

}  // namespace
}  // namespace unisono

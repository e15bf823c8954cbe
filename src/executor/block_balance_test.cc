#include "executor/block_balance.h"

#include <gtest/gtest.h>

#include <vector>

namespace unisono {
namespace {

using Sizes = std::vector<std::vector<size_t>>;  // sizes[from][to]

// Returns the sum of the shares of all ranks, if the ranks expect the sizes of `received` and send those of `sent`.
uint64_t sum_of_shares(const Sizes& sent, const Sizes& received) {
  const auto world = static_cast<uint32_t>(sent.size());
  uint64_t sum = 0;
  for (Rank self = 0; self < world; ++self) {
    OperationRequest q{.collective = Collective::all_to_all, .send_counts = sent[self]};
    for (Rank from = 0; from < world; ++from) q.recv_counts.push_back(received[from][self]);
    sum += balance_share(q, self, world);
  }
  return share_of_sum(sum);
}

Sizes sizes_of(uint32_t world, size_t even) { return Sizes(world, std::vector<size_t>(world, even)); }

TEST(BlockBalance, shares_add_up_to_nothing_if_all_pairs_agree) {
  for (const uint32_t world : {2u, 3u, 4u, 17u, 200u}) {
    auto sizes = sizes_of(world, 0);
    EXPECT_EQ(sum_of_shares(sizes, sizes), 0u) << world;
    for (Rank from = 0; from < world; ++from) {
      for (Rank to = 0; to < world; ++to) sizes[from][to] = from * 1000 + to * to;
    }
    EXPECT_EQ(sum_of_shares(sizes, sizes), 0u) << world;
  }
}

TEST(BlockBalance, each_single_difference_shows) {
  for (const uint32_t world : {2u, 3u, 5u}) {
    const auto sizes = sizes_of(world, 10);
    for (Rank from = 0; from < world; ++from) {
      for (Rank to = 0; to < world; ++to) {
        if (from == to) continue;
        for (const size_t other : {0, 9, 11, 1000}) {
          auto changed = sizes;
          changed[from][to] = other;
          EXPECT_NE(sum_of_shares(sizes, changed), 0u) << from << " to " << to << ": " << other;
          EXPECT_NE(sum_of_shares(changed, sizes), 0u) << from << " to " << to << ": " << other;
        }
      }
    }
  }
}

// Two ranks each believe that both send as much as they do themselves. With one weight for both directions, the shares would
// cancel.
TEST(BlockBalance, two_ranks_with_a_size_of_their_own_show) {
  auto sent = sizes_of(3, 10), received = sent;
  sent[0][1] = received[1][0] = 11;
  EXPECT_NE(sum_of_shares(sent, received), 0u);
  sent = received = sizes_of(3, 10);
  sent[0][1] = received[1][2] = 11;  // the totals agree
  EXPECT_NE(sum_of_shares(sent, received), 0u);
}

// A rank with equal blocks works with ranks that give the same sizes one by one.
TEST(BlockBalance, equal_blocks_have_the_share_of_equal_sizes) {
  for (const size_t count : {0, 1, 77}) {
    for (Rank self = 0; self < 4; ++self) {
      const OperationRequest even{.collective = Collective::all_to_all, .count = count};
      const std::vector<size_t> counts(4, count);
      const OperationRequest listed{.collective = Collective::all_to_all, .send_counts = counts, .recv_counts = counts};
      EXPECT_EQ(balance_share(even, self, 4), balance_share(listed, self, 4));
    }
  }
}

}  // namespace
}  // namespace unisono

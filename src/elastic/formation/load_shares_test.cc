#include "elastic/formation/load_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace unisono {
namespace {

using Chunks = std::vector<uint32_t>;

ShareRequest request_of(uint32_t chunk_count, const std::vector<double>& bandwidths, uint32_t min_chunks = 0) {
  ShareRequest request{.members = {}, .chunk_count = chunk_count, .min_chunks = min_chunks};
  for (const auto bandwidth : bandwidths) request.members.push_back({ElasticRole::peer, bandwidth});
  return request;
}

Chunks shares_of(const ShareRequest& request) {
  const auto chunks = load_shares(request);
  EXPECT_TRUE(chunks.ok()) << chunks.status().to_string();
  return chunks.ok() ? *chunks : Chunks{};
}

// The shares specified by check A20 of docs/design/methods/moshpit.md.
TEST(LoadSharesA20, are_the_documented_ones) {
  EXPECT_EQ(shares_of(request_of(60, {.25, .25, .25, .25})), (Chunks{15, 15, 15, 15}));
  EXPECT_EQ(shares_of(request_of(60, {.55, .44, .40})), (Chunks{35, 16, 9}));
  EXPECT_EQ(shares_of(request_of(60, {.55, .44, .40}, 10)), (Chunks{41, 19, 0}));
  EXPECT_EQ(shares_of(request_of(60, {.32, .55, .44}, 10)), (Chunks{0, 40, 20}));
  EXPECT_EQ(shares_of(request_of(1u << 20, {0, .5, 0, .6})), (Chunks{0, 428963, 0, 619613}));
  EXPECT_EQ(shares_of(request_of(1024, {.3, .5, .9})), (Chunks{0, 73, 951}));
  EXPECT_EQ(shares_of(request_of(100, {0, 0, 0, 1, 1})), (Chunks{0, 0, 0, 50, 50}));
}

TEST(LoadSharesA20, give_a_reducer_what_its_free_link_allows) {
  auto request = request_of(100, {100, 100, 100, 100});
  request.members[3].role = ElasticRole::reducer;
  EXPECT_EQ(shares_of(request), (Chunks{20, 20, 20, 40}));
}

TEST(LoadShares, give_clients_nothing) {
  auto request = request_of(90, {1, 1000, 1, 1});
  request.members[1].role = ElasticRole::client;
  EXPECT_EQ(shares_of(request), (Chunks{30, 0, 30, 30}));
}

TEST(LoadShares, take_unknown_bandwidths_for_the_mean_of_the_known) {
  EXPECT_EQ(shares_of(request_of(1000, {-1, .4, .6})), shares_of(request_of(1000, {.5, .4, .6})));
  EXPECT_EQ(shares_of(request_of(1000, {-1, .4, .6, 0})), shares_of(request_of(1000, {.5, .4, .6, 0})))
      << "0 is no measure of a link";
  for (const double odd : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(shares_of(request_of(1000, {odd, .4, .6})), shares_of(request_of(1000, {.5, .4, .6}))) << odd;
}

TEST(LoadShares, are_equal_if_nothing_is_known) {
  EXPECT_EQ(shares_of(request_of(9, {-1, -1, -1})), (Chunks{3, 3, 3}));
  EXPECT_EQ(shares_of(request_of(9, {-1, 0, -1, -1})), (Chunks{3, 0, 3, 3}));
}

TEST(LoadShares, of_two_are_proportional) {
  EXPECT_EQ(shares_of(request_of(100, {3, 1})), (Chunks{75, 25}));
  EXPECT_EQ(shares_of(request_of(100, {3, 0})), (Chunks{100, 0}));
  EXPECT_EQ(shares_of(request_of(100, {7})), (Chunks{100}));
}

TEST(LoadShares, of_two_go_to_reducers_only_if_neither_of_the_two_can) {
  auto request = request_of(100, {3, 1, 9, 1});
  request.members[2].role = request.members[3].role = ElasticRole::reducer;
  EXPECT_EQ(shares_of(request), (Chunks{75, 25, 0, 0}));
  request.members[0].bandwidth = 0;
  request.members[1].role = ElasticRole::client;
  EXPECT_EQ(shares_of(request), (Chunks{0, 0, 90, 10}));
}

TEST(LoadShares, go_to_reducers_if_no_contributor_can) {
  auto request = request_of(100, {0, 0, 0, 3, 1});
  request.members[3].role = request.members[4].role = ElasticRole::reducer;
  EXPECT_EQ(shares_of(request), (Chunks{0, 0, 0, 75, 25}));
}

TEST(LoadShares, give_the_remainder_to_lower_ranks) {
  EXPECT_EQ(shares_of(request_of(5, {1, 1, 1, 1})), (Chunks{2, 1, 1, 1}));
  EXPECT_EQ(shares_of(request_of(3, {1, 1, 1, 1})), (Chunks{1, 1, 1, 0}));
  EXPECT_EQ(shares_of(request_of(4, {.3, .1 + .2, .3})), (Chunks{2, 1, 1})) << "equal but for the last bit";
  EXPECT_EQ(shares_of(request_of(0, {1, 1, 1, 1})), (Chunks{0, 0, 0, 0}));
}

TEST(LoadShares, below_min_chunks_stay_if_all_shares_are_below) {
  EXPECT_EQ(shares_of(request_of(8, {1, 1, 1, 1}, 3)), (Chunks{2, 2, 2, 2}));
}

TEST(LoadShares, fail_with_no_reducer_if_no_member_can_own_chunks) {
  const ShareRequest cases[] = {request_of(10, {}),
                                request_of(10, {0, 0, 0}),
                                {.members = {{ElasticRole::client, 5}, {ElasticRole::client, -1}}, .chunk_count = 3}};
  for (const auto& request : cases) {
    const auto chunks = load_shares(request);
    ASSERT_FALSE(chunks.ok());
    EXPECT_EQ(chunks.status().code(), Code::unavailable);
    EXPECT_EQ(chunks.status().message().rfind("NO_REDUCER", 0), 0u);
  }
}

TEST(LoadShares, are_valid_for_bandwidths_that_are_not_finite) {
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  const double infinite = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> odd = {huge, huge, tiny, infinite, -infinite, none, 0, -0.0, 1};
  Random random(11);
  for (int trial = 0; trial < 2000; ++trial) {
    ShareRequest request{.members = {},
                         .chunk_count = static_cast<uint32_t>(random.next() >> (32 + random.below(32))),
                         .min_chunks = static_cast<uint32_t>(random.below(4))};
    for (uint64_t i = random.below(8); i > 0; --i)
      request.members.push_back({static_cast<ElasticRole>(random.below(3)), odd[random.below(odd.size())]});
    const auto chunks = load_shares(request);
    if (chunks.ok()) ASSERT_EQ(std::accumulate(chunks->begin(), chunks->end(), uint64_t{0}), request.chunk_count) << trial;
    else ASSERT_EQ(chunks.status().code(), Code::unavailable);
  }
}

// Returns the largest ratio of traffic to bandwidth among the members that can own chunks, for these shares.
double load_of(const ShareRequest& request, const std::vector<double>& shares) {
  const auto n = static_cast<double>(std::count_if(request.members.begin(), request.members.end(),
                                                   [](const ShareMember& m) { return m.role != ElasticRole::reducer; }));
  double worst = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& member = request.members[i];
    if (member.bandwidth == 0 || member.role == ElasticRole::client) continue;
    worst = std::max(worst, (member.role == ElasticRole::reducer ? n * shares[i] : 1 + (n - 2) * shares[i]) / member.bandwidth);
  }
  return worst;
}

TEST(LoadShares, are_optimal) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    ShareRequest request{.members = {}, .chunk_count = 1u << 24};
    const auto count = 3 + random.below(30);
    for (uint64_t i = 0; i < count; ++i) {
      const auto role = i < 3 ? ElasticRole::peer : static_cast<ElasticRole>(random.below(3));
      request.members.push_back({role, i > 0 && random.chance(0.1) ? 0 : 1 + 9 * random.unit() * random.unit()});
    }
    const auto chunks = shares_of(request);
    ASSERT_EQ(std::accumulate(chunks.begin(), chunks.end(), uint64_t{0}), request.chunk_count);
    std::vector<double> shares;
    for (size_t i = 0; i < chunks.size(); ++i) {
      shares.push_back(chunks[i] / static_cast<double>(request.chunk_count));
      if (request.members[i].bandwidth == 0 || request.members[i].role == ElasticRole::client) {
        ASSERT_EQ(chunks[i], 0u) << "seed " << seed;
      }
    }
    const auto best = load_of(request, shares);
    for (int trial = 0; trial < 300; ++trial) {
      const auto from = random.below(count), to = random.below(count);
      if (request.members[to].bandwidth == 0 || request.members[to].role == ElasticRole::client) continue;
      auto other = shares;
      const auto moved = shares[from] * random.unit() * random.unit();
      other[from] -= moved, other[to] += moved;
      ASSERT_GE(load_of(request, other), best * (1 - 1e-5))
          << "seed " << seed << ", " << moved << " from " << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace unisono

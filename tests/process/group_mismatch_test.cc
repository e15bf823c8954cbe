// Calls that differ between ranks are detected on every rank, and the errors name them. No rank hangs. The group can be
// re-formed.
#include <gtest/gtest.h>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

struct Mismatch {
  const char* what;
  const char* right;
  const char* wrong;
  const char* says_right;  // expected part of the error message for each of the two calls
  const char* says_wrong;
};

constexpr Mismatch mismatches[] = {
    {"size", "all_reduce:count=1000", "all_reduce:count=1001", "1000 elements", "1001 elements"},
    {"large_size", "all_reduce:count=1000003", "all_reduce:count=900001", "1000003 elements", "900001 elements"},
    {"nothing_against_something", "all_reduce:count=0", "all_reduce:count=50", "0 elements", "50 elements"},
    {"type", "all_reduce:count=1000,dtype=f32", "all_reduce:count=1000,dtype=i32", "f32", "i32"},
    {"operation", "all_reduce:count=1000,op=sum", "all_reduce:count=1000,op=max", "sum", "max"},
    {"collective", "all_reduce:count=1000", "all_gather:count=1000", "all_reduce", "all_gather"},
    {"barrier_against_data", "barrier", "all_to_all:count=30", "barrier", "all_to_all"},
    {"codec", "all_reduce:count=5000,schedule=2,codec=int4", "all_reduce:count=5000,schedule=2,codec=int5", "int4", "int5"},
    {"codec_against_none", "all_reduce:count=5000,schedule=2,codec=int4", "all_reduce:count=5000,schedule=2", "codec", "rank"},
    {"root_of_broadcast", "broadcast:count=500,root=0", "broadcast:count=500,root=1", "root 0", "root 1"},
    {"root_of_large_broadcast", "broadcast:count=500000,root=0", "broadcast:count=500000,root=2", "root 0", "root 2"},
    {"root_of_reduce", "reduce:count=500,root=0", "reduce:count=500,root=1", "root 0", "root 1"},
    {"root_of_gather", "gather:count=500,root=2", "gather:count=500,root=1", "root 2", "root 1"},
    {"block_of_gather", "gather:count=500,root=0", "gather:count=501,root=0", "expects 500", "501 elements"},
    {"block_of_scatter", "scatter:count=500,root=0", "scatter:count=501,root=0", "500 elements", "expects 501"},
    {"block_of_all_to_all", "all_to_all:count=500", "all_to_all:count=500,more_from=1", "rank 0 sent a block of 500 elements",
     "rank 1 expects 501"},
    {"block_of_large_all_to_all", "all_to_all:count=500000", "all_to_all:count=500000,more_from=3",
     "rank 2 sent a block of 500000 elements", "rank 1 expects 500001"},
    {"root_of_scatter", "scatter:count=500,root=0", "scatter:count=500,root=1", "root 0", "root 1"},
    {"schedule", "all_reduce:count=1000,schedule=2", "all_reduce:count=1000,schedule=5", "two_step", "one_shot"},
};

class Mismatches : public ::testing::TestWithParam<std::tuple<std::string, Mismatch>> {
 protected:
  ClusterOptions options() const { return {.transport = std::get<0>(GetParam()), .environment = {"UNISONO_TIMEOUT_MS=10000"}}; }
  const Mismatch& mismatch() const { return std::get<1>(GetParam()); }
};

TEST_P(Mismatches, are_named_on_every_rank_and_the_group_continues) {
  Cluster group(3, options());
  expect_all_ok(group.ask_all("all_reduce:count=1000"));
  std::vector<size_t> numbers;
  for (size_t rank = 0; rank < 3; ++rank)
    numbers.push_back(group[rank].send_command(rank == 1 ? mismatch().wrong : mismatch().right));
  for (const auto& line : group.answers({0, 1, 2}, numbers)) {
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.says(mismatch().says_right)) << line.text << " should say " << mismatch().says_right;
    EXPECT_TRUE(line.says(mismatch().says_wrong)) << line.text << " should say " << mismatch().says_wrong;
    EXPECT_TRUE(line.says("rank 1") || line.says("rank 0") || line.says("rank 2")) << line.text;
  }
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=3,check=1"));
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=3,check=1"));
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(All, Mismatches,
                         ::testing::Combine(::testing::Values("shm", "tcp", "udp"), ::testing::ValuesIn(mismatches)),
                         [](const ::testing::TestParamInfo<Mismatches::ParamType>& p) {
                           return std::get<0>(p.param) + "_" + std::get<1>(p.param).what;
                         });

TEST(Order, a_different_order_of_calls_is_named) {
  Cluster group(2, {.environment = {"UNISONO_TIMEOUT_MS=10000"}});
  // Rank 0 calls all_reduce, then all_gather; rank 1 calls them in the opposite order.
  const auto first = group[0].send_command("all_reduce:count=500"), second = group[1].send_command("all_gather:count=500");
  const auto third = group[0].send_command("all_gather:count=500"), fourth = group[1].send_command("all_reduce:count=500");
  for (const auto& line : {group[0].answer(first), group[1].answer(second)}) {
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.says("all_reduce") && line.says("all_gather")) << line.text;
  }
  // The second pair of calls must fail too. It also differs, unless a rank already knows that the group failed.
  for (const auto& line : {group[0].answer(third), group[1].answer(fourth)}) EXPECT_FALSE(line.ok()) << line.text;
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=500"));
  group.finish();
}

TEST(Calls, invalid_calls_are_refused_at_once_and_later_calls_still_match) {
  Cluster group(2, {});
  EXPECT_EQ(group[0].ask("broadcast:count=5,root=2").code(), "invalid");
  EXPECT_EQ(group[0].ask("all_reduce:count=5,dtype=f32,op=bxor").code(), "invalid");
  EXPECT_EQ(group[0].ask("send:count=5,peer=0").code(), "invalid");
  EXPECT_EQ(group[0].ask("all_reduce:count=5,slice=3").code(), "invalid");
  expect_all_ok(group.ask_all("all_reduce:count=5"));
  group.finish();
}

}  // namespace
}  // namespace unisono::testing

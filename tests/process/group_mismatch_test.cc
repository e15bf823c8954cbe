// Calls that differ between ranks are found and named on every rank; nobody hangs, and the group can be re-formed.
#include <gtest/gtest.h>

#include "group_cluster.h"

namespace unisono::testing {
namespace {

struct Mismatch {
  const char* what;
  const char* right;
  const char* wrong;
  const char* says_right;  // what the message says of either call
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
    {"schedule", "all_reduce:count=1000,schedule=2", "all_reduce:count=1000,schedule=5", "two_step", "one_shot"},
};

class Mismatches : public ::testing::TestWithParam<std::tuple<std::string, Mismatch>> {
 protected:
  ClusterOptions options() const { return {.transport = std::get<0>(GetParam()), .environment = {"UNISONO_TIMEOUT_MS=10000"}}; }
  const Mismatch& mismatch() const { return std::get<1>(GetParam()); }
};

TEST_P(Mismatches, are_named_on_every_rank_and_the_group_goes_on) {
  Cluster group(3, options());
  expect_all_ok(group.ask_all("all_reduce:count=1000"));
  std::vector<size_t> numbers;
  for (size_t rank = 0; rank < 3; ++rank) numbers.push_back(group[rank].tell(rank == 1 ? mismatch().wrong : mismatch().right));
  for (const auto& line : group.answers({0, 1, 2}, numbers)) {
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.says(mismatch().says_right)) << line.text << " should say " << mismatch().says_right;
    EXPECT_TRUE(line.says(mismatch().says_wrong)) << line.text << " should say " << mismatch().says_wrong;
    EXPECT_TRUE(line.says("rank 1") || line.says("rank 0") || line.says("rank 2")) << line.text;
  }
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=1000,iters=3,check=1"));
  group.finish();
}

INSTANTIATE_TEST_SUITE_P(All, Mismatches,
                         ::testing::Combine(::testing::Values("shm", "tcp", "udp"), ::testing::ValuesIn(mismatches)),
                         [](const ::testing::TestParamInfo<Mismatches::ParamType>& p) {
                           return std::get<0>(p.param) + "_" + std::get<1>(p.param).what;
                         });

TEST(Order, of_calls_that_differs_is_named) {
  Cluster group(2, {.environment = {"UNISONO_TIMEOUT_MS=10000"}});
  // Rank 0 reduces and then gathers, rank 1 the other way round.
  const auto first = group[0].tell("all_reduce:count=500"), second = group[1].tell("all_gather:count=500");
  const auto third = group[0].tell("all_gather:count=500"), fourth = group[1].tell("all_reduce:count=500");
  for (const auto& line : {group[0].answer(first), group[1].answer(second)}) {
    EXPECT_EQ(line.code(), "invalid") << line.text;
    EXPECT_TRUE(line.says("all_reduce") && line.says("all_gather")) << line.text;
  }
  // The second pair differs too, or one has heard of the end already; in no case do both hang or get a wrong result.
  for (const auto& line : {group[0].answer(third), group[1].answer(fourth)}) EXPECT_FALSE(line.ok()) << line.text;
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=500"));
  group.finish();
}

// Two roots may expect nothing of each other: then no message differs, and the deadline says who is missing.
TEST(Order, of_roots_that_differs_ends_by_the_deadline) {
  Cluster group(3, {});
  std::vector<size_t> numbers;
  for (size_t rank = 0; rank < 3; ++rank)
    numbers.push_back(
        group[rank].tell(rank == 1 ? "reduce:count=500,root=1,timeout=500" : "reduce:count=500,root=0,timeout=500"));
  const auto lines = group.answers({0, 1, 2}, numbers);
  for (const size_t root : {0u, 1u}) {
    EXPECT_TRUE(lines[root].code() == "late" || lines[root].code() == "invalid") << lines[root].text;
    expect_within("an end after", lines[root].number("us") * 1000, 500 + 200);
  }
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=500"));
  group.finish();
}

TEST(Calls, that_are_wrong_in_themselves_are_refused_at_once_and_the_others_still_match) {
  Cluster group(2, {});
  EXPECT_EQ(group[0].ask("broadcast:count=5,root=2").code(), "invalid");
  EXPECT_EQ(group[0].ask("all_reduce:count=5,dtype=f32,op=bxor").code(), "invalid");
  EXPECT_EQ(group[0].ask("send:count=5,peer=0").code(), "invalid");
  EXPECT_EQ(group[0].ask("send:count=5,peer=1,tag=32768").code(), "invalid");
  EXPECT_EQ(group[0].ask("all_reduce:count=5,slice=3").code(), "invalid");
  expect_all_ok(group.ask_all("all_reduce:count=5"));
  group.finish();
}

}  // namespace
}  // namespace unisono::testing

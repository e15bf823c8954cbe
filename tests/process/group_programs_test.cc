// Programs as users write and run them: in C, and under `unisono launch`.
#include "group_cluster.h"

#include "base/concat.h"

namespace unisono::testing {
namespace {

TEST(CProgram, does_everything_that_the_c_header_offers) {
  for (const std::string transport : {"shm", "tcp"}) {
    test::TemporaryFolder folder;
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{C_PROGRAM},
          ChildOptions{.environment = {concat("RANK=", rank), "WORLD_SIZE=3", "UNISONO_TRANSPORT=" + transport,
                                       "UNISONO_RENDEZVOUS=file://" + folder.path() + "/meeting"}}));
    }
    for (auto& rank : ranks) {
      const auto done = rank->wait();
      EXPECT_EQ(done.code, 0) << done.error;
      EXPECT_NE(done.out.find("of 3: right"), std::string::npos) << done.out;
    }
  }
}

#ifdef UNISONO_TOOL
TEST(LaunchedProgram, runs_as_four_ranks_on_one_host) {
  const auto done = run({UNISONO_TOOL, "launch", "-n", "4", "--", GROUP_PROGRAM, "strict", "join", "matrix:counts=0/5/1000",
                         "all_reduce:count=300001,iters=5", "reform", "all_reduce:count=300001"});
  EXPECT_EQ(done.code, 0) << done.out << done.error;
  EXPECT_EQ(count_of(done.out, "event=all_reduce code=ok"), 8u) << done.out;
  for (const auto* prefix : {"[0] at=", "[1] at=", "[2] at=", "[3] at="}) EXPECT_EQ(count_of(done.out, prefix), 5u) << done.out;
}

TEST(LaunchedProgram, is_ended_when_it_loses_a_rank_and_the_first_failed_rank_is_named) {
  const auto done = run({UNISONO_TOOL, "launch", "-n", "3", "--", "sh", "-c",
                         "if [ $RANK = 1 ]; then exec \"$0\" join all_reduce:count=1000 signal:number=9; else exec \"$0\" "
                         "strict join all_reduce:count=1000,iters=100000000; fi",
                         GROUP_PROGRAM});
  EXPECT_NE(done.code, 0);
  EXPECT_NE(done.error.find("rank 1"), std::string::npos) << done.error;
  EXPECT_EQ(done.out.find("code=late"), std::string::npos) << done.out;
}
#endif

}  // namespace
}  // namespace unisono::testing

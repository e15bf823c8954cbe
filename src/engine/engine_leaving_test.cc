// A member that leaves because its operation timed out is not the cause. The others learn from it for whom it waited, and their
// errors say so.
#include "engine/engine_test_support.h"

namespace unisono {
namespace {

using test::expect_ok;
using test::in;
using test::Ints;
using test::out;
using test::test_values;

class EngineLeaving : public ::testing::Test {
 protected:
  std::shared_ptr<Completion> sum(Rank r) {
    values[r] = test_values(r, 1000);
    return cluster.submit(r, all_reduce_call(cluster.caller(r), in(values[r]), out(values[r]),
                                             {.schedule = ScheduleKind::one_shot, .timeout = Milliseconds(500)}));
  }
  void lose(Rank at, Rank gone) {
    cluster.engine(at).lost(gone, {Code::peer_lost, concat("process ", gone, ": the peer closed the link")}, PeerFate::ended);
    cluster.engine(at).poll(cluster.now());
  }

  TestCluster cluster{4};
  std::vector<Ints> values{4};
};

TEST_F(EngineLeaving, a_failure_in_an_operation_that_succeeded_here_is_the_reason_that_later_errors_give) {
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 4; ++r) done.push_back(sum(r));
  const auto number = cluster.group(3).numbers.next() - 1;
  cluster.finish(done);
  expect_ok(done);
  const auto payload =
      failure_payload({Code::late, "all_reduce 0: not finished after 50 ms: rank 1 (process 1) has sent nothing"});
  cluster.engine(3).received(0,
                             {.kind = FrameKind::failed,
                              .epoch = 7,
                              .group = 1,
                              .operation = number,
                              .sender = 0,
                              .payload_bytes = static_cast<uint32_t>(payload.size())},
                             {.data = payload.data(), .bytes = payload.size()});
  const auto waits = sum(3);
  cluster.advance(3 * millisecond);
  cluster.engine(3).poll(cluster.now());
  lose(3, 0);
  ASSERT_TRUE(waits->done);
  EXPECT_EQ(
      waits->status.to_string(),
      "peer_lost: all_reduce 1: rank 0 was lost: process 0: the peer closed the link; 3 ms before, it reported: all_reduce "
      "0: not finished after 50 ms: rank 1 (process 1) has sent nothing; 4000 of 4000 bytes from it are missing; call "
      "reform()");
}

TEST_F(EngineLeaving, a_member_that_leaves_says_for_whom_it_waited) {
  const auto leaves = sum(0), waits = sum(3);
  cluster.settle();
  cluster.advance(20 * millisecond);
  cluster.settle();
  cluster.engine(0).leave(cluster.now());
  cluster.settle();
  EXPECT_FALSE(waits->done) << "it may still get all that it needs";
  cluster.hub().kill(0);
  cluster.settle();
  const auto later = sum(3);
  cluster.settle();
  ASSERT_TRUE(later->done);
  EXPECT_NE(later->status.message().find("0 ms before, it reported: all_reduce 0 has waited 20 ms for rank 1, rank 2"),
            std::string::npos)
      << later->status.to_string();
}

TEST_F(EngineLeaving, an_old_report_is_not_taken_for_the_reason) {
  const auto waits = sum(3), leaves = sum(0);
  cluster.settle();
  cluster.engine(0).leave(cluster.now());
  cluster.settle();
  cluster.advance(11 * second);
  cluster.engine(3).poll(cluster.now());
  const auto later = sum(3);
  lose(3, 0);
  ASSERT_TRUE(later->done);
  EXPECT_EQ(later->status.message().find("it reported"), std::string::npos) << later->status.to_string();
}

}  // namespace
}  // namespace unisono

// How operations end, and with which error, when another member re-forms the group.
#include "engine/engine.h"

#include "engine/test_cluster.h"

namespace unisono {
namespace {

// The status that group/lifecycle/joining passes.
const Status news(Code::peer_lost, "another member re-forms the group");

TEST(EngineReforming, when_a_member_re_forms_what_does_not_need_it_may_end_well) {
  TestCluster cluster(3);
  int32_t one = 0, two = 0, given = 5;
  const auto receive = [&](int32_t& value, Rank from) {
    return message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, from, 1, {});
  };
  const auto needs_one = cluster.submit(0, receive(one, 1), 1), needs_two = cluster.submit(0, receive(two, 2), 1);
  cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
  cluster.submit(2, message_call(cluster.caller(2), Collective::send, {&given, 1, DType::i32}, {}, 0, 1, {}), 1);
  cluster.settle();
  EXPECT_EQ(needs_one->status.code(), Code::peer_lost);
  EXPECT_TRUE(needs_two->done && needs_two->status.ok()) << needs_two->status.to_string();
  EXPECT_EQ(two, 5);
  EXPECT_EQ(cluster.submit(0, barrier_call(cluster.caller(0), {}))->status,
            Status(Code::peer_lost, "barrier: another member re-forms the group"));
}

TEST(EngineReforming, when_a_member_re_forms_nothing_runs_on_for_long) {
  TestCluster cluster(3);
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, 1, {}), 1);
  cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
  EXPECT_EQ(cluster.engine(0).next_deadline(), cluster.now() + 100 * millisecond);
  cluster.pass(99 * millisecond);
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.pass(millisecond);
  cluster.settle();
  EXPECT_TRUE(waits->done);
  EXPECT_EQ(waits->status.code(), Code::peer_lost);
}

TEST(EngineReforming, a_group_that_is_made_meanwhile_has_as_long_as_the_others) {
  TestCluster cluster(3);
  cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
  auto& made = cluster.make_group(0, 2, {0, 2});
  const auto waits = cluster.submit(0, made, barrier_call({.self = 0, .world = 2, .timeout = second}, {}));
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.pass(100 * millisecond);
  cluster.settle();
  EXPECT_EQ(waits->status, news);
}

// Rank 0 has given its block to rank 1, which waits for rank 2's in vain.
struct GivenUp : ::testing::Test {
  void SetUp() override {
    for (const Rank rank : {0u, 1u})
      gathered.push_back(cluster.submit(rank, gather_call(cluster.caller(rank), {&given, 1, DType::i32},
                                                          rank == 1 ? Tensor{taken.data(), 3, DType::i32} : Tensor{}, 1, {},
                                                          {.timeout = std::chrono::milliseconds(100)})));
    cluster.settle();
    ASSERT_TRUE(gathered[0]->done && gathered[0]->status.ok()) << gathered[0]->status.to_string();
  }
  std::shared_ptr<Completion> barrier() { return cluster.submit(0, barrier_call(cluster.caller(0), {})); }
  void give_up() {
    cluster.finish(gathered);
    ASSERT_EQ(gathered[1]->status.code(), Code::late) << gathered[1]->status.to_string();
  }
  Status wound_down(const std::shared_ptr<Completion>& running) {
    cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
    cluster.settle();
    EXPECT_TRUE(running->done);
    return running->status;
  }
  // `from` gives up an operation of the order of calls.
  void hear_that_it_ended(uint64_t operation, Rank from, const std::string& words) {
    const auto payload = std::move(ByteWriter().write(static_cast<uint8_t>(Code::late)).write_string(words)).take();
    const FrameHeader header{.kind = FrameKind::failed,
                             .epoch = 7,
                             .group = 1,
                             .operation = operation,
                             .sender = from,
                             .payload_bytes = static_cast<uint32_t>(payload.size())};
    cluster.hub().at(from).send(0, header, payload, 0);
    cluster.settle();
  }
  Status with_reason(const std::string& call) const {
    return {Code::peer_lost, call + "rank 1 gave up: " + gathered[1]->status.message() + "; " + news.message()};
  }

  TestCluster cluster{3};
  int32_t given = 5;
  std::vector<int32_t> taken{0, 0, 0};
  std::vector<std::shared_ptr<Completion>> gathered;
};

TEST_F(GivenUp, what_a_member_gave_up_that_ended_here_is_the_reason) {
  const auto running = barrier();
  give_up();
  EXPECT_EQ(wound_down(running), with_reason(""));
  EXPECT_NE(running->status.message().find("rank 2"), std::string::npos) << running->status.to_string();
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(GivenUp, it_is_the_reason_for_what_is_called_afterwards_too) {
  give_up();
  cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(GivenUp, it_is_not_the_reason_when_more_has_ended_here_since) {
  give_up();
  const auto sent = cluster.submit(0, gather_call(cluster.caller(0), {&given, 1, DType::i32}, {}, 1, {}, {}));
  cluster.settle();
  ASSERT_TRUE(sent->done);
  EXPECT_EQ(wound_down(barrier()), news);
}

TEST_F(GivenUp, it_is_the_reason_for_its_own_group_only) {
  auto& other = cluster.make_group(0, 2, {1, 0});
  const auto running = barrier(),
             elsewhere = cluster.submit(0, other, barrier_call({.self = 1, .world = 2, .timeout = second}, {}));
  give_up();
  EXPECT_EQ(wound_down(running), with_reason(""));
  EXPECT_EQ(elsewhere->status, news);
  EXPECT_EQ(cluster.submit(0, other, barrier_call({.self = 1, .world = 2, .timeout = second}, {}))->status,
            Status(Code::peer_lost, "barrier: " + news.message()));
}

TEST_F(GivenUp, it_is_the_reason_too_when_others_tell_that_they_re_form_the_group) {
  const auto running = barrier();
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, 1, {}), 1);
  give_up();
  EXPECT_EQ(wound_down(running), with_reason(""));
  cluster.engine(0).drain(2, news, cluster.now() + 100 * millisecond, cluster.now());
  cluster.settle();
  EXPECT_EQ(waits->status, with_reason(""));
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(GivenUp, it_is_the_reason_for_what_is_given_more_time_too) {
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, 1, {}), 1);
  give_up();
  cluster.engine(0).drain(1, news, cluster.now() + 100 * millisecond, cluster.now());
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.pass(100 * millisecond);
  cluster.settle();
  EXPECT_EQ(waits->status, with_reason(""));
}

TEST_F(GivenUp, the_first_to_give_up_the_latest_one_gives_the_reason) {
  give_up();
  cluster.submit(0, gather_call(cluster.caller(0), {&given, 1, DType::i32}, {}, 1, {}, {}));  // ends here
  cluster.settle();
  hear_that_it_ended(1, 2, "the latest");
  hear_that_it_ended(1, 1, "the latest, later");
  hear_that_it_ended(0, 2, "one before");
  EXPECT_EQ(wound_down(barrier()).message(), "rank 2 gave up: the latest; " + news.message());
}

TEST_F(GivenUp, what_has_failed_here_anyway_is_no_reason) {
  give_up();
  const auto failed = barrier();
  hear_that_it_ended(1, 2, "enough");  // which ends it here
  ASSERT_TRUE(failed->done);
  hear_that_it_ended(1, 1, "enough, too");
  EXPECT_EQ(wound_down(barrier()), news);
}

TEST_F(GivenUp, who_only_asks_or_whose_words_are_cut_gives_no_reason) {
  const auto words = std::move(ByteWriter().write(static_cast<uint8_t>(Code::late)).write_string("gone")).take();
  auto question = std::move(ByteWriter()
                                .write(static_cast<uint8_t>(Code::late))
                                .write_string("its deadline has passed")
                                .write(uint64_t{1})
                                .write(uint32_t{0}))
                      .take();
  const auto cut = ByteView(words).first(words.size() - 1);
  for (const auto bytes : {ByteView(question), cut}) {
    const FrameHeader header{.kind = FrameKind::failed,
                             .epoch = 7,
                             .group = 1,
                             .operation = 0,
                             .sender = 1,
                             .payload_bytes = static_cast<uint32_t>(bytes.size())};
    cluster.hub().at(1).send(0, header, bytes, 0);
    cluster.settle();
  }
  EXPECT_EQ(wound_down(barrier()), news);
}

}  // namespace
}  // namespace unisono

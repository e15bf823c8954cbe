#include "engine/operations/failure_protocol.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/recording_transport_test_support.h"

namespace unisono {
namespace {

// The tested object is on rank 1 of four; ranks 0, 2 and 3 are its peers.
struct FailureProtocolTest : testing::Test {
  FailureProtocolTest() {
    group.number = 5;
    group.epoch = 9;
    group.self = 1;
    group.members = {0, self_peer, 2, 3};
    group.rank_of_peer = {0, -1, 2, 3};
  }
  FrameHeader abort_of(Rank rank) const {
    return {.kind = FrameKind::failed, .epoch = 9, .group = 5, .operation = all_operations, .sender = frame_sender(rank)};
  }
  std::optional<Rank> abort_arrives(PeerIndex from, Rank rank, const Status& why) {
    return failures.on_abort(group, from, abort_of(rank), failure_payload(why));
  }
  std::vector<PeerIndex> receivers() const {
    std::vector<PeerIndex> all;
    for (const auto& sent : transport.sent) all.push_back(sent.to);
    return all;
  }

  RecordingTransport transport;
  PeerTable peers = peers_over(transport, 4);
  ControlMessages control{peers};
  EngineCounters counters;
  GroupCore group;
  FailureProtocol failures{peers, control, counters};
  const Status enough{Code::unavailable, "aborted: enough"};
};

TEST_F(FailureProtocolTest, an_abort_is_forwarded_once_to_all_ranks_except_the_aborting_one) {
  EXPECT_EQ(abort_arrives(2, 2, enough), Rank{2});
  EXPECT_EQ(receivers(), (std::vector<PeerIndex>{0, 3}));
  for (const auto& sent : transport.sent) EXPECT_EQ(sent.header.sender, 2u);
  EXPECT_EQ(abort_arrives(3, 3, enough), Rank{3});
  EXPECT_EQ(transport.sent.size(), 2u) << "the first is enough to know why";
  EXPECT_EQ(failures.absence(group, 2).message(), "aborted: enough");
  EXPECT_TRUE(failures.absence(group, 0).ok());
}

TEST_F(FailureProtocolTest, a_forwarded_abort_makes_no_rank_absent) {
  EXPECT_EQ(abort_arrives(0, 2, enough), std::nullopt);
  EXPECT_TRUE(failures.absence(group, 2).ok());
  EXPECT_NE(group.first_abort.message().find("rank 2"), std::string::npos);
  EXPECT_TRUE(transport.sent.empty());
}

TEST_F(FailureProtocolTest, an_abort_that_no_member_can_have_sent_is_refused) {
  EXPECT_EQ(abort_arrives(2, 1, enough), std::nullopt) << "of this rank itself";
  EXPECT_EQ(abort_arrives(2, 4, enough), std::nullopt) << "of no rank";
  EXPECT_EQ(abort_arrives(1, 2, enough), std::nullopt) << "from no member";
  EXPECT_EQ(abort_arrives(2, 2, {Code::late, "aborted: enough"}), std::nullopt) << "with another code";
  EXPECT_EQ(counters.frames_refused, 4u);
  EXPECT_TRUE(group.aborted.empty());
}

TEST_F(FailureProtocolTest, a_lost_link_is_an_absence) {
  peers[3].lost = Status(Code::peer_lost, "link closed");
  EXPECT_EQ(failures.absence(group, 3).code(), Code::peer_lost);
  failures.notify_abort(group, 1, enough);
  EXPECT_EQ(receivers(), (std::vector<PeerIndex>{0, 2}));
}

TEST_F(FailureProtocolTest, data_for_a_successful_operation_shows_that_calls_differ) {
  const FrameHeader data{.kind = FrameKind::data, .epoch = 9, .group = 5, .operation = 4, .sender = 2};
  group.numbers.ended(3, false);
  auto late = data;
  late.operation = 3;
  failures.on_ended(group, 2, late, {}, 0);
  EXPECT_TRUE(group.violation.ok()) << "late data of a failed operation";
  failures.on_ended(group, 2, data, {}, 0);
  EXPECT_EQ(group.violation.code(), Code::invalid);
}

TEST_F(FailureProtocolTest, the_latest_failure_elsewhere_of_an_operation_that_succeeded_here_is_remembered) {
  const auto fails = [&](uint64_t operation, const char* why) {
    const FrameHeader header{.kind = FrameKind::failed, .epoch = 9, .group = 5, .operation = operation, .sender = 3};
    failures.on_ended(group, 3, header, failure_payload({Code::late, why}), 0);
  };
  fails(4, "four");
  fails(2, "two");
  EXPECT_EQ(group.failed_elsewhere, 4u);
  EXPECT_NE(group.failed_elsewhere_why.find("four"), std::string::npos);
}

}  // namespace
}  // namespace unisono

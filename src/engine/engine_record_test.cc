// The engine records operations that run, end or fail. It also records for which ranks they wait.
#include <gtest/gtest.h>

#include "engine/test_cluster.h"
#include "record/snapshot.h"

namespace unisono {
namespace {

using Floats = std::vector<float>;

class RecordedCluster : public TestCluster {
 public:
  explicit RecordedCluster(uint32_t world, Nanos (*clock)() = nullptr) : TestCluster(world, {}, {}, world, clock) {
    advance(second);
    for (Rank rank = 0; rank < world; ++rank) {
      record::Identity identity{
          .rank = rank, .wall_start = now(), .monotonic_start = now(), .links = std::vector<record::LinkName>(world)};
      group(rank).record = std::move(record::Recorder::make(identity, {}).value());
      values_.emplace_back(1000, 1.0f);
    }
  }
  std::shared_ptr<Completion> sum(Rank rank, const CallOptions& options = {}, uint64_t id = 0) {
    return submit(
        rank, all_reduce_call(caller(rank), std::span<const float>(values_[rank]), std::span<float>(values_[rank]), options),
        id);
  }
  record::Snapshot record_of(Rank rank) {
    auto parsed = record::parse(group(rank).record->bytes());
    EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(parsed->damaged, 0u);
    return *parsed;
  }

 private:
  std::vector<Floats> values_;
};

TEST(EngineRecord, an_operation_is_recorded_with_its_times_and_bytes) {
  RecordedCluster cluster(3);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank rank = 0; rank < 3; ++rank) {
    done.push_back(cluster.sum(rank));
    cluster.settle();
    cluster.advance(millisecond);
  }
  cluster.finish(done);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(done[rank]->status.ok()) << done[rank]->status.to_string();
    const auto record = cluster.record_of(rank);
    EXPECT_EQ(record.begun, 1u);
    EXPECT_EQ(record.ended, 1u);
    EXPECT_TRUE(record.running.empty());
    ASSERT_EQ(record.operations.size(), 1u);
    const auto& operation = record.operations[0];
    EXPECT_EQ(operation.name.to_string(), "all_reduce 0");
    EXPECT_EQ(operation.name.bytes, 4000u);
    EXPECT_EQ(operation.code, Code::ok);
    EXPECT_EQ(operation.started, second + rank * millisecond);
    EXPECT_GE(operation.ended, operation.last_receive);
    EXPECT_GE(operation.last_receive, operation.first_send);
    EXPECT_GE(operation.first_send, operation.started);
    uint64_t sent = 0, received = 0, messages = 0;
    for (const auto& link : record.links)
      sent += link.sent_bytes, received += link.received_bytes, messages += link.sent_messages;
    EXPECT_EQ(sent, done[rank]->report.sent_bytes);
    EXPECT_EQ(received, done[rank]->report.received_bytes);
    EXPECT_EQ(messages, done[rank]->report.sent_messages);
    EXPECT_EQ(record.links[rank].sent_messages, 0u);
  }
  EXPECT_EQ(cluster.record_of(0).operations[0].pending, 2);
  EXPECT_GE(cluster.record_of(0).links[2].waited_ns, 2 * static_cast<uint64_t>(millisecond));
}

TEST(EngineRecord, an_operation_that_is_done_within_one_event_has_a_duration) {
  RecordedCluster cluster(2, [] { return second + 7 * microsecond; });
  auto first = cluster.sum(0), last = cluster.sum(1);
  cluster.settle();
  for (const auto& done : {first, last}) {
    ASSERT_TRUE(done->done);
    EXPECT_EQ(done->report.total_us, 7);
  }
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto operation = cluster.record_of(rank).operations.at(0);
    EXPECT_EQ(operation.started, second);
    EXPECT_EQ(operation.ended, second + 7 * microsecond);
  }
}

TEST(EngineRecord, a_running_operation_shows_the_ranks_that_it_waits_for) {
  RecordedCluster cluster(3);
  auto first = cluster.sum(0), second_ = cluster.sum(1);
  cluster.settle();
  cluster.advance(20 * millisecond);
  cluster.settle();
  auto record = cluster.record_of(0);
  ASSERT_EQ(record.running.size(), 1u);
  EXPECT_EQ(record.running[0].name.to_string(), "all_reduce 0");
  EXPECT_EQ(record.running[0].phase, record::Phase::contributions);
  EXPECT_EQ(record.running[0].pending, (std::vector<Rank>{2}));
  EXPECT_EQ(record.running[0].pending_count, 1u);
  EXPECT_GT(record.running[0].received_total, record.running[0].received_bytes);
  auto third = cluster.sum(2);
  cluster.finish({first, second_, third});
  record = cluster.record_of(0);
  EXPECT_TRUE(record.running.empty());
  EXPECT_EQ(record.operations.back().pending, 2);
}

TEST(EngineRecord, a_rank_records_its_pending_ranks_before_it_sleeps) {
  RecordedCluster cluster(2);
  auto waits = cluster.sum(0);
  cluster.engine(0).observe(cluster.now());
  const auto record = cluster.record_of(0);
  ASSERT_EQ(record.running.size(), 1u);
  EXPECT_EQ(record.running[0].pending, (std::vector<Rank>{1}));
  auto other = cluster.sum(1);
  cluster.finish({waits, other});
}

TEST(EngineRecord, an_operation_that_is_late_names_the_ranks_it_waited_for) {
  RecordedCluster cluster(3);
  auto first = cluster.sum(0, {.timeout = Milliseconds(50)}), second_ = cluster.sum(1, {.timeout = Milliseconds(50)});
  cluster.finish({first, second_});
  for (Rank rank : {0u, 1u}) {
    const auto record = cluster.record_of(rank);
    ASSERT_EQ(record.operations.size(), 1u);
    EXPECT_EQ(record.operations[0].code, Code::late);
    EXPECT_EQ(record.operations[0].pending, 2);
    EXPECT_EQ(record.collectives[0].late, 1u);
    EXPECT_EQ(record.collectives[0].failed, 1u);
    EXPECT_TRUE(record.running.empty());
  }
}

TEST(EngineRecord, calls_that_differ_are_recorded_as_they_were_made) {
  RecordedCluster cluster(2);
  Floats block(500), gathered(1000);
  auto first = cluster.sum(0);
  auto other = cluster.submit(
      1, all_gather_call(cluster.caller(1), std::span<const float>(block), std::span<float>(gathered), {}, false, {}));
  cluster.finish({first, other});
  EXPECT_EQ(cluster.record_of(0).operations.at(0).code, Code::invalid);
  EXPECT_EQ(cluster.record_of(0).operations.at(0).name.call(), "all_reduce(f32 sum, 4000 bytes)");
  EXPECT_EQ(cluster.record_of(1).operations.at(0).name.call().substr(0, 15), "all_gather(f32,");
}

TEST(EngineRecord, numbers_of_callers_and_of_messages_are_distinguished) {
  RecordedCluster cluster(2);
  Floats sent(10, 2.0f), got(10);
  auto a = cluster.sum(0, {.id = 5}, 5), b = cluster.sum(1, {.id = 5}, 5);
  auto c = cluster.submit(0, message_call(cluster.caller(0), Collective::send, std::span<const float>(sent), {}, 1, {}));
  auto d = cluster.submit(1, message_call(cluster.caller(1), Collective::recv, {}, std::span<float>(got), 0, {}));
  cluster.finish({a, b, c, d});
  const auto record = cluster.record_of(0);
  ASSERT_EQ(record.operations.size(), 2u);
  std::vector<std::string> names{record.operations[0].name.to_string(), record.operations[1].name.to_string()};
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"all_reduce id 5", "send 0 to rank 1"}));
}

TEST(EngineRecord, a_group_that_ends_records_its_reason_and_time) {
  RecordedCluster cluster(2);
  auto waits = cluster.sum(0);
  cluster.advance(millisecond);
  cluster.engine(0).leave(cluster.now());
  const auto record = cluster.record_of(0);
  EXPECT_EQ(record.left_at, cluster.now());
  EXPECT_EQ(record.left_code, Code::ok);
}

}  // namespace
}  // namespace unisono

// Fast-path calls on a cluster whose ranks are all on one host. Each rank has one call, which tests begin and poll explicitly.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "engine/fast_path/fast_path.h"
#include "engine/test_cluster.h"
#include "record/snapshot.h"

namespace unisono {

class FastPathCalls : public ::testing::Test {
 protected:
  struct Call {
    OperationRequest request;
    FastPath fast_path;
  };
  void make_cluster(uint32_t world) {
    cluster = std::make_unique<TestCluster>(world, FaultPlan{}, EngineLimits{}, world);
    calls = std::vector<Call>(world);
  }
  bool begin(Rank r, uint64_t id = 0) {
    return cluster->engine(r).begin_fast_path(calls[r].fast_path, cluster->group(r), calls[r].request, id, cluster->now());
  }
  // Ranks may wait for a root that waits for them, so each rank looks several times.
  void expect_all_found() {
    std::vector<bool> found(calls.size());
    for (int turn = 0; turn < 3; ++turn) {
      for (Rank r = 0; r < calls.size(); ++r) found[r] = found[r] || look(r) == FastPath::Found::all;
    }
    for (Rank r = 0; r < calls.size(); ++r) EXPECT_TRUE(found[r]) << "rank " << r;
  }
  FastPath::Found look(Rank r) { return cluster->engine(r).look(calls[r].fast_path); }
  Report report(Rank r) { return cluster->engine(r).report(calls[r].fast_path, cluster->now()).value(); }
  std::shared_ptr<Completion> take_over(Rank r) { return cluster->engine(r).take_over(calls[r].fast_path, cluster->now()); }
  std::shared_ptr<Completion> by_executor(Rank r) { return cluster->submit(r, calls[r].request); }

  // Rank `waits` has begun a call that needs a message of `dead`. Kills `dead`, and checks that the error of `waits` names it.
  void expect_death_is_named(Rank waits, Rank dead) {
    cluster->hub().kill(dead);
    EXPECT_EQ(look(waits), FastPath::Found::incomplete);
    const auto done = take_over(waits);
    cluster->settle();
    EXPECT_EQ(done->status.code(), Code::peer_lost);
    EXPECT_NE(done->status.message().find(concat("rank ", dead, " was lost")), std::string::npos) << done->status.to_string();
  }
  // Rank `waits` has begun a call that needs a message of `differs`. Checks the error when `differs` calls a barrier instead.
  void expect_difference_is_named(Rank waits, Rank differs) {
    const auto other = cluster->submit(differs, barrier_call(cluster->caller(differs), {}));
    EXPECT_EQ(look(waits), FastPath::Found::unexpected_frame);
    const auto done = take_over(waits);
    cluster->finish({done, other});
    EXPECT_EQ(done->status.code(), Code::invalid);
    EXPECT_NE(done->status.message().find(concat("rank ", differs, " (process ", differs, ") calls barrier")),
              std::string::npos)
        << done->status.to_string();
  }
  // Compares all fields of two reports except times.
  static void expect_equal_reports(const Report& ours, const Report& theirs) {
    EXPECT_EQ(
        std::tuple(ours.operation, ours.schedule, ours.number, ours.contributors, ours.world_size, ours.passes, ours.last_rank),
        std::tuple(theirs.operation, theirs.schedule, theirs.number, theirs.contributors, theirs.world_size, theirs.passes,
                   theirs.last_rank));
    EXPECT_EQ(std::tuple(ours.sent_bytes, ours.received_bytes, ours.sent_messages, ours.received_messages, ours.sent_payload,
                         ours.sent_elements),
              std::tuple(theirs.sent_bytes, theirs.received_bytes, theirs.sent_messages, theirs.received_messages,
                         theirs.sent_payload, theirs.sent_elements));
    EXPECT_TRUE(ours.codec == theirs.codec && ours.codec_note == theirs.codec_note);
  }

  // Returns the records of all ranks after each has run one call, which `make` prepares.
  template <typename Make>
  std::vector<record::Snapshot> records_after(bool fast_path, const Make& make) {
    make();
    cluster->advance(second);
    cluster->settle();
    const auto world = static_cast<uint32_t>(calls.size());
    for (Rank r = 0; r < world; ++r) {
      record::Identity identity{.rank = r,
                                .wall_start = cluster->now(),
                                .monotonic_start = cluster->now(),
                                .links = std::vector<record::LinkName>(world)};
      cluster->group(r).record = std::move(record::Recorder::make(identity, {}).value());
    }
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < world; ++r) {
      if (fast_path) EXPECT_TRUE(begin(r));
      else done.push_back(by_executor(r));
    }
    if (!fast_path) cluster->finish(done);
    if (fast_path) expect_all_found();
    for (Rank r = 0; r < world && fast_path; ++r) (void)report(r);
    std::vector<record::Snapshot> records;
    for (Rank r = 0; r < world; ++r) records.push_back(record::parse(cluster->group(r).record->bytes()).value());
    return records;
  }
  // Compares all fields of two records except times, and except the rank that came last, which depends on timing.
  static void expect_equal_records(const record::Snapshot& ours, const record::Snapshot& theirs) {
    EXPECT_EQ(std::tuple(ours.begun, ours.ended, ours.damaged), std::tuple(1u, 1u, 0u));
    ASSERT_EQ(ours.operations.size(), 1u);
    const auto &our = ours.operations[0], &their = theirs.operations[0];
    EXPECT_EQ(our.name.to_string(), their.name.to_string());
    EXPECT_EQ(our.name.bytes, their.name.bytes);
    EXPECT_TRUE(our.name.kind == their.name.kind);
    EXPECT_EQ(our.pending >= 0, their.pending >= 0);
    uint64_t waited = 0;
    for (Rank other = 0; other < ours.links.size(); ++other) {
      const auto &a = ours.links[other], &b = theirs.links[other];
      EXPECT_EQ(std::tuple(a.sent_bytes, a.sent_messages, a.received_bytes, a.received_messages),
                std::tuple(b.sent_bytes, b.sent_messages, b.received_bytes, b.received_messages))
          << other;
      waited += a.waited;
      if (a.waited > 0) {
        EXPECT_EQ(our.pending, static_cast<int32_t>(other));
      }
    }
    EXPECT_EQ(waited, their.pending >= 0 ? 1u : 0u);
  }

  std::unique_ptr<TestCluster> cluster;
  std::vector<Call> calls;
};

}  // namespace unisono

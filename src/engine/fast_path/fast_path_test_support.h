// Calls without the executor on a cluster whose ranks are all on one host: one of each rank, begun and looked for by hand.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
  FastPath::Found look(Rank r) { return cluster->engine(r).look(calls[r].fast_path); }
  Report report(Rank r) { return cluster->engine(r).report(calls[r].fast_path, cluster->now()).value(); }
  std::shared_ptr<Completion> take_over(Rank r) { return cluster->engine(r).take_over(calls[r].fast_path, cluster->now()); }
  std::shared_ptr<Completion> by_executor(Rank r) { return cluster->submit(r, calls[r].request); }

  // `waits` has begun, and needs what never comes from `dead`.
  void expect_death_is_named(Rank waits, Rank dead) {
    cluster->hub().kill(dead);
    EXPECT_EQ(look(waits), FastPath::Found::nothing_yet);
    const auto done = take_over(waits);
    cluster->settle();
    EXPECT_EQ(done->status.code(), Code::peer_lost);
    EXPECT_NE(done->status.message().find("rank " + std::to_string(dead) + " was lost"), std::string::npos)
        << done->status.to_string();
  }
  // `waits` has begun, and `differs`, whose message it needs, calls a barrier instead.
  void expect_difference_is_named(Rank waits, Rank differs) {
    const auto other = cluster->submit(differs, barrier_call(cluster->caller(differs), {}));
    EXPECT_EQ(look(waits), FastPath::Found::something_else);
    const auto done = take_over(waits);
    cluster->finish({done, other});
    EXPECT_EQ(done->status.code(), Code::invalid);
    EXPECT_NE(done->status.message().find("rank " + std::to_string(differs) + " calls barrier"), std::string::npos)
        << done->status.to_string();
  }
  // Compares all of both reports but times.
  static void expect_alike(const Report& ours, const Report& theirs) {
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

  // The records of all ranks after one call of each, which `make` has made.
  template <typename Make>
  std::vector<record::Snapshot> written(bool fast_path, const Make& make) {
    make();
    cluster->pass(second);
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
    for (Rank r = 0; r < world && fast_path; ++r) {
      EXPECT_EQ(look(r), FastPath::Found::all);
      (void)report(r);
    }
    std::vector<record::Snapshot> records;
    for (Rank r = 0; r < world; ++r) records.push_back(record::parse(cluster->group(r).record->bytes()).value());
    return records;
  }
  // Compares all of both records but times. They do not say which of several ranks came last, because that depends on time,
  // too.
  static void expect_written_alike(const record::Snapshot& ours, const record::Snapshot& theirs) {
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

// Calls without the executor on a cluster whose ranks are all on one host: one of each rank, begun and looked for by hand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/express.h"
#include "node/test_cluster.h"

namespace unisono {

class ExpressCalls : public ::testing::Test {
 protected:
  struct Call {
    OperationRequest request;
    Express express;
  };
  void make_cluster(uint32_t world) {
    cluster = std::make_unique<TestCluster>(world, FaultPlan{}, EngineLimits{}, world);
    calls = std::vector<Call>(world);
  }
  bool begin(Rank r, uint64_t id = 0) { return cluster->engine(r).begin_express(calls[r].express, cluster->group(r), calls[r].request, id, cluster->now()); }
  Express::Found look(Rank r) { return cluster->engine(r).look(calls[r].express); }
  Report report(Rank r) { return cluster->engine(r).report(calls[r].express, cluster->now()).value(); }
  std::shared_ptr<Completion> take_over(Rank r) { return cluster->engine(r).take_over(calls[r].express, cluster->now()); }
  std::shared_ptr<Completion> by_executor(Rank r) { return cluster->submit(r, calls[r].request); }

  // `waits` has begun, and needs what never comes from `dead`.
  void expect_death_is_named(Rank waits, Rank dead) {
    cluster->hub().kill(dead);
    EXPECT_EQ(look(waits), Express::Found::nothing_yet);
    const auto done = take_over(waits);
    cluster->settle();
    EXPECT_EQ(done->status.code(), Code::peer_lost);
    EXPECT_NE(done->status.message().find("rank " + std::to_string(dead) + " was lost"), std::string::npos) << done->status.to_string();
  }
  // Of both reports, all but times.
  static void expect_alike(const Report& ours, const Report& theirs) {
    EXPECT_EQ(std::tuple(ours.operation, ours.schedule, ours.number, ours.contributors, ours.world_size, ours.passes, ours.last_rank),
              std::tuple(theirs.operation, theirs.schedule, theirs.number, theirs.contributors, theirs.world_size, theirs.passes, theirs.last_rank));
    EXPECT_EQ(std::tuple(ours.sent_bytes, ours.received_bytes, ours.sent_messages, ours.received_messages, ours.sent_payload, ours.sent_elements),
              std::tuple(theirs.sent_bytes, theirs.received_bytes, theirs.sent_messages, theirs.received_messages, theirs.sent_payload, theirs.sent_elements));
    EXPECT_TRUE(ours.codec == theirs.codec && ours.codec_note == theirs.codec_note);
  }

  std::unique_ptr<TestCluster> cluster;
  std::vector<Call> calls;
};

}  // namespace unisono

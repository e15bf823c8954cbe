// Elastic runs of real processes on one host. Peers are killed, stopped, terminated and replaced while the others average.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/concat.h"
#include "elastic_peers.h"
#include "group_command.h"

namespace unisono::testing {
namespace {

// Timeouts longer than wait_ms. So a step that took less than wait_ms did not wait for a lost peer.
constexpr const char* long_waits = ",gather=20000,stall=20000";
constexpr int64_t wait_ms = 10'000;

std::vector<Line> all_average_exactly(ElasticPeers& run, const std::vector<size_t>& peers, const std::vector<double>& weights) {
  size_t members = 0;
  for (const auto weight : weights) members += weight > 0 ? 1 : 0;
  auto steps = run.ask(peers, concat("elastic_wait:exact=1,members=", members));
  expect_exact(steps, weights);
  return steps;
}

TEST(Elastic, a_killed_peers_values_are_lost_and_the_others_continue_at_once) {
  ElasticPeers run(std::string("min_peers=4,elements=20000") + long_waits);
  for (const auto* weight : {"weight=1", "weight=2", "weight=3", "weight=4"}) run.add(weight);
  run.ask({0, 1, 2, 3}, "elastic_loop");
  all_average_exactly(run, {0, 1, 2, 3}, {1, 2, 3, 4});
  run.kill(3);
  for (const auto& step : run.ask({0, 1, 2}, "elastic_wait:members=3,outcome=averaged")) {
    EXPECT_EQ(step.value("shares"), shares_of({1, 2, 3})) << step.text;
    EXPECT_EQ(step.value("same"), "1") << step.text;
    if (step.value("exact") == "1") continue;  // the newest layout lacks the peer
    EXPECT_TRUE(step.value("absent").starts_with("worker-3_(")) << step.text;
    EXPECT_TRUE(step.value("note").starts_with("not_exact;_absent:_worker-3_(")) << step.text;
  }
  for (const size_t peer : {0, 1, 2}) EXPECT_TRUE(run.wait_for_status(peer, "worker-3:dead:"));
  for (const auto& line : run.finish({0, 1, 2}))
    EXPECT_LT(line.number("longest_ms"), wait_ms * slowness) << "a peer was waited for: " << line.text;
}

// The other peers detect the deaths at once, so the first averaging step with the next layout is exact again.
TEST(LongElastic, killed_peers_of_a_grid_are_not_in_the_next_layout) {
  ElasticPeers run("min_peers=7,max_group=4,elements=20000");
  for (int peer = 0; peer < 7; ++peer) run.add(concat("weight=", peer + 1));
  run.ask({0, 1, 2, 3, 4, 5, 6}, "elastic_loop");
  for (const auto& step : all_average_exactly(run, {0, 1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6, 7})) {
    EXPECT_EQ(step.value("dims"), "3x2") << step.text;
    EXPECT_EQ(step.value("outcome"), "averaged/averaged") << step.text;
  }
  run.kill(6);
  run.kill(2);
  all_average_exactly(run, {0, 1, 3, 4, 5}, {1, 2, 0, 4, 5, 6});
  run.finish({0, 1, 3, 4, 5});
}

TEST(Elastic, a_peer_that_is_stopped_longer_than_the_timeouts_is_named_and_returns) {
  ElasticPeers run("min_peers=4,gather=500,stall=500");
  for (int peer = 0; peer < 4; ++peer) run.add();
  run.ask({0, 1, 2, 3}, "elastic_loop");
  const auto before = all_average_exactly(run, {0, 1, 2, 3}, {1, 1, 1, 1});
  run.stop(2);
  const auto named = run.ask({0, 1, 3}, "elastic_wait:absent=worker-2");
  for (const auto& step : named) {
    EXPECT_EQ(step.value("exact"), "0") << step.text;
    // What a peer lacks of it depends on where in its step it was stopped.
    const std::vector<std::string> reasons{"sent_nothing_for_0.5_s", "did_not_register", "contributed_to_",
                                           "sent_no_result_for_", "dead"};
    EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [&](const auto& reason) {
      return step.says("worker-2_(" + reason);
    })) << step.text;
    for (const auto* innocent : {"worker-0_(", "worker-1_(", "worker-3_("}) EXPECT_FALSE(step.says(innocent)) << step.text;
  }
  for (const auto& step : run.ask({0, 1, 3}, "elastic_wait:members=3,outcome=averaged"))
    EXPECT_EQ(step.value("shares"), shares_of({1, 1, 0, 1})) << step.text;
  run[2].signal(SIGCONT);
  all_average_exactly(run, {0, 1, 2, 3}, {1, 1, 1, 1});
  run.finish({0, 1, 2, 3});
}

TEST(LongElastic, a_peer_that_is_stopped_until_it_is_declared_dead_returns) {
  ElasticPeers run("min_peers=4,gather=500,stall=500");
  for (int peer = 0; peer < 4; ++peer) run.add();
  run.ask({0, 1, 2, 3}, "elastic_loop");
  all_average_exactly(run, {0, 1, 2, 3}, {1, 1, 1, 1});
  run.stop(2);
  for (const size_t peer : {0, 1, 3}) EXPECT_TRUE(run.wait_for_status(peer, "worker-2:dead:"));
  run[2].signal(SIGCONT);
  for (const size_t peer : {0, 1, 3}) EXPECT_TRUE(run.wait_for_status(peer, "worker-2:alive:"));
  all_average_exactly(run, {0, 1, 2, 3}, {1, 1, 1, 1});
  run.finish({0, 1, 2, 3});
}

TEST(Elastic, a_terminated_peer_leaves_in_order_and_no_peer_waits_for_it) {
  ElasticPeers run(std::string("min_peers=4,elements=20000") + long_waits);
  for (int peer = 0; peer < 4; ++peer) run.add();
  run.ask({0, 1, 2, 3}, "elastic_loop");
  all_average_exactly(run, {0, 1, 2, 3}, {1, 1, 1, 1});
  const auto requested_at = now_ns();
  run[1].signal(SIGTERM);
  const auto done = run[1].wait();
  EXPECT_TRUE(!done.timed_out && !done.by_signal && done.code == 0) << done.out << done.error;
  EXPECT_NE(done.out.find("left code=ok"), std::string::npos) << done.out;
  constexpr int64_t grace_ms = 5000, drain_ms = 2000;
  expect_within("ends after", now_ns() - requested_at, grace_ms + drain_ms);
  for (const auto& step : run.ask({0, 2, 3}, "elastic_wait:members=3,outcome=averaged"))
    EXPECT_EQ(step.value("shares"), shares_of({1, 0, 1, 1})) << step.text;
  for (const size_t peer : {0, 2, 3}) EXPECT_TRUE(run.wait_for_status(peer, "worker-1:left:"));
  for (const auto& line : run.finish({0, 2, 3})) {
    EXPECT_LT(line.number("longest_ms"), wait_ms * slowness) << line.text;
    EXPECT_FALSE(line.says("said_nothing")) << line.text;
  }
}

// Two of three peers are new. Once new peers are at least half of all peers, a layout with them is made at once.
TEST(Elastic, a_run_without_its_founder_continues_and_new_peers_join_by_another_peer) {
  ElasticPeers run("min_peers=2,elements=20000");
  run.add();
  run.add("weight=2");
  run.ask({0, 1}, "elastic_loop");
  all_average_exactly(run, {0, 1}, {1, 2});
  run.kill(0);
  EXPECT_TRUE(run.wait_for_status(1, "worker-0:dead:"));
  for (const auto* weight : {"weight=3", "weight=5"}) {
    const auto newcomer = run.begin(std::string(weight) + ",seeds=" + run.endpoint(1));
    const auto line = run.joined(newcomer);
    ASSERT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.value("loaded"), "1") << line.text;
    EXPECT_GE(line.number("bytes"), 20000 * 8 * 4) << line.text;
  }
  run.ask({2, 3}, "elastic_loop");
  // In its first averaging step a newcomer's values have weight 0.
  for (const size_t newcomer : {2, 3}) {
    const auto first = run.ask({newcomer}, "elastic_wait:from=0,outcome=averaged").front();
    EXPECT_EQ(first.value("exact"), "0") << first.text;
    EXPECT_EQ(split_text(first.value("shares"), '/').at(newcomer), "0") << first.text;
  }
  all_average_exactly(run, {1, 2, 3}, {0, 2, 3, 5});
  run.finish({1, 2, 3});
}

TEST(Elastic, a_reducer_sums_for_the_others_and_has_no_values) {
  ElasticPeers run("min_peers=3,elements=20000");
  for (const auto* weight : {"weight=1", "weight=2", "weight=3"}) run.add(weight);
  run.add("role=reducer");
  for (const size_t peer : {0, 1, 2}) EXPECT_TRUE(run.wait_for_status(peer, "worker-3:alive:reducer"));
  run.ask({0, 1, 2, 3}, "elastic_loop");
  auto steps = run.ask({0, 1, 2}, "elastic_wait:exact=1,group=4,members=3");
  expect_exact(steps, {1, 2, 3});
  const auto own = run.ask({3}, "elastic_wait:outcome=averaged,group=4").front();
  const auto vector_bytes = 20000 * 8 * 4;
  EXPECT_GT(own.number("sent"), vector_bytes / 4) << "it owns chunks, and sends each to three: " << own.text;
  run.kill(3);
  run.ask({0, 1, 2}, "elastic_wait:exact=1,group=3,members=3");
  run.finish({0, 1, 2});
}

}  // namespace
}  // namespace unisono::testing

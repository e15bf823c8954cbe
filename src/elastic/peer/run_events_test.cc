#include "elastic/peer/run_events.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

struct RunEventsTest : testing::Test {
  ElasticPeer peer(const std::string& name, const std::string& status, bool self = false) {
    return {.name = name, .status = status, .address = "10.0.0.1:4040", .role = "peer", .self = self};
  }
  // Returns the events of one look, as "kind: text" lines.
  std::string look(std::vector<ElasticPeer> peers, uint64_t refused = 0) {
    ElasticStatus status;
    status.peers = std::move(peers);
    status.peers.push_back(peer("me", "alive", true));
    status.refused = refused;
    status.last_refusal = "another key";
    lines.clear();
    now += RunEvents::period;
    run_events.look(status, now);
    queue.deliver();
    return std::exchange(lines, {});
  }

  std::string lines;
  EventQueue queue{[this](const Event& event) {
                     lines += std::string(facts(event.kind).name) + ": " + event.text + "\n";
                     source = event.source;
                   },
                   nullptr};
  RunEvents run_events{queue, "demo"};
  std::string source;
  Nanos now = 0;
};

TEST_F(RunEventsTest, the_first_look_reports_the_joining_alone) {
  EXPECT_EQ(look({peer("a", "alive"), peer("b", "suspect")}), "joined: joined run demo of 3 peers\n");
  EXPECT_EQ(source, "peer me of run demo");
  EXPECT_EQ(look({peer("a", "alive"), peer("b", "suspect")}), "");
}

TEST_F(RunEventsTest, a_peer_that_comes_or_leaves_is_named) {
  look({});
  EXPECT_EQ(look({peer("a", "alive")}), "peer_joined: peer a (10.0.0.1:4040) has joined the run\n");
  EXPECT_EQ(look({peer("a", "left")}), "peer_left: peer a (10.0.0.1:4040) has left the run\n");
  EXPECT_EQ(look({}), "");
}

TEST_F(RunEventsTest, a_peer_has_joined_when_it_is_alive) {
  look({});
  EXPECT_EQ(look({peer("a", "joining")}), "");
  EXPECT_EQ(look({peer("a", "alive")}), "peer_joined: peer a (10.0.0.1:4040) has joined the run\n");
}

TEST_F(RunEventsTest, a_lost_peer_is_named_once_whether_it_stays_in_the_list_or_not) {
  look({peer("a", "alive"), peer("b", "alive")});
  EXPECT_EQ(look({peer("a", "dead")}),
            "peer_lost: peer a (10.0.0.1:4040) is lost: it does not answer any more\n"
            "peer_lost: peer b (10.0.0.1:4040) is lost: it does not answer any more\n");
  EXPECT_EQ(look({}), "");
}

TEST_F(RunEventsTest, refusals_are_counted_since_the_last_look) {
  look({}, 2);
  EXPECT_EQ(look({}, 2), "");
  EXPECT_EQ(look({}, 5), "refused: refused 3 connections or messages; the last: another key\n");
}

TEST_F(RunEventsTest, a_look_is_due_once_per_period) {
  look({});
  EXPECT_FALSE(run_events.is_due(now));
  EXPECT_TRUE(run_events.is_due(now + RunEvents::period));
}

}  // namespace
}  // namespace unisono

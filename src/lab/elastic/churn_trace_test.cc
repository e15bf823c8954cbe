#include "lab/elastic/churn_trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.h"

namespace unisono::sim {
namespace {

constexpr uint64_t seed = 5;

void expect_error(std::string_view text, const char* part) {
  const auto trace = ChurnTrace::parse(text);
  ASSERT_FALSE(trace.ok()) << text;
  EXPECT_EQ(trace.status().code(), Code::invalid);
  EXPECT_NE(trace.status().message().find(part), std::string::npos) << trace.status().message();
}

// Counts a trace: the least and greatest number of peers at work, and the number of events by action.
struct Tally {
  explicit Tally(const ChurnTrace& trace) {
    std::set<uint32_t> running;
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const auto& event = trace.events[i];
      ++counts[static_cast<size_t>(event.action)];
      if (event.action == ChurnAction::join || event.action == ChurnAction::resume) running.insert(event.peer);
      else running.erase(event.peer);
      if (event.at > 0) low = std::min(low, running.size()), high = std::max(high, running.size());
    }
  }
  size_t low = SIZE_MAX, high = 0;
  uint64_t counts[5] = {};
};

TEST(ChurnTrace, is_read_with_comments_and_empty_lines) {
  const auto trace =
      ChurnTrace::parse("# a run\n0 0 join\n\n  1.5\t3 join # late\r\n2 0 stop\n2 3 kill\n2.25 0 continue\n3 0 leave");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  const std::vector<ChurnEvent> expected{
      {0, 0, ChurnAction::join},          {1500 * millisecond, 3, ChurnAction::join},   {2 * second, 0, ChurnAction::stop},
      {2 * second, 3, ChurnAction::kill}, {2250 * millisecond, 0, ChurnAction::resume}, {3 * second, 0, ChurnAction::leave}};
  EXPECT_EQ(trace->events, expected);
  EXPECT_EQ(trace->to_text(), "# seconds peer what\n0 0 join\n1.5 3 join\n2 0 stop\n2 3 kill\n2.25 0 continue\n3 0 leave\n");
}

TEST(ChurnTrace, a_line_with_other_than_three_words_is_refused) { expect_error("0 1 join\n0 2\n", "line 2: bad_line"); }
TEST(ChurnTrace, an_invalid_time_is_refused) {
  for (const char* time : {"x", "-1", "nan", "inf", "1e300", "1s", "2592001"})
    expect_error(std::string(time) + " 1 join", "line 1: bad_time");
}
TEST(ChurnTrace, an_invalid_peer_number_is_refused) {
  for (const char* peer : {"a", "-1", "4096", "1.5", "99999999999"})
    expect_error(std::string("0 ") + peer + " join", "bad_peer");
}
TEST(ChurnTrace, an_unknown_action_is_refused) { expect_error("0 1 die", "bad_action"); }
TEST(ChurnTrace, decreasing_times_are_refused) { expect_error("1 1 join\n0.5 2 join", "line 2: out_of_order"); }
TEST(ChurnTrace, joining_twice_is_refused) { expect_error("1 1 join\n2 1 join", "already_there: peer 1"); }
TEST(ChurnTrace, events_of_absent_peers_are_refused) {
  for (const char* action : {"leave", "kill", "stop"}) expect_error(std::string("0 1 ") + action, "not_there: peer 1");
}
TEST(ChurnTrace, a_stopped_peer_can_only_be_killed_or_continued) {
  for (const char* action : {"leave", "stop"})
    expect_error(std::string("0 1 join\n0 1 stop\n0 1 ") + action, "stopped: peer 1");
  expect_error("0 1 join\n0 1 stop\n0 1 join", "already_there");
  EXPECT_TRUE(ChurnTrace::parse("0 1 join\n0 1 stop\n0 1 kill\n0 1 join").ok());
}
TEST(ChurnTrace, continuing_without_a_stop_is_refused) { expect_error("0 1 join\n1 1 continue", "not_stopped: peer 1"); }
TEST(ChurnTrace, more_events_than_the_limit_are_refused) {
  std::string text = "0 0 join\n";
  for (size_t i = 0; i < churn_events_max / 2; ++i) text += "0 0 kill\n0 0 join\n";
  expect_error(text, "too_long");
}

TEST(ChurnPlan, a_peer_departs_or_returns_every_period) {
  const auto trace = make_churn(
      {.peers = 8, .peers_min = 6, .period = 20 * second, .duration = 600 * second, .kill_share = 0.5, .seed = seed});
  ASSERT_TRUE(trace.ok());
  ASSERT_EQ(trace->events.size(), 8u + 29u);
  for (size_t i = 8; i < trace->events.size(); ++i) EXPECT_EQ(trace->events[i].at, static_cast<Nanos>(i - 7) * 20 * second);
  const Tally tally(*trace);
  EXPECT_GE(tally.low, 6u);
  EXPECT_GT(tally.counts[1], 0u);
  EXPECT_GT(tally.counts[2], 0u);
  EXPECT_EQ(tally.counts[3] + tally.counts[4], 0u);
}

TEST(ChurnPlan, random_traces_are_consistent_and_within_bounds) {
  for (uint64_t s = 0; s < 200; ++s) {
    Random random(s);
    ChurnPlan plan{.peers = 1 + static_cast<uint32_t>(random.below(12)),
                   .period = second,
                   .duration = 500 * second,
                   .kill_share = 0.4,
                   .stop_share = 0.4,
                   .seed = s};
    plan.peers_min = 1 + static_cast<uint32_t>(random.below(plan.peers));
    plan.law = s % 2 == 0 ? ChurnPlan::Law::regular : ChurnPlan::Law::poisson;
    const auto trace = make_churn(plan);
    ASSERT_TRUE(trace.ok());
    const auto again = ChurnTrace::parse(trace->to_text());
    ASSERT_TRUE(again.ok()) << "seed " << s << ": " << again.status().to_string();
    ASSERT_EQ(*again, *trace) << "seed " << s;
    if (plan.peers_min < plan.peers) {
      const Tally tally(*trace);
      EXPECT_EQ(tally.low, plan.peers_min) << "seed " << s;
      EXPECT_EQ(tally.high, plan.peers) << "seed " << s;
    }
  }
}

TEST(ChurnPlan, poisson_has_the_period_on_average_and_is_without_memory) {
  const auto trace = make_churn({.peers = 50,
                                 .peers_min = 1,
                                 .period = second,
                                 .duration = 20'000 * second,
                                 .law = ChurnPlan::Law::poisson,
                                 .seed = seed});
  ASSERT_TRUE(trace.ok());
  const double events = static_cast<double>(trace->events.size() - 50);
  EXPECT_NEAR(events / 20'000, 1, 4 / std::sqrt(20'000)) << "seed " << seed;
  double squares = 0;
  for (size_t i = 51; i < trace->events.size(); ++i)
    squares += std::pow(static_cast<double>(trace->events[i].at - trace->events[i - 1].at) / 1e9, 2);
  EXPECT_NEAR(squares / events, 2, 0.15) << "of exponential times: twice the squared mean; seed " << seed;
}

TEST(ChurnPlan, the_same_seed_gives_the_same_trace_and_another_one_another) {
  const ChurnPlan plan{.seed = seed};
  EXPECT_EQ(*make_churn(plan), *make_churn(plan));
  auto other = plan;
  other.seed = seed + 1;
  EXPECT_NE(*make_churn(other), *make_churn(plan));
}

TEST(ChurnPlan, check_names_the_impossible_field) {
  const std::pair<ChurnPlan, const char*> cases[] = {{{.peers = 0}, "peers=0"},
                                                     {{.peers = 5000}, "peers=5000"},
                                                     {{.peers = 3}, "peers_min=4"},
                                                     {{.peers_min = 0}, "peers_min=0"},
                                                     {{.period = 0}, "period"},
                                                     {{.duration = -1}, "duration"},
                                                     {{.period = millisecond, .duration = timeout_max}, "duration is too long"},
                                                     {{.kill_share = 0.7, .stop_share = 0.4}, "kill_share"},
                                                     {{.kill_share = std::nan("")}, "kill_share"}};
  for (const auto& [plan, part] : cases) {
    const auto trace = make_churn(plan);
    ASSERT_FALSE(trace.ok()) << part;
    EXPECT_NE(trace.status().message().find(part), std::string::npos) << trace.status().message();
  }
}

}  // namespace
}  // namespace unisono::sim

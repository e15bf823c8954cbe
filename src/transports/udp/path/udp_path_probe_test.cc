#include "transports/udp/path/udp_path_probe.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

// A path with a largest datagram, a rate in bytes/s, a probability of loss, and a delay for one way.
struct Path {
  uint32_t bytes_max = 1500;
  double rate = 25e6, loss = 0;
  Nanos delay = 100 * microsecond;
};

struct Probing {
  int questions = 0;
  Nanos took = 0;
};

// Runs the probe until no question waits for an answer.
Probing run(PathProbe& probe, const Path& path, uint64_t seed = 3, bool measures_rate = true) {
  Random random(seed);
  if (measures_rate) probe.measure_rate(second);
  TrainMeter meter;
  RttEstimator rtt;
  std::multimap<Nanos, PathQuestion> coming;
  std::multimap<Nanos, std::pair<uint32_t, PathAnswer>> returning;
  Probing result;
  Nanos now = second, free_at = 0;
  while (!probe.done()) {
    Nanos next = std::min(probe.due(), meter.due());
    if (!coming.empty()) next = std::min(next, coming.begin()->first);
    if (!returning.empty()) next = std::min(next, returning.begin()->first);
    EXPECT_NE(next, never) << "nothing is due";
    if (next == never || result.questions > 1000) return result;
    now = std::max(now, next);
    for (PathQuestion question; probe.next(rtt, now, question); ++result.questions) {
      if (question.bytes > path.bytes_max || random.chance(path.loss)) continue;
      free_at = std::max(free_at, now) + static_cast<Nanos>(question.bytes / path.rate * 1e9);
      coming.emplace(free_at + path.delay, question);
    }
    for (; !coming.empty() && coming.begin()->first <= now; coming.erase(coming.begin()))
      meter.question(coming.begin()->second, coming.begin()->first);
    if (meter.due() <= now) {
      uint32_t number = 0;
      const auto answer = meter.answer(now, number);
      if (!random.chance(path.loss)) returning.emplace(now + path.delay, std::pair{number, answer});
    }
    for (; !returning.empty() && returning.begin()->first <= now; returning.erase(returning.begin())) {
      probe.answered(returning.begin()->second.first, returning.begin()->second.second, rtt, now);
    }
  }
  result.took = now - second;
  return result;
}

TEST(PathProbe, fills_packets_with_ipv6_headers_too) {
  for (const auto& [packet, found] :
       std::map<uint32_t, uint32_t>{{1280, 1200}, {1499, 1200}, {1500, 1452}, {8999, 1452}, {9000, 8952}}) {
    PathProbe probe({.headers_bytes = ipv6_headers_bytes});
    run(probe, {.bytes_max = packet - ipv6_headers_bytes});
    EXPECT_EQ(probe.datagram_bytes(), found) << packet;
    probe.too_long(found, second);
    EXPECT_EQ(probe.datagram_bytes(), found == 8952 ? 1452u : 1200u) << packet;
  }
}

TEST(PathProbe, finds_the_largest_datagram_that_arrives_and_the_rate) {
  for (const auto& [carries, found] :
       std::map<uint32_t, uint32_t>{{1200, 1200}, {1472, 1472}, {8971, 1472}, {8972, 8972}, {65'507, 8972}}) {
    PathProbe probe({});
    const auto result = run(probe, {.bytes_max = carries});
    EXPECT_EQ(probe.datagram_bytes(), found);
    EXPECT_NEAR(static_cast<double>(probe.dispersion_rate()), 25e6, 25e4);
    EXPECT_LE(result.questions, 16 + 2 * PathProbe::size_tries_max);
  }
}

TEST(PathProbe, no_train_is_sent_before_the_rate_is_asked_for_and_then_one) {
  for (const bool sizes : {true, false}) {
    PathProbe probe({.bytes_max = 1472, .sizes = sizes});
    EXPECT_EQ(run(probe, {}, 3, false).questions, sizes ? 1 : 0);
    EXPECT_FALSE(probe.measures_rate());
    EXPECT_EQ(probe.datagram_bytes(), 1472u);
    EXPECT_EQ(probe.dispersion_rate(), 0u);
    EXPECT_EQ(probe.due(), never);
    probe.measure_rate(2 * second);
    EXPECT_TRUE(probe.measures_rate());
    EXPECT_EQ(run(probe, {}).questions, 16);
    EXPECT_NEAR(static_cast<double>(probe.dispersion_rate()), 25e6, 25e4);
    EXPECT_FALSE(probe.measures_rate());
    EXPECT_EQ(run(probe, {}).questions, 0) << "once";
  }
}

TEST(PathProbe, the_probe_tries_65000_bytes_if_allowed) {
  PathProbe probe({.bytes_max = 65'000});
  run(probe, {.bytes_max = 65'507});
  EXPECT_EQ(probe.datagram_bytes(), 65'000u);
}

TEST(PathProbe, the_probe_takes_one_round_trip_and_a_train_without_loss) {
  PathProbe probe({});
  const auto result = run(probe, {.bytes_max = 9000, .rate = 1e9});
  EXPECT_EQ(result.questions, 2 + 16);
  EXPECT_LE(result.took, millisecond);
}

TEST(PathProbe, the_probe_works_at_loss) {
  int found = 0, rates = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PathProbe probe({.bytes_max = 1472});
    const auto result = run(probe, {.loss = 0.2}, seed);
    found += probe.datagram_bytes() == 1472;
    const double rate = static_cast<double>(probe.dispersion_rate());
    rates += rate > 25e6 * 0.4 && rate < 25e6 * 1.1;
    EXPECT_LE(result.took, 700 * millisecond);
  }
  EXPECT_EQ(found, 200) << "a try fails with probability 0.36, twelve of them with 5e-6";
  EXPECT_GE(rates, 196);
}

TEST(PathProbe, the_probe_ends_without_answers) {
  PathProbe probe({});
  const auto result = run(probe, {.bytes_max = 100});
  EXPECT_EQ(probe.datagram_bytes(), 1200u);
  EXPECT_EQ(probe.dispersion_rate(), 0u);
  EXPECT_EQ(result.questions, PathProbe::size_tries_max * 2 + PathProbe::train_tries_max * 16);
  EXPECT_LE(result.took, second);
}

TEST(PathProbe, the_probe_goes_below_a_size_that_the_kernel_refuses) {
  PathProbe probe({});
  run(probe, {.bytes_max = 9000});
  probe.too_long(8972, second);
  EXPECT_EQ(probe.datagram_bytes(), 1472u);
  probe.too_long(1472, second);
  EXPECT_EQ(probe.datagram_bytes(), 1200u);
  PathProbe fresh({});
  fresh.too_long(8972, second);
  EXPECT_EQ(run(fresh, {.bytes_max = 9000}).questions, 1 + 16) << "not tried";
}

TEST(PathProbe, the_probe_measures_only_the_rate_if_the_size_is_given) {
  PathProbe probe({.bytes_max = 1400, .sizes = false});
  const auto result = run(probe, {});
  EXPECT_EQ(result.questions, 16);
  EXPECT_EQ(probe.datagram_bytes(), 1400u);
}

TEST(PathProbe, a_train_that_is_asked_for_during_a_check_follows_the_check) {
  PathProbe probe({});
  run(probe, {.bytes_max = 9000}, 3, false);
  probe.check(second);
  EXPECT_EQ(run(probe, {.bytes_max = 9000}).questions, 2 + 16);
  EXPECT_TRUE(probe.take_checked());
  EXPECT_GT(probe.dispersion_rate(), 0u);
}

// A probe and a path that changes. Every question is answered after the path's delay, unless it is lost.
class ChangingPath {
 public:
  explicit ChangingPath(const PathProbeSettings& settings = {}, uint64_t seed = 5) : probe(settings), random_(seed) {}
  void run_until(Nanos until) {
    for (;;) {
      Nanos next = std::min(probe.due(), meter_.due());
      if (!coming_.empty()) next = std::min(next, coming_.begin()->first);
      if (!returning_.empty()) next = std::min(next, returning_.begin()->first);
      if (next > until) break;
      now = std::max(now, next);
      for (PathQuestion question; now >= probe.due() && probe.next(rtt, now, question); ++questions) {
        const Nanos arrives = now + 100 * microsecond + question.index * train_gap;
        if (question.bytes <= carries && !random_.chance(loss)) coming_.emplace(arrives, question);
      }
      for (; !coming_.empty() && coming_.begin()->first <= now; coming_.erase(coming_.begin()))
        meter_.question(coming_.begin()->second, coming_.begin()->first);
      if (meter_.due() <= now) {
        uint32_t number = 0;
        const auto answer = meter_.answer(now, number);
        if (!random_.chance(loss)) returning_.emplace(now + 100 * microsecond, std::pair{number, answer});
      }
      for (; !returning_.empty() && returning_.begin()->first <= now; returning_.erase(returning_.begin()))
        probe.answered(returning_.begin()->second.first, returning_.begin()->second.second, rtt, now);
    }
    now = until;
  }
  void pass(Nanos time) { run_until(now + time); }

  static constexpr Nanos train_gap = 10 * microsecond;  // between the datagrams of a train, when they arrive
  PathProbe probe;
  RttEstimator rtt;
  uint32_t carries = 9000;
  double loss = 0;
  Nanos now = second;
  int questions = 0;

 private:
  Random random_;
  TrainMeter meter_;
  std::multimap<Nanos, PathQuestion> coming_;
  std::multimap<Nanos, std::pair<uint32_t, PathAnswer>> returning_;
};

TEST(PathProbe, a_check_of_a_path_that_carries_the_size_takes_two_questions_and_changes_nothing) {
  ChangingPath path;
  path.pass(second);
  ASSERT_EQ(path.probe.datagram_bytes(), 8972u);
  ASSERT_TRUE(path.probe.can_check());
  const auto before = path.questions;
  path.probe.check(path.now);
  EXPECT_FALSE(path.probe.can_check());
  path.pass(10 * millisecond);
  EXPECT_TRUE(path.probe.take_checked());
  EXPECT_FALSE(path.probe.take_checked()) << "once";
  EXPECT_EQ(path.probe.datagram_bytes(), 8972u);
  EXPECT_EQ(path.questions - before, 2);
  EXPECT_EQ(path.probe.due(), never) << "there is no longer size";
}

TEST(PathProbe, a_check_of_a_black_hole_falls_to_1200_bytes_or_to_a_size_between) {
  for (const auto& [carries, found] : std::map<uint32_t, uint32_t>{{8000, 1472}, {1472, 1472}, {1471, 1200}, {1200, 1200}}) {
    SCOPED_TRACE(carries);
    ChangingPath path;
    path.pass(second);
    path.carries = carries;
    path.probe.check(path.now);
    path.pass(100 * millisecond);
    EXPECT_TRUE(path.probe.take_checked());
    EXPECT_EQ(path.probe.datagram_bytes(), found);
  }
}

TEST(PathProbe, a_black_hole_is_found_while_the_train_gets_no_answer_and_then_the_rate) {
  ChangingPath path;
  path.pass(second);
  path.carries = 1500;
  path.probe.measure_rate(path.now);
  path.pass(millisecond);
  ASSERT_TRUE(path.probe.can_check());
  path.probe.check(path.now);
  path.pass(100 * millisecond);
  EXPECT_EQ(path.probe.datagram_bytes(), 1472u);
  EXPECT_TRUE(path.probe.take_checked());
  EXPECT_FALSE(path.probe.measures_rate());
  EXPECT_GT(path.probe.dispersion_rate(), 0u) << "the train was sent again after the check";
}

TEST(PathProbe, while_a_path_carries_nothing_the_size_stays) {
  ChangingPath path;
  path.pass(second);
  path.carries = 0;
  path.probe.check(path.now);
  const auto before = path.questions;
  path.pass(5 * second);
  EXPECT_EQ(path.probe.datagram_bytes(), 8972u);
  EXPECT_LE(path.questions - before, 2 * (5 * 20 + 20)) << "two in 50 ms";
  path.carries = 9000;
  path.pass(100 * millisecond);
  EXPECT_TRUE(path.probe.take_checked());
  EXPECT_EQ(path.probe.datagram_bytes(), 8972u);
}

TEST(PathProbe, sizes_that_come_back_are_found_and_searches_become_rare) {
  ChangingPath path({.bytes_max = 1472});
  path.pass(second);
  path.carries = 1400;
  path.probe.check(path.now);
  path.pass(100 * millisecond);
  ASSERT_EQ(path.probe.datagram_bytes(), 1200u);
  const auto before = path.questions;
  path.pass(600 * second);
  EXPECT_EQ(path.probe.datagram_bytes(), 1200u);
  EXPECT_LE(path.questions - before, 16 * static_cast<int>(PathProbe::raise_tries_max)) << "1, 2, 4, … 64, 64, … s apart";
  path.carries = 1500;
  path.pass(PathProbe::raise_max + second);
  EXPECT_EQ(path.probe.datagram_bytes(), 1472u);
  EXPECT_EQ(path.probe.due(), never);
}

TEST(PathProbe, a_size_that_comes_back_at_once_is_used_after_a_second) {
  ChangingPath path({.bytes_max = 1472});
  path.pass(second);
  path.carries = 1400;
  path.probe.check(path.now);
  path.pass(100 * millisecond);
  path.carries = 1500;
  path.pass(PathProbe::raise_first);
  EXPECT_EQ(path.probe.datagram_bytes(), 1472u);
}

TEST(PathProbe, losses_seldom_look_like_a_black_hole) {
  int fallen = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    ChangingPath path({.bytes_max = 1472}, seed);
    path.pass(second);
    ASSERT_EQ(path.probe.datagram_bytes(), 1472u);
    path.loss = 0.3;
    path.probe.check(path.now);
    path.pass(500 * millisecond);
    fallen += path.probe.datagram_bytes() < 1472;
  }
  EXPECT_LE(fallen, 8) << "0.5 % of 400 are 2";
}

TEST(PathProbe, a_size_that_the_kernel_refused_is_tried_again_if_it_was_in_use) {
  ChangingPath path;
  path.pass(second);
  path.carries = 1400;
  path.probe.too_long(8972, path.now);
  path.probe.too_long(1472, path.now);
  EXPECT_EQ(path.probe.datagram_bytes(), 1200u);
  path.pass(3 * second);
  path.carries = 9000;
  path.pass(PathProbe::raise_max);
  EXPECT_EQ(path.probe.datagram_bytes(), 8972u);
}

TEST(PathProbe, unknown_and_impossible_answers_are_ignored) {
  PathProbe probe({.bytes_max = 1472});
  RttEstimator rtt;
  PathQuestion question;
  ASSERT_TRUE(probe.next(rtt, second, question));
  const Nanos now = second + millisecond;
  EXPECT_FALSE(probe.answered(question.number + 1, {.datagrams = 1}, rtt, now));
  EXPECT_FALSE(probe.answered(question.number + 32, {.datagrams = 1}, rtt, now));
  EXPECT_FALSE(probe.answered(question.number, {.datagrams = 0}, rtt, now)) << "nothing arrived, and an answer";
  EXPECT_FALSE(probe.answered(question.number, {.datagrams = 2}, rtt, now)) << "more than were sent";
  EXPECT_FALSE(probe.answered(question.number, {.datagrams = 1, .bytes = 1}, rtt, now)) << "more bytes than were sent";
  EXPECT_FALSE(probe.answered(question.number, {.datagrams = 1, .held_us = 1001}, rtt, now)) << "held for longer than it took";
  EXPECT_FALSE(rtt.measured());
  EXPECT_TRUE(probe.answered(question.number, {.datagrams = 1, .held_us = 400}, rtt, now));
  EXPECT_EQ(rtt.latest(), 600 * microsecond);
  EXPECT_FALSE(probe.answered(question.number, {.datagrams = 1}, rtt, now)) << "twice";
}

TEST(PathQuestions, questions_survive_the_wire_and_are_refused_outside_of_their_train) {
  DatagramHeader header;
  put_question({.number = 9, .index = 3, .count = 16, .bytes = 1472}, header);
  PathQuestion question;
  ASSERT_TRUE(get_question(header, question));
  EXPECT_EQ(question.number, 9u);
  EXPECT_EQ(question.index, 3u);
  EXPECT_EQ(question.bytes, 1472u);
  header.packet_index = 16;
  EXPECT_FALSE(get_question(header, question));
  header.packet_index = 3;
  header.deadline_us = 17;
  EXPECT_FALSE(get_question(header, question));
  header.deadline_us = 0;
  EXPECT_FALSE(get_question(header, question));
  header.deadline_us = 16;
  ASSERT_TRUE(get_question(header, question));
  put_answer(9, header);
  EXPECT_FALSE(get_question(header, question)) << "answers are not answered";
  PathAnswer answer;
  EXPECT_FALSE(read_answer(std::vector<std::byte>(15), answer));
  EXPECT_FALSE(read_answer(std::vector<std::byte>(17), answer));
  EXPECT_TRUE(read_answer(std::vector<std::byte>(16), answer));
}

TEST(TrainMeter, counts_each_datagram_once_and_answers_a_train_once) {
  TrainMeter meter;
  EXPECT_EQ(meter.due(), never);
  for (const uint32_t index : {0u, 1u, 1u, 4u})
    meter.question({.number = 5, .index = index, .count = 16, .bytes = 1000}, 1000 * index);
  EXPECT_EQ(meter.due(), 4000 + 2 * millisecond);
  uint32_t number = 0;
  const PathAnswer expected{.datagrams = 3, .bytes = 2000, .spread_ns = 4000, .held_us = 2};
  EXPECT_EQ(meter.answer(6000, number), expected);
  EXPECT_EQ(number, 5u);
  meter.question({.number = 5, .index = 7, .count = 16, .bytes = 1000}, 9000);
  meter.question({.number = 4, .index = 15, .count = 16, .bytes = 1000}, 9000);
  EXPECT_EQ(meter.due(), never) << "too late, or of an older train";
  meter.question({.number = 6, .index = 15, .count = 16, .bytes = 1000}, 9000);
  EXPECT_EQ(meter.due(), 9000);
}

}  // namespace
}  // namespace unisono

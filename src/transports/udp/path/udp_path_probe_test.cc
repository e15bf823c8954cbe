#include "transports/udp/path/udp_path_probe.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

// A path for datagrams up to `bytes_max`, with `rate` bytes/s, 100 us one way, and loss.
struct Path {
  uint32_t bytes_max = 1500;
  double rate = 25e6, loss = 0;
  Nanos delay = 100 * microsecond;
};

struct Probing {
  int questions = 0;
  Nanos took = 0;
};

Probing run(PathProbe& probe, const Path& path, uint64_t seed = 3) {
  Random random(seed);
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
    probe.too_long(found);
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

TEST(PathProbe, tries_65000_bytes_where_it_is_told_to) {
  PathProbe probe({.bytes_max = 65'000});
  run(probe, {.bytes_max = 65'507});
  EXPECT_EQ(probe.datagram_bytes(), 65'000u);
}

TEST(PathProbe, takes_one_round_trip_and_a_train_where_everything_arrives) {
  PathProbe probe({});
  const auto result = run(probe, {.bytes_max = 9000, .rate = 1e9});
  EXPECT_EQ(result.questions, 2 + 16);
  EXPECT_LE(result.took, millisecond);
}

TEST(PathProbe, works_at_loss) {
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

TEST(PathProbe, gives_up_where_nothing_is_answered) {
  PathProbe probe({});
  const auto result = run(probe, {.bytes_max = 100});
  EXPECT_EQ(probe.datagram_bytes(), 1200u);
  EXPECT_EQ(probe.dispersion_rate(), 0u);
  EXPECT_EQ(result.questions, PathProbe::size_tries_max * 2 + PathProbe::train_tries_max * 16);
  EXPECT_LE(result.took, second);
}

TEST(PathProbe, goes_below_what_the_kernel_calls_too_long) {
  PathProbe probe({});
  run(probe, {.bytes_max = 9000});
  probe.too_long(8972);
  EXPECT_EQ(probe.datagram_bytes(), 1472u);
  probe.too_long(1472);
  EXPECT_EQ(probe.datagram_bytes(), 1200u);
  PathProbe fresh({});
  fresh.too_long(8972);
  EXPECT_EQ(run(fresh, {.bytes_max = 9000}).questions, 1 + 16) << "not tried";
}

TEST(PathProbe, asks_only_for_the_rate_where_the_size_is_given) {
  PathProbe probe({.bytes_max = 1400, .sizes = false});
  const auto result = run(probe, {});
  EXPECT_EQ(result.questions, 16);
  EXPECT_EQ(probe.datagram_bytes(), 1400u);
}

TEST(PathProbe, ignores_answers_to_what_it_did_not_ask_and_answers_that_cannot_be) {
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

TEST(PathQuestions, survive_the_wire_and_are_refused_outside_of_their_train) {
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

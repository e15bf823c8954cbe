// Runs the probe over a virtual link with exact latency, rate and order, in virtual time.
#include "group/lifecycle/link_probe.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <deque>

#include "base/concat.h"
#include "base/random.h"
#include "group/lifecycle/control_kind.h"

namespace unisono {
namespace {

// Both ends of a link. A request arrives after the latency plus the time of its bytes on the wire. An answer arrives after the
// latency. Only the first `answers` requests are answered.
struct VirtualLink {
  Nanos latency = 25 * microsecond;
  double bytes_per_us = 1000;
  uint64_t answers = UINT64_MAX;
  Nanos slow = 0, slow_until = 0;  // until `slow_until`, each answer arrives later by `slow`
  double bucket = 0;               // token bucket: bytes that may pass at once; refilled at the link's rate
  double bucket_size = 0;

  Nanos now = 1'000 * second;  // a clock that did not start at 0
  Nanos free_at = 0;           // when the wire is free again
  Nanos first_burst_at = 0;
  uint64_t sent_bytes = 0, unanswered_bytes = 0, unanswered_bytes_max = 0;
  std::deque<std::pair<Nanos, Bytes>> in_flight = {};  // answers on their way, by arrival time
  std::deque<size_t> sizes = {};                       // sizes of the requests behind the answers in `in_flight`

  void transmit(LinkProbe& probe) {
    while (auto request = probe.take_request()) {
      for (uint32_t i = 0; i < request->times; ++i) {
        const auto bytes = request->message->size();
        sent_bytes += bytes;
        if (first_burst_at == 0 && bytes > 1'000) first_burst_at = now;
        unanswered_bytes += bytes;
        unanswered_bytes_max = std::max(unanswered_bytes_max, unanswered_bytes);
        bucket =
            std::min(bucket_size, bucket + static_cast<double>(std::max<Nanos>(0, now - free_at)) / microsecond * bytes_per_us);
        const auto at_once = std::min(bucket, static_cast<double>(bytes));
        bucket -= at_once;
        free_at =
            std::max(free_at, now) + static_cast<Nanos>((static_cast<double>(bytes) - at_once) / bytes_per_us * microsecond);
        if (answers == 0) continue;
        --answers;
        in_flight.emplace_back(free_at + 2 * latency + (now < slow_until ? slow : 0), LinkProbe::answer(*request->message));
        sizes.push_back(bytes);
      }
    }
  }

  // Runs the link until the probe has ended. Returns how long that took.
  Nanos run(LinkProbe& probe) {
    const auto began = now;
    transmit(probe);
    while (!probe.done()) {
      const auto deadline = probe.next_deadline();
      if (in_flight.empty() || in_flight.front().first >= deadline) {
        now = deadline;
        probe.woke(now);
      } else {
        now = in_flight.front().first;
        const auto message = std::move(in_flight.front().second);
        in_flight.pop_front();
        unanswered_bytes -= sizes.front();
        sizes.pop_front();
        probe.on_answer(message, now);
      }
      transmit(probe);
    }
    return now - began;
  }
};

LinkMeasurement measure(VirtualLink& link, Nanos* took = nullptr, Nanos time = 10 * second,
                        LinkSpan span = LinkSpan::inside_host) {
  LinkProbe probe(1, span, link.now, link.now + time);
  const auto spent = link.run(probe);
  if (took != nullptr) *took = spent;
  return probe.result();
}

TEST(LinkProbe, between_hosts_ignores_the_first_bytes_that_a_shaper_passes_at_once) {
  for (const double rate : {1.25, 12.5, 125.0, 1250.0}) {
    for (const double burst : {0.0, 32e3, 128e3, 512e3}) {
      if (burst / rate > 100e3) continue;  // the first bytes would outlast the whole measurement
      VirtualLink link{.latency = 100 * microsecond, .bytes_per_us = rate};
      link.bucket = link.bucket_size = burst;
      Nanos took = 0;
      const auto found = measure(link, &took, 10 * second, LinkSpan::between_hosts);
      ASSERT_TRUE(found.measured);
      EXPECT_GT(found.bytes_per_us, rate * 0.8) << rate << " " << burst;
      EXPECT_LT(found.bytes_per_us, rate * 1.6) << rate << " " << burst;
      EXPECT_LT(took, 300 * millisecond) << rate << " " << burst;
    }
  }
}

TEST(LinkProbe, finds_latency_and_rate_of_every_kind_of_link) {
  constexpr uint64_t seed = 31;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int i = 0; i < 300; ++i) {
    VirtualLink link;
    link.latency = static_cast<Nanos>(200) << random.below(14);            // 0.2 us … 1.6 ms
    link.bytes_per_us = 1.5 * static_cast<double>(1 << random.below(14));  // 1.5 MB/s … 12 GB/s
    Nanos took = 0;
    const auto found = measure(link, &took);
    const auto what = concat(link.latency, " ns, ", link.bytes_per_us, " MB/s");
    EXPECT_TRUE(found.measured) << what;
    EXPECT_NEAR(found.latency_us, static_cast<double>(link.latency) / microsecond, 1 + 16 / link.bytes_per_us) << what;
    // If a burst is short compared with the round trip, the measured rate is only a lower bound.
    const bool long_enough = (256u << 10) / link.bytes_per_us > static_cast<double>(link.latency) / microsecond / 3;
    EXPECT_NEAR(found.bytes_per_us, link.bytes_per_us, long_enough ? link.bytes_per_us / 4 : link.bytes_per_us) << what;
    EXPECT_LE(found.bytes_per_us, link.bytes_per_us * 1.25) << what;
    EXPECT_GE(found.bytes_per_us, std::min(link.bytes_per_us, 100.0) / 2) << what;
    EXPECT_LE(took, 200 * millisecond) << what;
  }
}

TEST(LinkProbe, ignores_a_peer_that_is_slow_at_first) {
  VirtualLink link{.latency = microsecond, .bytes_per_us = 8'000};
  link.slow = 80 * microsecond;
  link.slow_until = link.now + 600 * microsecond;  // the first of the 20 echoes are slow, the later ones are fast
  const auto found = measure(link);
  EXPECT_NEAR(found.latency_us, 1, 0.1);
  EXPECT_NEAR(found.bytes_per_us, 8'000, 800);
}

TEST(LinkProbe, sends_bursts_only_when_waiting_ranks_have_left_the_cores) {
  VirtualLink link{.latency = microsecond, .bytes_per_us = 8'000};
  const auto began = link.now;
  measure(link);
  EXPECT_GE(link.first_burst_at - began, 500 * microsecond);
}

TEST(LinkProbe, is_quick_on_a_quick_link) {
  VirtualLink link{.latency = microsecond, .bytes_per_us = 8'000};
  Nanos took = 0;
  EXPECT_TRUE(measure(link, &took).measured);
  EXPECT_LT(took, 2 * millisecond);
}

TEST(LinkProbe, does_not_clog_a_thin_link) {
  VirtualLink link{.latency = 500 * microsecond, .bytes_per_us = 1};  // 8 Mbit/s
  Nanos took = 0;
  const auto found = measure(link, &took);
  EXPECT_NEAR(found.bytes_per_us, 1, 0.1);
  EXPECT_LE(took, 130 * millisecond);
  EXPECT_LE(link.sent_bytes, 64u << 10);
  EXPECT_LE(link.unanswered_bytes_max, 16u << 10);
}

TEST(LinkProbe, keeps_in_flight_at_most_a_burst_that_the_link_carries_in_milliseconds) {
  for (const double rate : {1.0, 10.0, 100.0, 1'000.0, 10'000.0}) {
    VirtualLink link{.latency = 50 * microsecond, .bytes_per_us = rate};
    measure(link);
    EXPECT_LE(static_cast<double>(link.unanswered_bytes_max), std::max(16'384.0, rate * 5'000)) << rate;
  }
}

TEST(LinkProbe, uses_the_chunks_that_arrived_before_the_time_limit) {
  VirtualLink link{.latency = 100 * microsecond, .bytes_per_us = 0.01};  // 80 kbit/s: no chunk passes in time
  Nanos took = 0;
  const auto found = measure(link, &took);
  EXPECT_TRUE(found.measured);
  EXPECT_LE(took, 130 * millisecond);
  EXPECT_LT(found.bytes_per_us, 0.5);
  EXPECT_GT(found.bytes_per_us, 0.01);
}

TEST(LinkProbe, counts_the_part_of_a_burst_that_came_before_the_peer_fell_silent) {
  // 20 echoes, 2 bursts of 1 chunk, and half of the third burst
  VirtualLink link{.latency = 50 * microsecond, .bytes_per_us = 1'000, .answers = 20 + 1 + 1 + 1};
  const auto found = measure(link);
  EXPECT_TRUE(found.measured);
  EXPECT_NEAR(found.bytes_per_us, 131'072 / 100'000.0, 0.5);  // bytes of one chunk / burst_time_max in us
}

TEST(LinkProbe, without_any_answer_ends_in_time_and_reports_no_measurement) {
  VirtualLink link{.answers = 0};
  Nanos took = 0;
  EXPECT_EQ(measure(link, &took), LinkMeasurement{});
  EXPECT_LE(took, 250 * millisecond);
}

TEST(LinkProbe, ends_at_its_time_limit) {
  VirtualLink link{.latency = 5 * millisecond, .bytes_per_us = 1};
  Nanos took = 0;
  measure(link, &took, 30 * millisecond);
  EXPECT_LE(took, 30 * millisecond);
}

TEST(LinkProbe, ends_soon_where_round_trips_are_long) {
  VirtualLink link{.latency = 60 * millisecond, .bytes_per_us = 100};
  Nanos took = 0;
  const auto found = measure(link, &took);
  EXPECT_TRUE(found.measured);
  EXPECT_NEAR(found.latency_us, 60'000, 1'000);
  EXPECT_LE(took, 500 * millisecond);
}

TEST(LinkProbe, accepts_only_answers_to_its_own_open_request) {
  const Nanos now = second;
  LinkProbe probe(7, LinkSpan::inside_host, now, now + second);
  const auto request = probe.take_request();
  ASSERT_TRUE(request.has_value());
  const auto answer = [](ControlKind kind, uint32_t number, uint32_t sequence) {
    return std::move(ByteWriter().write(kind).write(number).write(sequence)).take();
  };
  auto too_long = answer(ControlKind::probe_answer, 7, 1);
  too_long.push_back(std::byte{0});
  for (const auto& wrong : {answer(ControlKind::probe, 7, 1), answer(ControlKind::probe_answer, 6, 1),
                            answer(ControlKind::probe_answer, 7, 2), too_long, Bytes(3), Bytes()}) {
    probe.on_answer(wrong, now + microsecond);
    EXPECT_FALSE(probe.take_request().has_value());
  }
  probe.on_answer(LinkProbe::answer(*request->message), now + microsecond);
  EXPECT_TRUE(probe.take_request().has_value());  // the probe sends its next echo
}

TEST(LinkProbe, answers_only_requests) {
  LinkProbe probe(7, LinkSpan::inside_host, 0, second);
  const auto request = probe.take_request();
  const auto answer = LinkProbe::answer(*request->message);
  EXPECT_FALSE(answer.empty());
  EXPECT_TRUE(LinkProbe::answer(answer).empty());
  EXPECT_TRUE(LinkProbe::answer({}).empty());
  EXPECT_TRUE(LinkProbe::answer(ByteView(*request->message).first(5)).empty());
}

}  // namespace
}  // namespace unisono

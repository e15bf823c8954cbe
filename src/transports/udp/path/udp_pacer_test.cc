#include "transports/udp/path/udp_pacer.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/random.h"

namespace unisono {
namespace {

constexpr uint32_t full = 1472;

TEST(TokenBucket, sends_two_datagrams_at_once_after_a_second_of_silence_and_the_third_147_2_us_later) {
  TokenBucket bucket(10'000'000, full);
  ASSERT_TRUE(bucket.take(full, 0));
  const Nanos now = second;
  EXPECT_TRUE(bucket.take(full, now));
  EXPECT_TRUE(bucket.take(full, now));
  EXPECT_FALSE(bucket.take(full, now));
  EXPECT_EQ(bucket.ready_at(full, now), now + 147'200);
  EXPECT_FALSE(bucket.take(full, now + 147'199));
  EXPECT_TRUE(bucket.take(full, now + 147'200));
}

TEST(TokenBucket, holds_250_us_of_a_high_rate) {
  TokenBucket bucket(100'000'000, full);
  int sent = 0;
  while (bucket.take(1000, second)) ++sent;
  EXPECT_EQ(sent, 25);
}

TEST(TokenBucket, keeps_its_rate_exactly) {
  for (const uint64_t rate : {125'000ull, 10'000'000ull, 1'250'000'000ull, 12'500'000'000ull}) {
    TokenBucket bucket(rate, full);
    Nanos now = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < 20'000; ++i) {
      now = bucket.ready_at(full, now);
      ASSERT_TRUE(bucket.take(full, now));
      bytes += full;
    }
    const double seconds = static_cast<double>(now) * 1e-9;
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(rate) * (seconds + 250e-6),
                3.0 * full + static_cast<double>(rate) * 1e-9 * 20'000);
  }
}

TEST(TokenBucket, a_datagram_longer_than_the_cap_is_sent_when_full_and_leaves_a_debt) {
  TokenBucket bucket(10'000'000, full);
  EXPECT_TRUE(bucket.take(9000, 0));
  EXPECT_EQ(bucket.ready_at(full, 0), (9000 - 2944 + 1472) * 100);
}

TEST(TokenBucket, tokens_stay_when_the_rate_changes) {
  TokenBucket bucket(10'000'000, full);
  ASSERT_TRUE(bucket.take(2944, 0));
  bucket.set(1'000'000, full, 73'600);  // 10 MB/s for 73.6 us: the bucket holds 736 bytes
  EXPECT_EQ(bucket.ready_at(1472, 73'600), 73'600 + 736'000);
}

TEST(TokenBucket, survives_idle_years_and_absurd_rates) {
  TokenBucket bucket(UINT64_MAX, 65'507);
  EXPECT_TRUE(bucket.take(65'507, never / 2));
  EXPECT_TRUE(bucket.take(65'507, never - 1));
  TokenBucket slow(0, 65'507);
  slow.spend(SIZE_MAX, 5);
  slow.spend(SIZE_MAX, 5);
  EXPECT_FALSE(slow.take(1, 6));
  EXPECT_TRUE(slow.take(1, never - 1));
}

std::vector<size_t> turns(Pacer& pacer, int count, Nanos& now) {
  std::vector<size_t> found;
  for (int i = 0; i < count; ++i) {
    now = pacer.ready_at(now);
    const auto destination = pacer.next(now);
    if (!destination) return found;
    pacer.sent(*destination, full, now);
    found.push_back(*destination);
  }
  return found;
}

TEST(Pacer, numbers_destinations_so_that_no_two_ranks_send_to_one_receiver_in_a_slot) {
  const uint32_t world = 7;
  for (uint32_t slot = 0; slot < 2 * (world - 1); ++slot) {
    std::set<uint32_t> receivers;
    for (uint32_t self = 0; self < world; ++self) {
      const uint32_t to = Pacer::rank_of(self, slot % (world - 1), world);
      EXPECT_EQ(to, (self + 1 + slot % (world - 1)) % world);
      EXPECT_EQ(Pacer::destination_of(self, to, world), slot % (world - 1));
      EXPECT_NE(to, self);
      receivers.insert(to);
    }
    EXPECT_EQ(receivers.size(), world);
  }
}

TEST(Pacer, destinations_with_datagrams_take_turns) {
  Pacer pacer({.destination_rate = 1'000'000}, 5);
  Nanos now = 0;
  EXPECT_EQ(pacer.ready_at(now), never);
  for (const size_t destination : {1u, 2u, 4u}) pacer.want(destination, full);
  EXPECT_EQ(turns(pacer, 7, now), (std::vector<size_t>{1, 2, 4, 1, 2, 4, 1}));
  pacer.want(2, 0);
  pacer.want(3, full);
  EXPECT_EQ(turns(pacer, 4, now), (std::vector<size_t>{3, 4, 1, 3}));
}

// A turn lasts 50 us. At 200 MB/s that is 10,000 bytes, or six datagrams of 1472 bytes. A turn also ends when the destination
// has no datagrams or no tokens left.
TEST(Pacer, turns_are_longer_where_the_rate_is_high) {
  Pacer pacer({.destination_rate = 200'000'000}, 3);
  Nanos now = 0;
  for (const size_t destination : {0u, 1u, 2u}) pacer.want(destination, full);
  std::vector<size_t> expected;
  for (const size_t destination : {0u, 1u, 2u, 0u}) expected.insert(expected.end(), 6, destination);
  EXPECT_EQ(turns(pacer, 24, now), expected);
  EXPECT_EQ(turns(pacer, 2, now), (std::vector<size_t>{1, 1}));
  pacer.want(1, 0);
  EXPECT_EQ(turns(pacer, 7, now), (std::vector<size_t>{2, 2, 2, 2, 2, 2, 0}))
      << "a turn that another one ended does not shorten the next";
}

TEST(Pacer, turns_are_no_longer_than_the_kernel_joins) {
  Pacer pacer({.destination_rate = 50'000'000'000}, 2);
  for (const size_t destination : {0u, 1u}) pacer.want(destination, full);
  Nanos now = 0;
  const auto order = turns(pacer, 88, now);
  EXPECT_EQ(std::count(order.begin(), order.begin() + 44, 0u), 44) << "64 KiB are 44 datagrams";
  EXPECT_EQ(std::count(order.begin() + 44, order.end(), 1u), 44);
}

TEST(Pacer, passes_over_a_destination_without_tokens) {
  Pacer pacer({.rate_limit = 1'000'000'000}, 3);
  pacer.set_rate(0, 50'000'000, 0);
  pacer.set_rate(1, 125'000, 0);
  pacer.set_rate(2, 50'000'000, 0);
  for (size_t i = 0; i < 3; ++i) pacer.want(i, full);
  std::vector<size_t> count(3);
  Nanos now = 0;
  while (now < second) {
    now = pacer.ready_at(now);
    const auto destination = pacer.next(now);
    ASSERT_TRUE(destination.has_value());
    pacer.sent(*destination, full, now);
    ++count[*destination];
  }
  EXPECT_NEAR(static_cast<double>(count[0]) * full, 50e6, 50e4);
  EXPECT_NEAR(static_cast<double>(count[2]) * full, 50e6, 50e4);
  EXPECT_NEAR(static_cast<double>(count[1]) * full, 125e3 + 2944, 1500);
}

TEST(Pacer, shares_the_rate_of_the_rank_evenly_and_keeps_to_it) {
  for (const size_t destinations : {2u, 7u, 63u, 64u, 65u, 200u}) {
    Pacer pacer({.rate_limit = 20'000'000, .destination_rate = 20'000'000}, destinations);
    for (size_t i = 0; i < destinations; ++i) pacer.want(i, full);
    std::vector<size_t> count(destinations);
    Nanos now = 0;
    size_t bytes = 0;
    while (now < second) {
      now = pacer.ready_at(now);
      const auto destination = pacer.next(now);
      ASSERT_TRUE(destination.has_value());
      pacer.sent(*destination, full, now);
      ++count[*destination];
      bytes += full;
    }
    EXPECT_NEAR(static_cast<double>(bytes), 20e6, 5e4);
    const auto [least, most] = std::minmax_element(count.begin(), count.end());
    EXPECT_LE(*most - *least, 1u);
  }
}

TEST(Pacer, has_the_largest_rate_of_its_destinations_without_a_limit) {
  Pacer pacer({.destination_rate = 1'000'000}, 4);
  pacer.set_rate(2, 30'000'000, 0);
  for (size_t i = 0; i < 4; ++i) {
    pacer.set_rate(i, 30'000'000 - 1'000'000 * i, 0);
    pacer.want(i, full);
  }
  Nanos now = 0;
  size_t bytes = 0;
  for (; now < second; bytes += full) {
    now = pacer.ready_at(now);
    const auto destination = pacer.next(now);
    ASSERT_TRUE(destination.has_value());
    pacer.sent(*destination, full, now);
  }
  EXPECT_NEAR(static_cast<double>(bytes), 30e6, 5e4);
}

TEST(Pacer, the_rank_rate_bounds_all_destinations_together) {
  Pacer pacer({.rate_limit = 0}, 3);
  for (size_t i = 0; i < 3; ++i) {
    pacer.set_rate(i, 10'000'000, 0);
    pacer.want(i, full);
  }
  EXPECT_EQ(pacer.largest_rate(), 10'000'000u);
  pacer.set_rank_rate(5'000'000, 0);
  Nanos now = second;
  for (int i = 0; i < 1000; ++i) {
    now = pacer.ready_at(now);
    const auto next = pacer.next(now);
    ASSERT_TRUE(next.has_value());
    pacer.sent(*next, full, now);
  }
  EXPECT_NEAR(static_cast<double>(now - second) * 1e-9, 1000.0 * full / 5e6, 0.002);
}

TEST(Pacer, goes_on_at_once_when_a_blocked_destination_gets_a_higher_rate) {
  Pacer pacer({.rate_limit = 1'000'000'000, .destination_rate = 125'000}, 2);
  pacer.want(1, full);
  Nanos now = 0;
  turns(pacer, 2, now);
  EXPECT_EQ(pacer.ready_at(now), 11'776'000);
  pacer.set_rate(1, 1'000'000'000, 1'000'000);
  EXPECT_EQ(pacer.ready_at(1'000'001), 1'001'347) << "125 bytes were there, 1347 come at the new rate";
}

TEST(Pacer, ready_at_is_exact_and_no_destination_is_forgotten) {
  const uint64_t seed = 42;
  SCOPED_TRACE(seed);
  Random random(seed);
  Pacer pacer({.rate_limit = 40'000'000}, 70);
  std::vector<uint32_t> wanted(70);
  Nanos now = 0;
  int sent = 0;
  for (int step = 0; step < 200'000; ++step) {
    const size_t destination = random.below(70);
    if (random.chance(0.2)) pacer.want(destination, wanted[destination] = static_cast<uint32_t>(random.below(3) * 700));
    if (random.chance(0.02)) pacer.set_rate(destination, 125'000 + random.below(10'000'000), now);
    const Nanos due = pacer.ready_at(now);
    ASSERT_GE(due, now);
    if (due == never) {
      for (const auto bytes : wanted) ASSERT_EQ(bytes, 0u);
      continue;
    }
    if (random.chance(0.5)) continue;
    now = std::max(due, now);
    if (const auto found = pacer.next(now)) {
      ASSERT_GT(wanted[*found], 0u);
      pacer.sent(*found, wanted[*found], now);
      ++sent;
    } else {
      ASSERT_GT(pacer.ready_at(now), now);
    }
  }
  EXPECT_GT(sent, 50'000);
}

}  // namespace
}  // namespace unisono

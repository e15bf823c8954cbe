// Compares the duration of lossy all-reduces with the capacity of the links. The all-reduces use the UDP transport on links of
// 100 Mbit/s, in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/udp/shaped_cluster_test_support.h"

namespace unisono::sim {
namespace {

constexpr size_t elements = 131'072;

// Returns the time that all datagrams of an all-reduce take on one link. A datagram carries 352 elements and takes 1514 bytes.
double wire_ms(const ShapedSettings& settings) {
  const double ranges = 2.0 * (settings.ranks - 1) / settings.ranks * elements / 352;
  return ranges * 1514 / settings.bytes_per_second * 1e3;
}

struct Times {
  double median_ms = 0, ninth_decile_ms = 0, most_ms = 0;
};
Times measure(ShapedCluster& cluster, uint32_t ranks, double loss_budget, int warmup, int rounds) {
  std::vector<double> ms;
  for (int round = 0; round < warmup + rounds; ++round) {
    std::vector<std::vector<float>> values(ranks, std::vector<float>(elements, 1));
    const auto time = cluster.all_reduce(values, loss_budget);
    if (time == never) return {1e9, 1e9, 1e9};
    if (loss_budget == 0) {
      EXPECT_EQ(values[0], std::vector<float>(elements, static_cast<float>(ranks)));
    }
    for (const auto& others : values) EXPECT_EQ(others, values[0]);
    if (round >= warmup) ms.push_back(static_cast<double>(time) * 1e-6);
    cluster.pass(3 * millisecond);
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms[ms.size() * 9 / 10 - 1], ms.back()};
}

TEST(LongUdpAllReduceTime, without_loss_an_all_reduce_takes_the_time_of_the_wire) {
  for (const uint32_t ranks : {4u, 8u}) {
    const ShapedSettings settings{.ranks = ranks, .bucket_bytes = 16'000, .queue_bytes = 250'000, .wake = 20 * microsecond};
    ShapedCluster cluster(settings);
    const auto times = measure(cluster, ranks, 0.4, 25, 10);
    SCOPED_TRACE(ranks);
    EXPECT_LE(times.median_ms, 1.1 * wire_ms(settings));
    EXPECT_LE(times.most_ms, 1.2 * wire_ms(settings));
  }
}

TEST(LongUdpAllReduceTime, token_buckets_of_links_do_not_prolong_an_all_reduce) {
  const ShapedSettings settings{.wake = 20 * microsecond};
  ShapedCluster cluster(settings);
  const auto times = measure(cluster, settings.ranks, 0.4, 25, 10);
  EXPECT_LE(times.median_ms, 1.05 * wire_ms(settings))
      << "10 ms are saved, and no rank has to wait for one that is slower for having sent too fast";
  EXPECT_LE(times.most_ms, 1.2 * wire_ms(settings));
}

TEST(LongUdpAllReduceTime, late_scheduling_of_processes_prolongs_an_all_reduce_moderately) {
  const ShapedSettings settings{.wake = 3 * millisecond};
  ShapedCluster cluster(settings);
  EXPECT_LE(measure(cluster, settings.ranks, 0.4, 25, 10).median_ms, 2.5 * wire_ms(settings))
      << "two datagrams at a time, every 3 ms: 21 times as long";
}

TEST(LongUdpAllReduceTime, a_loss_of_a_tenth_prolongs_an_all_reduce_by_less_than_two_and_repairs_are_few) {
  const ShapedSettings settings{.wake = 20 * microsecond};
  ShapedCluster cluster(settings);
  (void)measure(cluster, settings.ranks, 0, 20, 5);
  cluster.network().lose(0.1);
  const auto data = cluster.network().data(), repairs = cluster.network().repairs();
  const auto times = measure(cluster, settings.ranks, 0, 3, 20);
  EXPECT_LE(times.median_ms, 1.7 * wire_ms(settings));
  // Not the slowest one: over seeds, it takes between 1.9 and 2.5 times as long, whether ranks answer requests or not.
  EXPECT_LE(times.ninth_decile_ms, 2.2 * wire_ms(settings));
  const auto sent = cluster.network().data() - data, again = cluster.network().repairs() - repairs;
  EXPECT_LE(static_cast<double>(again), 0.125 * static_cast<double>(sent));
}

}  // namespace
}  // namespace unisono::sim

// Groups over the UDP transport in virtual time, while the paths between them stop carrying long datagrams: exact all-reduces
// and lossy ones go on, and long datagrams are used again when the paths carry them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "group/api/calls.h"
#include "sim/udp/udp_cluster.h"

namespace unisono::sim {
namespace {

using Completions = std::vector<std::shared_ptr<Completion>>;

// The parameter says whether the processes have a key.
class UdpPathSizeOfGroups : public testing::TestWithParam<bool> {
 protected:
  static constexpr uint32_t world = 4, whole = 1472;

  void SetUp() override {
    UdpClusterSettings settings{.network = {.processes = world, .seed = 3}};
    if (GetParam()) settings.udp.tls = *TlsContext::make({*SecretKey::draw()});
    cluster = std::make_unique<UdpCluster>(settings);
    auto linked = cluster->link_all(second);
    ASSERT_TRUE(linked.ok()) << linked.to_string();
    std::vector<PeerIndex> members(world);
    for (PeerIndex process = 0; process < world; ++process) {
      members[process] = process;
      cluster->engine(process).set_topology({shared_memory_profile(world), network_tcp_profile(world)});
    }
    auto made = cluster->make_group(members, 1);
    ASSERT_TRUE(made.ok()) << made.to_string();
    ASSERT_EQ(cluster->datagram_bytes(), whole - added());
  }
  // Runs one all-reduce on all ranks. Returns how long it took.
  Nanos all_reduce(size_t count, const CallOptions& options) {
    std::vector<std::vector<float>> values(world, std::vector<float>(count));
    for (Rank rank = 0; rank < world; ++rank) std::fill(values[rank].begin(), values[rank].end(), static_cast<float>(rank + 1));
    Completions completions;
    for (Rank rank = 0; rank < world; ++rank) {
      const Tensor tensor{std::span<float>(values[rank])};
      auto request =
          all_reduce_call({.self = rank, .world = world, .timeout = 10 * second}, ConstTensor(tensor), tensor, options);
      EXPECT_TRUE(request.ok()) << request.status().to_string();
      completions.push_back(cluster->submit(rank, std::move(*request)));
    }
    const auto since = cluster->now();
    const auto open = [&] {
      return std::any_of(completions.begin(), completions.end(), [](const auto& c) { return !c->done; });
    };
    while (open() && cluster->now() < since + 20 * second) cluster->run_until(cluster->now() + millisecond);
    reports.clear();
    for (Rank rank = 0; rank < world; ++rank) {
      EXPECT_TRUE(completions[rank]->done && completions[rank]->status.ok())
          << rank << ": " << completions[rank]->status.to_string();
      reports.push_back(completions[rank]->report);
      if (options.delivery == Delivery::reliable || options.lossy.loss_budget == 0) {
        const bool exact = std::all_of(values[rank].begin(), values[rank].end(), [](float value) { return value == 10; });
        EXPECT_TRUE(exact) << rank;
      }
      for (const auto value : values[rank]) EXPECT_TRUE(value > 0 && value < 20) << value;
    }
    return cluster->now() - since;
  }
  static uint32_t added() { return GetParam() ? encryption_bytes : 0; }
  void expect_size(uint32_t bytes) const {
    for (PeerIndex a = 0; a < world; ++a) {
      for (PeerIndex b = 0; b < world; ++b) {
        EXPECT_TRUE(a == b || cluster->transport(a).flow(b)->datagram_bytes() == bytes) << a << " to " << b;
      }
    }
  }

  std::unique_ptr<UdpCluster> cluster;
  std::vector<Report> reports;
};

const CallOptions exact_two_step{.schedule = ScheduleKind::two_step};
CallOptions lossy_within(double loss_budget) {
  CallOptions options{.delivery = Delivery::lossy};
  options.lossy.loss_budget = loss_budget;
  return options;
}

TEST_P(UdpPathSizeOfGroups, exact_calls_go_on_after_a_moment) {
  const auto before = all_reduce(200'000, exact_two_step);
  cluster->at(cluster->now() + millisecond, [this] { cluster->network().lose_longer_than(1400); });
  EXPECT_LE(all_reduce(200'000, exact_two_step), before + 500 * millisecond) << "the path changed in the middle of the call";
  expect_size(1200);
  EXPECT_LE(all_reduce(200'000, exact_two_step), 2 * before);
}

TEST_P(UdpPathSizeOfGroups, lossy_calls_go_on_after_a_moment_and_lose_nothing_more) {
  for (int i = 0; i < 25; ++i) (void)all_reduce(200'000, lossy_within(0.05));  // deadlines are learned in 20 calls
  cluster->network().lose_longer_than(1400);
  for (int i = 0; i < 5; ++i) EXPECT_LE(all_reduce(200'000, lossy_within(0.05)), second) << i;
  expect_size(1200);
  for (int i = 0; i < 5; ++i) (void)all_reduce(200'000, lossy_within(0.05));
  for (const auto& report : reports) {
    ASSERT_NE(report.delivery, nullptr);
    EXPECT_EQ(report.delivery->used, Delivery::lossy);
    for (const auto& stream : report.delivery->contribute.streams) EXPECT_EQ(stream.missing + stream.repaired, 0u);
  }
  EXPECT_EQ(cluster->datagram_bytes(), whole - added()) << "the group's ranges keep their size";
}

TEST_P(UdpPathSizeOfGroups, a_lossy_call_in_the_middle_ends_with_all_its_data_if_it_must_be_complete) {
  (void)all_reduce(200'000, lossy_within(0));
  cluster->network().lose_longer_than(1300);
  EXPECT_LE(all_reduce(200'000, lossy_within(0)), second);
}

TEST_P(UdpPathSizeOfGroups, the_report_names_the_ranks_and_the_new_size) {
  cluster->network().lose_longer_than(1400);
  (void)all_reduce(200'000, lossy_within(0));
  (void)all_reduce(200'000, lossy_within(0));
  const auto part = [](Rank rank) {
    return concat("rank ", rank, " (process ", rank,
                  "): datagrams to it are now 1200 bytes, because larger ones get no acknowledgement");
  };
  ASSERT_NE(reports[0].delivery, nullptr);
  EXPECT_EQ(reports[0].delivery->note, part(1) + "; " + part(2) + "; " + part(3));
  cluster->network().lose_longer_than(UINT32_MAX);
  cluster->run_until(cluster->now() + PathProbe::raise_max + second);
  expect_size(whole);
  (void)all_reduce(200'000, lossy_within(0));
  EXPECT_EQ(reports[0].delivery->note, "");
}

TEST_P(UdpPathSizeOfGroups, a_host_that_refuses_long_datagrams_ends_no_call) {
  for (const auto& options : {exact_two_step, lossy_within(0)}) {
    cluster->network().refuse_longer_than(whole);
    (void)all_reduce(200'000, options);
    cluster->at(cluster->now() + millisecond, [this] { cluster->network().refuse_longer_than(1400); });
    EXPECT_LE(all_reduce(200'000, options), second);
    expect_size(1200);
    cluster->network().refuse_longer_than(whole);
    cluster->run_until(cluster->now() + PathProbe::raise_max + second);
    expect_size(whole);
  }
}

TEST_P(UdpPathSizeOfGroups, on_a_path_that_is_interrupted_the_size_stays) {
  (void)all_reduce(200'000, exact_two_step);
  cluster->network().lose_longer_than(0);
  cluster->run_until(cluster->now() + 2 * second);
  cluster->network().lose_longer_than(UINT32_MAX);
  (void)all_reduce(200'000, exact_two_step);
  expect_size(whole);
}

INSTANTIATE_TEST_SUITE_P(All, UdpPathSizeOfGroups, testing::Bool(),
                         [](const auto& info) { return info.param ? "encrypted" : "plain"; });

}  // namespace
}  // namespace unisono::sim

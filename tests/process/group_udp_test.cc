// Lossy all-reduces of real processes over UDP: without loss, while the kernel drops packets, and while ranks die or stop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/concat.h"
#include "group_cluster.h"
#include "lossy_hosts.h"

namespace unisono::testing {
namespace {

constexpr int64_t notice_limit_ms = 1000;  // generous, for loaded machines

TEST(Udp, lossy_calls_have_the_bits_of_reliable_ones_where_nothing_is_lost) {
  Cluster group(4, {.transport = "udp"});
  for (const auto* call : {"count=1,iters=25", "count=5,iters=25", "count=100003,iters=25", "count=100003,op=avg,iters=25",
                           "count=70001,in_place=1", "count=0"}) {
    const auto reliable = group.ask_all(std::string("all_reduce:order=1,hash=1,") + call);
    expect_all_ok(reliable);
    const auto lossy = group.ask_all(std::string("all_reduce:check=1,hash=1,lossy=loss_budget~0,") + call);
    expect_all_ok(lossy);
    for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(lossy[rank].value("hash"), reliable[rank].value("hash")) << call;
    // A call without elements sends no message, so no schedule is chosen.
    for (const auto& line : lossy)
      EXPECT_EQ(line.value("schedule"), std::string(call) == "count=0" ? "none" : "two_step") << line.text;
    std::printf("    %s: %.2f ms, reliable %.2f ms\n", call, static_cast<double>(lossy[0].number("us")) / 1000,
                static_cast<double>(reliable[0].number("us")) / 1000);
  }
  group.finish();
}

TEST(Udp, lossy_calls_need_links_that_carry_datagrams) {
  Cluster group(2, {.transport = "tcp"});
  for (const auto& line : group.ask_all("all_reduce:count=10,lossy=1")) {
    EXPECT_EQ(line.code(), "unsupported") << line.text;
    EXPECT_TRUE(line.says("udp")) << line.text;
  }
  expect_all_ok(group.ask_all("all_reduce:count=10"));
  group.finish();
}

TEST(Udp, datagrams_are_as_long_as_the_paths_allow_when_the_group_forms) {
  for (const auto* lost : {"0", "200"}) {
    Cluster group(4, {.transport = "udp", .environment = {std::string("UNISONO_LOSE_PER_MILLE=") + lost}});
    // The group tries packets of up to 9000 bytes. Their payload has 8972 bytes with IPv4, 8952 with IPv6.
    for (const auto& line : group.ask_all("members")) EXPECT_GE(line.number("datagram_bytes"), 8952) << line.text;
    group.finish();
  }
}

TEST(Udp, a_rate_limit_holds) {
  Cluster group(2, {.transport = "udp", .environment = {"UNISONO_RATE_LIMIT_MBPS=80"}});
  // Each rank sends 4 MB. At 80 Mbit/s = 10 MB/s that takes 0.4 s.
  for (const auto& line : group.ask_all("all_reduce:count=1000003,schedule=2")) {
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_GT(line.number("us"), 350'000) << line.text;
  }
  group.finish();
}

TEST(Udp, checksums_are_used_if_all_ranks_request_them) {
  for (const size_t asking : {3, 2}) {
    ClusterOptions options{.transport = "udp", .wrappers = {}};
    for (size_t rank = 0; rank < 3; ++rank)
      options.wrappers.push_back({"env", std::string("UNISONO_DATAGRAM_CHECKSUM=") + (rank < asking ? "1" : "0")});
    Cluster group(3, options);
    const auto lines = group.ask_all("members");
    EXPECT_TRUE(lines[0].says("checksums_only")) << lines[0].text;
    EXPECT_EQ(lines[2].says("checksums_only"), asking == 3) << lines[2].text;
    expect_all_ok(group.ask_all("all_reduce:count=100003,iters=3,check=1"));
    expect_all_ok(group.ask_all("all_reduce:count=100003,iters=3,tolerance=1000000,lossy=1"));
    group.finish();
  }
}

TEST(Udp, lossy_calls_that_differ_end_with_invalid_on_all_ranks) {
  Cluster group(3, {.transport = "udp"});
  expect_all_ok(group.ask_all("all_reduce:count=1000,lossy=1"));
  const auto numbers = group.send_command({0, 1}, "all_reduce:count=1000,lossy=1,timeout=5000");
  const auto other = group[2].ask("all_reduce:count=999,lossy=1,timeout=5000");
  EXPECT_EQ(other.code(), "invalid") << other.text;
  for (const auto& line : group.answers({0, 1}, numbers)) EXPECT_EQ(line.code(), "invalid") << line.text;
  expect_all_ok(group.ask_all("all_reduce:count=1000,lossy=1"));
  group.finish();
}

// The ranks make both calls before, so they do not announce them again. Sizes do not show the difference either.
TEST(Udp, a_lossy_sum_and_a_lossy_average_that_were_both_called_before_end_with_both_names) {
  Cluster group(3, {.transport = "udp"});
  const std::string sum = "all_reduce:count=1000,lossy=1,timeout=5000", average = sum + ",op=avg";
  for (const auto& call : {sum, average}) expect_all_ok(group.ask_all(call));
  const auto numbers = group.send_command({0, 1}, sum);
  auto lines = std::vector{group[2].ask(average)};
  for (const auto& line : group.answers({0, 1}, numbers)) lines.push_back(line);
  for (const auto& line : lines) {
    EXPECT_EQ(line.code(), "invalid") << line.text;
    for (const auto* part : {"calls differ: rank ", "f32 sum, 1000 elements", "f32 avg, 1000 elements"})
      EXPECT_NE(line.text.find(part), std::string::npos) << line.text;
  }
  expect_all_ok(group.ask_all(sum + ",check=1"));
  group.finish();
}

TEST(Udp, automatic_calls_have_the_bits_of_reliable_ones_with_and_without_datagrams) {
  for (const auto* transport : {"udp", "tcp"}) {
    Cluster group(3, {.transport = transport});
    const auto reliable = group.ask_all("all_reduce:order=1,hash=1,count=100003,iters=5"),
               automatic = group.ask_all("all_reduce:order=1,check=1,hash=1,automatic=1,count=100003,iters=5");
    expect_all_ok(reliable);
    expect_all_ok(automatic);
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(automatic[rank].value("hash"), reliable[rank].value("hash")) << transport;
    group.finish();
  }
}

TEST(Udp, a_lossy_and_a_reliable_call_at_the_same_position_end_early_with_invalid_on_all_ranks) {
  for (const auto* odd : {"all_reduce:count=1000,timeout=30000", "barrier:timeout=30000"}) {
    Cluster group(3, {.transport = "udp"});
    expect_all_ok(group.ask_all("all_reduce:count=1000,lossy=1"));
    const auto numbers = group.send_command({0, 1}, "all_reduce:count=1000,lossy=1,timeout=30000");
    const auto other = group[2].ask(odd);
    EXPECT_EQ(other.code(), "invalid") << other.text;
    EXPECT_TRUE(other.says("with lossy delivery")) << other.text;
    for (const auto& line : group.answers({0, 1}, numbers)) {
      EXPECT_EQ(line.code(), "invalid") << line.text;
      EXPECT_TRUE(line.says("rank 2") && line.says("with reliable delivery")) << line.text;
      EXPECT_LT(line.number("us"), 10'000'000) << line.text;
    }
    group.finish();
  }
}

TEST(Udp, death_in_a_loop_of_lossy_calls_is_reported_to_all) {
  Cluster group(4, {.transport = "udp"});
  const std::vector<size_t> left{0, 1, 3};
  const auto numbers = group.send_command(group.all_but({}), "all_reduce:count=300007,iters=1000000,lossy=1");
  for (size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(group[rank].has_begun(numbers[rank]));
  const auto killed_at = now_ns();
  group[2].signal(SIGKILL);
  for (const auto& line : group.answers(left, {numbers[0], numbers[1], numbers[3]})) {
    EXPECT_EQ(line.code(), "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 2")) << line.text;
    expect_within("death reported after", line.at() - killed_at, notice_limit_ms);
  }
  expect_all_ok(group.ask(left, "reform"));
  // Results are exact until deadlines are learned, because ranks wait for late data. Learning takes 20 calls.
  expect_all_ok(group.ask(left, "all_reduce:count=100003,iters=15,check=1,lossy=1"));
  group.finish(left);
}

TEST(Udp, a_stopped_rank_is_named_when_the_deadline_has_passed_and_joins_in_again) {
  Cluster group(3, {.transport = "udp"});
  expect_all_ok(group.ask_all("all_reduce:count=100003,iters=15,check=1,lossy=1"));
  // Deadlines are learned within these calls, so some data may be missing.
  expect_all_ok(group.ask_all("all_reduce:count=100003,iters=10,tolerance=1000000,lossy=1"));
  group[1].signal(SIGSTOP);
  ASSERT_TRUE(group[1].wait_stopped());
  const auto numbers = group.send_command({0, 2}, "all_reduce:count=100003,lossy=1,timeout=300");
  for (const auto& line : group.answers({0, 2}, numbers)) {
    EXPECT_EQ(line.code(), "late") << line.text;
    EXPECT_TRUE(line.says("rank 1")) << line.text;
    EXPECT_TRUE(line.says("bytes, missing")) << line.text;
    expect_within("late after", line.number("us") * 1000, 300 + 200);
  }
  group[1].signal(SIGCONT);
  // Rank 1 has missed one operation. So its next call joins the latest operation of the other ranks, and may fail. After
  // re-forming, calls succeed on all ranks.
  (void)group.ask_all("all_reduce:count=100003,lossy=1,timeout=1000");
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=100003,iters=5,check=1,lossy=1"));
  group.finish();
}

TEST(Udp, injects_the_requested_loss_and_reports_it) {
  Cluster group(3, {.transport = "udp", .environment = {"UNISONO_LOSE_PER_MILLE=200"}});
  for (const auto& line : group.ask_all("members"))
    EXPECT_TRUE(line.says("drops_200_per_mille_of_the_arriving_datagrams_on_purpose")) << line.text;
  expect_all_ok(group.ask_all("all_reduce:count=100003,check=1"));
  // Warm-up: until deadlines are learned, all losses are repaired.
  expect_all_ok(group.ask_all("all_reduce:count=500000,tolerance=1000000,iters=20,lossy=loss_budget~0.9"));
  double expected = 0, missing = 0;
  for (int round = 0; round < 10; ++round) {
    const auto lines =
        group.ask_all(concat("all_reduce:count=500000,hash=1,tolerance=1000000,lossy=loss_budget~0.9,seed=", round));
    expect_all_ok(lines);
    for (const auto& line : lines) {
      EXPECT_EQ(line.value("hash"), lines[0].value("hash")) << line.text;
      if (line.number("cut") > 0 || line.number("learning") > 0) continue;
      expected += static_cast<double>(line.number("expected"));
      missing += static_cast<double>(line.number("missing"));
    }
  }
  std::printf("    %.0f of %.0f datagrams missing: %.2f %%\n", missing, expected, 100 * missing / expected);
  ASSERT_GT(expected, 1000) << "hardly any rank received all streams to their end";
  EXPECT_NEAR(missing / expected, 0.2, 4 * std::sqrt(0.2 * 0.8 / expected));
  group.finish();
}

TEST_F(LossyHosts, every_collective_is_correct_over_links_that_lose_a_tenth) {
  Hosts hosts("abc");
  lose(hosts, 10);
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  expect_all_ok(group.ask_all("matrix:counts=0/7/1000"));
  expect_all_ok(group.ask_all("all_reduce:count=1000003,iters=3,check=1"));
  group.finish();
}

// The network drops long datagrams silently. The group tries them for a while before it begins with short ones.
TEST_F(LossyHosts, a_group_uses_short_datagrams_if_long_ones_are_lost) {
  Hosts hosts("abc");
  for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
  hosts.filter({"meta l4proto udp meta length > 1400 drop"});
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  for (const auto& line : group.ask_all("members")) EXPECT_EQ(line.number("datagram_bytes"), 1200) << line.text;
  expect_all_ok(group.ask_all("all_reduce:count=100003,check=1"));
  expect_all_ok(group.ask_all("all_reduce:count=100003,check=1,lossy=1"));
  group.finish();
}

// If a neighbour was silent for a while, the kernel sends it ARP requests, and holds back packets until an answer comes. With
// packet loss that takes seconds.
TEST_F(LossyHosts, a_neighbour_that_sends_is_not_cut_off_when_arp_requests_are_lost) {
  Hosts hosts("ab");
  for (const char host : hosts.names()) {
    hosts.run_in(std::string(1, host), {"sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"});
    // A neighbour's address expires after 0.5 s; the kernel asks again 1 s later.
    hosts.run_in(std::string(1, host),
                 {"sh", "-c",
                  "cd /proc/sys/net/ipv4/neigh/eth0; echo 500 > base_reachable_time_ms; echo 1 > delay_first_probe_time; echo "
                  "100 > retrans_time_ms; echo 1 > ucast_solicit; echo 1 > mcast_solicit"});
  }
  Cluster group(2, options(hosts));
  expect_all_ok(group.ask_all("all_reduce:count=100003,check=1"));
  // From now on ARP requests get no answer.
  for (const char host : hosts.names())
    hosts.run_in(std::string(1, host),
                 {"nft", "add table arp quiet; add chain arp quiet input { type filter hook input priority 0; policy drop; }"});
  ASSERT_EQ(hosts.error(), "");
  for (const auto begin = now_ns(); now_ns() - begin < 5'000'000'000 && !HasFailure();)
    expect_all_ok(group.ask_all("all_reduce:count=100003,iters=20,timeout=2000"));
  group.finish();
}

TEST_F(LossyHosts, drop_compute_agrees_over_links_that_lose_a_tenth) {
  Hosts hosts("abc");
  lose(hosts, 10);
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  std::vector<size_t> numbers;
  for (size_t rank = 0; rank < 3; ++rank) {
    numbers.push_back(group[rank].send_command(
        concat("drop_make:slot=", rank,
               ",options=auto:warmup=1/calibration=4/min_calibration=3/window=3/max_drop=0.5/min_gain=0/recalibrate=5")));
  }
  expect_all_ok(group.answers({0, 1, 2}, numbers));
  const auto lines = group.ask_all("drop_train:iters=20");
  expect_all_ok(lines);
  for (const auto& line : lines) {
    for (const auto* key : {"step", "parameters", "counted", "report", "total"})
      EXPECT_EQ(line.value(key), lines[0].value(key)) << key << ": " << line.text;
    EXPECT_EQ(line.value("used"), line.value("position")) << line.text;
  }
  group.finish();
}

TEST_F(LossyHosts, ranks_that_leave_at_once_leave_no_rank_without_results) {
  Hosts hosts("abc");
  lose(hosts, 20);
  ASSERT_EQ(hosts.error(), "");
  for (int round = 0; round < 5; ++round) {
    Cluster group(3, options(hosts));
    const auto numbers = group.send_command({0, 1, 2}, "all_reduce:count=100003,check=1,lossy=1");
    for (size_t rank = 0; rank < 3; ++rank) group[rank].send_command("leave");
    expect_all_ok(group.answers({0, 1, 2}, numbers));
    group.finish();
  }
}

// A rank leaves right after its last call, even if its last messages were lost. No other rank may take this for a death. Ranks
// leave in two ways: they destroy their group, or their program ends.
void expect_that_all_can_leave(Hosts& hosts, const ClusterOptions& options, int percent, int rounds) {
  hosts.filter({concat("meta l4proto udp numgen random mod 100 < ", percent, " drop")});
  ASSERT_EQ(hosts.error(), "");
  const std::vector<size_t> all{0, 1, 2, 3};
  int64_t slowest_ns = 0;
  for (int round = 0; round < rounds; ++round) {
    Cluster group(4, options);
    const std::string call = round % 3 == 0   ? "barrier"
                             : round % 3 == 1 ? "all_reduce:count=1,check=1"
                                              : "all_reduce:count=50021,check=1";
    const auto numbers = group.send_command(all, call);
    const bool leave = round % 2 == 0;
    const auto leaving = group.send_command(all, leave ? "leave" : "exit");
    const auto lines = group.answers(all, numbers);
    expect_all_ok(lines);
    for (size_t rank = 0; leave && rank < 4; ++rank)
      slowest_ns = std::max(slowest_ns, group[rank].answer(leaving[rank]).at() - lines[rank].at());
    group.finish();
    if (::testing::Test::HasFailure()) FAIL() << "at " << percent << " % loss, round " << round << ", " << call;
  }
  // A leaving rank resends unacknowledged frames for at most 2 s. It waits a little longer for the answer to its goodbye. So
  // 2.5 s are enough.
  expect_within(concat("the slowest leave at ", percent, " % loss took"), slowest_ns, 2500);
}

TEST_F(LossyHosts, ranks_whose_last_call_is_a_collective_leave_nobody_waiting_in_it) {
  Hosts hosts("abcd");
  expect_that_all_can_leave(hosts, options(hosts), 10, 12);
}

class LongLossyHosts : public LossyHosts {};

TEST_F(LongLossyHosts, ranks_whose_last_call_is_a_collective_leave_nobody_waiting_in_it) {
  Hosts hosts("abcd");
  for (const int percent : {1, 10, 30}) expect_that_all_can_leave(hosts, options(hosts), percent, 30);
}

TEST_F(LossyHosts, leaving_takes_no_time_without_loss) {
  Hosts hosts("abc");
  ASSERT_EQ(hosts.error(), "");
  std::vector<int64_t> took;
  for (int round = 0; round < 5; ++round) {
    Cluster group(3, options(hosts));
    const auto numbers = group.send_command({0, 1, 2}, "barrier");
    const auto leaving = group.send_command({0, 1, 2}, "leave");
    const auto lines = group.answers({0, 1, 2}, numbers);
    expect_all_ok(lines);
    for (size_t rank = 0; rank < 3; ++rank) took.push_back(group[rank].answer(leaving[rank]).at() - lines[rank].at());
    group.finish();
  }
  std::sort(took.begin(), took.end());
  expect_within("half of all farewells took", took[took.size() / 2], 50);
}

// The stopped rank cannot acknowledge, so the leaving rank stops waiting after a time limit.
TEST_F(LossyHosts, a_stopped_rank_delays_the_leave_of_others_only_briefly) {
  Hosts hosts("abc");
  ASSERT_EQ(hosts.error(), "");
  Cluster group(3, options(hosts));
  expect_all_ok(group.ask_all("barrier"));
  group[2].signal(SIGSTOP);
  ASSERT_TRUE(group[2].wait_stopped());
  const auto number = group[0].send_command("leave");
  const auto begun = now_ns();
  expect_within("a stopped rank was waited for", group[0].answer(number).at() - begun, 2300 + 200);
  group[2].signal(SIGCONT);
  group.finish();
}

TEST_F(LossyHosts, datagrams_fill_packets_of_ethernet_with_both_versions_of_ip) {
  Hosts hosts("ab");
  for (const char host : hosts.names())
    hosts.run_in(std::string(1, host), {"ip", "address", "add", std::string("fd77::") + host + "/64", "dev", "eth0", "nodad"});
  ASSERT_EQ(hosts.error(), "");
  for (const bool v6 : {false, true}) {
    ClusterOptions chosen{.transport = "udp",
                          .rendezvous = v6 ? "tcp://[fd77::a]:29500" : "tcp://" + Hosts::address('a') + ":29500"};
    for (const char host : hosts.names()) {
      chosen.wrappers.push_back(
          hosts.wrapper(host, " && export UNISONO_INTERFACE=" + (v6 ? std::string("fd77::") + host : Hosts::address(host))));
    }
    Cluster group(2, chosen);
    for (const auto& line : group.ask_all("members"))
      EXPECT_TRUE(line.says(v6 ? "(eth0,_1452_bytes)" : "(eth0,_1472_bytes)")) << line.text;
    expect_all_ok(group.ask_all("all_reduce:count=1000003,check=1"));
    expect_all_ok(group.ask_all("all_reduce:count=1000003,iters=3,tolerance=1000000,lossy=1"));
    group.finish();
  }
}

TEST_F(LossyHosts, lossy_sums_are_the_same_on_all_ranks_and_lack_lost_contributions) {
  Hosts hosts("abcd");
  ASSERT_EQ(hosts.error(), "");
  Cluster group(4, options(hosts));
  // Learn the deadlines. (On a slow machine, some may pass before all ranks have sent, so these sums may be incomplete too.)
  expect_all_ok(group.ask_all("all_reduce:count=262144,iters=25,tolerance=1000000,lossy=1"));
  lose(hosts, 10);
  ASSERT_EQ(hosts.error(), "");
  constexpr double enough = 5 * 723;
  double expected = 0, missing = 0;
  // On busy cores, deadlines cut most streams. Such streams do not count, so more rounds are needed.
  for (int round = 0; round < 20 || (round < 100 && expected < enough); ++round) {
    const auto lines =
        group.ask_all(concat("all_reduce:count=262144,hash=1,tolerance=1000000,lossy=loss_budget~0.5,seed=", round));
    expect_all_ok(lines);
    for (const auto& line : lines) {
      EXPECT_EQ(line.value("hash"), lines[0].value("hash")) << line.text;
      EXPECT_EQ(line.number("learning"), 0) << line.text;
      // If a deadline cut a stream, more may be missing than the network lost. So do not count it.
      if (line.number("cut") > 0) continue;
      expected += static_cast<double>(line.number("expected"));
      missing += static_cast<double>(line.number("missing"));
    }
  }
  std::printf("    %.0f of %.0f datagrams missing: %.2f %%\n", missing, expected, 100 * missing / expected);
  ASSERT_GT(expected, enough) << "hardly any rank received all streams to their end";
  EXPECT_NEAR(missing / expected, 0.1, 4 * std::sqrt(0.1 * 0.9 / expected));
  group.finish();
}

}  // namespace
}  // namespace unisono::testing

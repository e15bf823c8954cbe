#include "cli/doctor/doctor_findings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "cli/doctor/doctor_table.h"

namespace unisono::cli {
namespace {

// Returns facts of hosts "a", "b", … with one rank each and no problem.
ClusterFacts healthy(uint32_t count) {
  ClusterFacts cluster;
  cluster.world_size = count;
  cluster.rendezvous = "tcp://10.0.0.1:29500";
  for (uint32_t i = 0; i < count; ++i) {
    RankFacts rank;
    rank.rank = i;
    rank.world_size = count;
    rank.security = {.level = "auto", .key_source = "UNISONO_KEY_FILE (/k)", .key_mark = "k"};
    auto& machine = rank.machine;
    machine.host = std::string(1, static_cast<char>('a' + i));
    machine.version = "1.0";
    machine.boot = "boot-" + machine.host;
    machine.network = "net";
    machine.cores_online = 8;
    machine.cores_allowed = {0, 1, 2, 3, 4, 5, 6, 7};
    machine.descriptors = 4096;
    machine.clock_source = "tsc";
    machine.interfaces = {{"eth0", true, true, 1500}, {"lo", true, true, 65536}};
    machine.offers = {{concat("10.0.0.", i + 1), "eth0", "global", true}, {"127.0.0.1", "lo", "loopback", true}};
    machine.name_addresses = {concat("10.0.0.", i + 1)};
    cluster.ranks.push_back(rank);
  }
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < count; ++j) {
      if (i == j) continue;
      AddressTry attempt{
          concat("10.0.0.", j + 1, ":4000"), "eth0", true, concat("10.0.0.", i + 1, ":5"), Outcome::reached, "", 0.001};
      cluster.reaches.push_back({i, j, {attempt}});
      if (i < j) {
        Measured measured{.from = i, .to = j, .address = attempt.address};
        measured.round_trip_us = 100;
        measured.segment_bytes = 1448;
        measured.forth_rate = measured.back_rate = 1e9;
        cluster.measured.push_back(measured);
      }
    }
  }
  return cluster;
}

Reach& reach_of(ClusterFacts& cluster, uint32_t from, uint32_t to) {
  return *std::find_if(cluster.reaches.begin(), cluster.reaches.end(),
                       [&](const Reach& r) { return r.from == from && r.to == to; });
}

void fail(Reach& reach, Outcome outcome, const char* error) {
  for (auto& attempt : reach.tries) {
    attempt.outcome = outcome;
    attempt.error = error;
    attempt.seconds = 2.5;
  }
}

// Expects exactly one finding, whose sentences contain the given parts.
void expect_only(const ClusterFacts& cluster, Severity severity, const std::string& code, const std::string& seen,
                 const std::string& remedy) {
  const auto findings = findings_of(cluster);
  ASSERT_EQ(findings.size(), 1u) << findings_text(findings);
  EXPECT_EQ(findings[0].severity, severity) << findings_text(findings);
  EXPECT_EQ(findings[0].code, code);
  EXPECT_NE(findings[0].seen.find(seen), std::string::npos) << findings[0].seen;
  EXPECT_NE(findings[0].remedy.find(remedy), std::string::npos) << findings[0].remedy;
}

TEST(DoctorFindings, healthy_facts_give_no_findings) {
  for (uint32_t count : {1u, 2u, 3u, 5u})
    EXPECT_EQ(findings_of(healthy(count)).size(), 0u) << findings_text(findings_of(healthy(count)));
}

TEST(DoctorFindings, one_dead_direction_is_named_with_the_rule_that_opens_it) {
  auto cluster = healthy(2);
  fail(reach_of(cluster, 0, 1), Outcome::no_answer, "no answer");
  expect_only(cluster, Severity::error, "one_direction",
              "rank 0 (host a) cannot connect to rank 1 (host b): 10.0.0.2:4000 (eth0): no answer after 2.5 s; the other "
              "direction works",
              "iptables -I INPUT -p tcp -s 10.0.0.1 -j ACCEPT");
}

TEST(DoctorFindings, two_dead_directions_are_two_errors) {
  auto cluster = healthy(2);
  cluster.measured.clear();
  fail(reach_of(cluster, 0, 1), Outcome::no_route, "no route to host");
  fail(reach_of(cluster, 1, 0), Outcome::refused, "connection refused");
  const auto findings = findings_of(cluster);
  ASSERT_EQ(findings.size(), 2u) << findings_text(findings);
  EXPECT_EQ(findings[0].code, "unreachable");
  EXPECT_NE(findings[0].remedy.find("has no route"), std::string::npos);
  EXPECT_NE(findings[1].remedy.find("rejects"), std::string::npos);
}

TEST(DoctorFindings, many_pairs_of_the_same_hosts_are_one_finding) {
  auto cluster = healthy(3);
  cluster.ranks[2].machine = cluster.ranks[1].machine;  // now rank 2 is on host b, too
  fail(reach_of(cluster, 0, 1), Outcome::no_answer, "no answer");
  fail(reach_of(cluster, 0, 2), Outcome::no_answer, "no answer");
  expect_only(cluster, Severity::error, "one_direction", "(and 1 more pair of these hosts)", "host b");
}

TEST(DoctorFindings, pairs_that_share_memory_are_only_warned_of_dead_tcp) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine = cluster.ranks[0].machine;
  cluster.shared.push_back({0, 1, ""});
  fail(reach_of(cluster, 0, 1), Outcome::no_answer, "no answer");
  expect_only(cluster, Severity::warning, "one_direction", "only --transport tcp would fail", "");
}

TEST(DoctorFindings, an_interface_of_the_target_that_does_not_work_is_named_beside_one_that_does) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine.interface_asked = "ib0";
  auto& reach = reach_of(cluster, 0, 1);
  auto good = reach.tries[0];
  good.offered = false;
  reach.tries = {{"10.9.0.2:4000", "ib0", true, "", Outcome::no_answer, "no answer", 2.5}, good};
  expect_only(cluster, Severity::error, "wrong_interface",
              "host b is set to use interface ib0: 10.9.0.2:4000 (ib0): no answer after 2.5 s; 10.0.0.2:4000 on eth0 answers",
              "on host b: --interface eth0");
}

TEST(DoctorFindings, an_interface_of_the_dialling_host_that_does_not_work_is_its_own_fault) {
  auto cluster = healthy(2);
  cluster.ranks[0].machine.interface_asked = "ib0";
  auto& reach = reach_of(cluster, 0, 1);
  auto good = reach.tries[0];
  good.offered = false;
  fail(reach, Outcome::no_answer, "no answer");
  reach.tries.push_back(good);
  expect_only(cluster, Severity::error, "wrong_interface", "because host a is set to use interface ib0",
              "on host a: --interface eth0");
}

TEST(DoctorFindings, a_host_with_more_addresses_than_it_offers_is_named_only_if_one_of_the_others_would_work) {
  auto cluster = healthy(2);
  auto& offers = cluster.ranks[1].machine.offers;
  for (int i = 0; i < 40; ++i) offers.push_back({concat("10.9.0.", i), concat("net", i), "global", i < 13});
  auto& reach = reach_of(cluster, 0, 1);
  auto spare = reach.tries[0];
  spare.address = "10.9.0.39:4000", spare.interface = "net39", spare.offered = false;
  reach.tries.push_back(spare);
  EXPECT_EQ(findings_of(cluster).size(), 0u) << findings_text(findings_of(cluster));
  reach.tries[0].outcome = Outcome::no_answer;
  reach.tries[0].error = "no answer";
  reach.tries[0].seconds = 2.5;
  expect_only(cluster, Severity::error, "wrong_interface",
              "rank 0 (host a) cannot reach rank 1 (host b) because host b offers 15 of its 42 addresses, and none of these: "
              "10.0.0.2:4000 (eth0): no answer after 2.5 s; 10.9.0.39:4000 on net39 answers",
              "on host b: --interface net39 (UNISONO_INTERFACE=net39)");
}

TEST(DoctorFindings, a_dead_address_before_the_good_one_is_a_warning_and_behind_it_a_hint) {
  auto cluster = healthy(2);
  auto& tries = reach_of(cluster, 0, 1).tries;
  tries.insert(tries.begin(), {"172.17.0.1:4000", "docker0", true, "", Outcome::refused, "connection refused", 0});
  expect_only(cluster, Severity::warning, "dead_address",
              "172.17.0.1 (docker0) of host b cannot be reached from host a: connection refused",
              "on host b: --interface eth0");
  std::swap(tries[0], tries[1]);
  EXPECT_EQ(findings_of(cluster).size(), 0u) << "every container host has addresses like this";
  tries[1].interface = "eth7";
  expect_only(cluster, Severity::hint, "dead_address", "it costs nothing", "--interface eth0");
}

TEST(DoctorFindings, an_address_that_somebody_reaches_is_not_dead) {
  auto cluster = healthy(3);
  const AddressTry other{"10.5.0.2:4000", "eth1", true, "", Outcome::no_answer, "no answer", 2.5};
  auto reached = other;
  reached.outcome = Outcome::reached;
  reach_of(cluster, 0, 1).tries.push_back(other);
  reach_of(cluster, 2, 1).tries.push_back(reached);
  EXPECT_EQ(findings_of(cluster).size(), 0u) << findings_text(findings_of(cluster));
}

TEST(DoctorFindings, long_frames_that_are_lost_name_direction_sizes_and_mtu) {
  auto cluster = healthy(2);
  auto& measured = cluster.measured[0];
  measured.back_stuck = true;
  measured.error = "long frames do not pass";
  measured.segment_passes = 1260;
  expect_only(cluster, Severity::error, "mtu",
              "from rank 1 (host b) to rank 0 (host a) short frames pass (round trip 100 µs), full segments of 1448 bytes do "
              "not; with segments of 1260 bytes they do",
              "ip link set dev eth0 mtu 1300");
}

TEST(DoctorFindings, a_measurement_that_broke_is_an_error) {
  auto cluster = healthy(2);
  cluster.measured[0].error = "bandwidth forth: connection reset by peer";
  expect_only(cluster, Severity::error, "broken_pair", "the measurement failed: bandwidth forth: connection reset",
              "ip -s link");
}

TEST(DoctorFindings, a_slow_pair_is_named_with_both_numbers_and_the_factor) {
  auto cluster = healthy(3);
  cluster.measured[1].forth_rate = 1e8;  // the pair of ranks 0 and 2
  expect_only(cluster, Severity::warning, "slow_pair",
              "rank 0 (host a) sends to rank 2 (host c) at 100.0 MB/s; the best quarter of the other pairs reaches 1.00 GB/s, "
              "10.0 times as much",
              "ethtool");
}

TEST(DoctorFindings, a_slow_host_among_three_is_named_in_each_of_its_directions) {
  auto cluster = healthy(3);
  for (auto& measured : cluster.measured) {
    if (measured.to == 2) measured.forth_rate = measured.back_rate = 1e8;
  }
  const auto findings = findings_of(cluster);
  EXPECT_EQ(findings.size(), 4u) << findings_text(findings);
  for (const auto& finding : findings) EXPECT_NE(finding.seen.find("rank 2"), std::string::npos) << finding.seen;
}

TEST(DoctorFindings, thin_links_are_a_case_for_fewer_bits) {
  auto cluster = healthy(3);
  for (auto& measured : cluster.measured) measured.forth_rate = measured.back_rate = 1.17e8;
  expect_only(cluster, Severity::hint, "thin_links", "117.0 MB/s from rank", "UNISONO_CODEC=int8");
}

TEST(DoctorFindings, a_pair_less_than_three_times_slower_gives_no_finding) {
  auto cluster = healthy(3);
  cluster.measured[1].forth_rate = 4e8;
  cluster.measured[1].round_trip_us = 400;
  EXPECT_EQ(findings_of(cluster).size(), 0u);
}

TEST(DoctorFindings, a_rate_limited_by_processors_is_not_a_slow_pair) {
  auto cluster = healthy(2);
  cluster.measured[0].forth_rate = 6.5e9;
  cluster.measured[0].back_rate = 1.1e9;
  EXPECT_EQ(findings_of(cluster).size(), 0u) << findings_text(findings_of(cluster));
  cluster.measured[0].back_rate = 0.9e9;
  expect_only(cluster, Severity::warning, "slow_pair",
              "rank 1 (host b) sends to rank 0 (host a) at 900.0 MB/s; the best quarter of the other pairs reaches 6.50 GB/s",
              "ethtool");
}

TEST(DoctorFindings, a_late_pair_is_named_with_both_times) {
  auto cluster = healthy(3);
  cluster.measured[2].round_trip_us = 2000;
  expect_only(cluster, Severity::warning, "late_pair",
              "between rank 1 (host b) and rank 2 (host c) takes 2.0 ms; the best quarter of the other pairs needs 100 µs, "
              "20.0 times less",
              "tracepath");
}

TEST(DoctorFindings, clocks_that_differ_are_a_hint_and_from_a_second_on_a_warning) {
  auto cluster = healthy(2);
  cluster.measured[0].clock_ahead_us = -80e3;
  expect_only(cluster, Severity::hint, "clock", "the clock of rank 1 (host b) is 0.08 s behind that of rank 0 (host a)",
              "chrony");
  cluster.measured[0].clock_ahead_us = 2e6;
  expect_only(cluster, Severity::warning, "clock", "2.00 s ahead of", "chrony");
}

TEST(DoctorFindings, missing_ranks_are_named_with_those_that_came) {
  auto cluster = healthy(2);
  cluster.world_size = 4;
  cluster.waited_seconds = 15;
  expect_only(cluster, Severity::error, "missing",
              "ranks 2, 3 of 4 did not connect to tcp://10.0.0.1:29500 within 15.0 s; here: rank 0 (host a), rank 1 (host b)",
              "--timeout");
}

TEST(DoctorFindings, a_rank_that_stops_answering_is_named) {
  auto cluster = healthy(2);
  cluster.silent = {1};
  expect_only(cluster, Severity::error, "silent", "rank 1 (host b) connected and then stopped answering", "MTU");
}

TEST(DoctorFindings, refused_processes_are_named) {
  auto cluster = healthy(2);
  cluster.turned_away = {"a second rank 1 (host c), pid 7"};
  expect_only(cluster, Severity::error, "turned_away", "a second rank 1 (host c), pid 7", "WORLD_SIZE");
}

TEST(DoctorFindings, versions_that_differ_are_an_error) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine.version = "2.0";
  expect_only(cluster, Severity::error, "versions", "rank 0 (host a) runs unisono 1.0, rank 1 (host b) runs 2.0",
              "same version");
}

TEST(DoctorFindings, two_hosts_of_one_name_are_a_warning) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine.host = "a";
  expect_only(cluster, Severity::hint, "same_name", "both call themselves a", "hostnamectl");
}

TEST(DoctorFindings, one_machine_with_two_network_name_spaces_is_a_hint) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine.boot = cluster.ranks[0].machine.boot;
  cluster.ranks[1].machine.network = "other";
  expect_only(cluster, Severity::hint, "apart_on_one_machine", "use TCP instead of shared memory", "--network host");
}

TEST(DoctorFindings, ranks_of_one_host_that_cannot_share_memory_are_an_error) {
  auto cluster = healthy(2);
  cluster.ranks[1].machine = cluster.ranks[0].machine;
  cluster.shared.push_back({0, 1, "it did not connect"});
  expect_only(cluster, Severity::error, "not_shared", "cannot share memory: it did not connect", "--transport tcp");
}

TEST(DoctorFindings, more_ranks_than_cores_are_a_warning_with_the_reason) {
  auto cluster = healthy(1);
  cluster.ranks.push_back(cluster.ranks[0]);
  cluster.ranks[1].rank = 1;
  cluster.world_size = 2;
  cluster.ranks[0].machine.cores_allowed = cluster.ranks[1].machine.cores_allowed = {3};
  expect_only(cluster, Severity::warning, "few_cores",
              "ranks 0, 1 share 1 core of host a (their affinity allows no others of the 8 that there are)", "taskset");
  cluster.ranks[1].machine.cores_allowed = {4};
  EXPECT_EQ(findings_of(cluster).size(), 0u) << "each has its own";
  cluster.ranks[0].machine.cores_quota = 1.5;
  expect_only(cluster, Severity::warning, "few_cores", "share 1.5 cores of host a (its control group grants no more)",
              "at most 1 ranks");
}

TEST(DoctorFindings, limits_of_the_machine_are_named_with_the_command_that_lifts_them) {
  auto cluster = healthy(1);
  cluster.ranks[0].machine.arena_error = "shm: the limit on file sizes (ulimit -f) is below 5 bytes";
  expect_only(cluster, Severity::error, "no_shared_memory", "host a gives no shared memory: shm: the limit on file sizes",
              "ulimit -f unlimited");
  cluster = healthy(1);
  cluster.ranks[0].machine.descriptors = 64;
  expect_only(cluster, Severity::warning, "few_descriptors", "may open 64 descriptors", "ulimit -n 4096");
  cluster = healthy(1);
  cluster.ranks[0].machine.clock_source = "hpet";
  expect_only(cluster, Severity::warning, "slow_clock", "clock source of host a is hpet", "current_clocksource");
}

TEST(DoctorFindings, interfaces_that_cannot_serve_are_named) {
  auto cluster = healthy(1);
  cluster.ranks[0].machine.interface_error = "no interface eth9; there are: lo 127.0.0.1";
  expect_only(cluster, Severity::error, "no_such_interface", "eth9", "--interface");
  cluster = healthy(1);
  cluster.ranks[0].machine.offers.clear();
  expect_only(cluster, Severity::warning, "no_address", "no interface of host a is up", "ip link set");
  cluster = healthy(1);
  cluster.ranks[0].machine.interfaces[0].carrier = false;
  expect_only(cluster, Severity::warning, "no_carrier", "eth0 (10.0.0.1), which has no carrier", "--interface");
  cluster = healthy(2);
  cluster.ranks[1].machine.offers.erase(cluster.ranks[1].machine.offers.begin());
  expect_only(cluster, Severity::error, "loopback_only", "host b offers loopback addresses only (127.0.0.1)",
              "network interface");
}

TEST(DoctorFindings, a_host_name_that_resolves_to_loopback_or_not_at_all_is_a_hint) {
  auto cluster = healthy(1);
  cluster.ranks[0].machine.name_addresses = {"127.0.1.1"};
  expect_only(cluster, Severity::hint, "name_is_loopback", "on host a its own name resolves to 127.0.1.1", "/etc/hosts");
  cluster.ranks[0].machine.name_addresses = {"127.0.1.1", "10.0.0.1"};
  EXPECT_EQ(findings_of(cluster).size(), 0u);
  cluster.ranks[0].machine.name_addresses.clear();
  cluster.ranks[0].machine.name_error = "Name or service not known";
  expect_only(cluster, Severity::hint, "name_unknown", "does not know its own name", "/etc/hosts");
}

// Returns the facts of rank 1 in a group of two. It cannot reach rank 0, so it reports alone.
ClusterFacts alone_with(const RendezvousFailure& failure) {
  auto cluster = healthy(2);
  cluster.ranks.erase(cluster.ranks.begin());
  cluster.reaches.clear();
  cluster.measured.clear();
  cluster.rendezvous_failure = failure;
  return cluster;
}

TEST(DoctorFindings, a_rendezvous_that_cannot_be_reached_is_explained_by_what_the_kernel_said) {
  RendezvousFailure failure{
      .rank = 1, .resolve_error = {}, .tries = {{}}, .taken = {}, .said = {}, .broken_off = false, .seconds = 3};
  auto& attempt = failure.tries[0];
  attempt = {"10.0.0.1:29500", "", true, "", Outcome::no_answer, "no answer", 2.5};
  expect_only(alone_with(failure), Severity::error, "rendezvous_no_answer",
              "rank 1 (host b) cannot reach rank 0 at tcp://10.0.0.1:29500 within 3.0 s: 10.0.0.1:29500: no answer",
              "--dport 29500");
  attempt.outcome = Outcome::refused;
  expect_only(alone_with(failure), Severity::error, "rendezvous_refused", "10.0.0.1:29500", "no process listens");
  attempt.outcome = Outcome::no_route;
  expect_only(alone_with(failure), Severity::error, "rendezvous_no_route", "10.0.0.1:29500", "ip route get 10.0.0.1");
  attempt.outcome = Outcome::unauthenticated;
  expect_only(alone_with(failure), Severity::error, "rendezvous_unauthenticated", "10.0.0.1:29500",
              "another program has that port");
  attempt = {"127.0.1.1:29500", "", true, "", Outcome::refused, "connection refused", 0};
  expect_only(alone_with(failure), Severity::error, "rendezvous_is_loopback",
              "127.0.1.1:29500: connection refused; this address is this host itself", "MASTER_ADDR=<address>");
}

TEST(DoctorFindings, other_rendezvous_failures_are_named) {
  RendezvousFailure failure{.rank = 1,
                            .resolve_error = "Name or service not known",
                            .tries = {},
                            .taken = {},
                            .said = {},
                            .broken_off = false,
                            .seconds = 3};
  expect_only(alone_with(failure), Severity::error, "rendezvous_name", "does not resolve: Name or service not known",
              "as a number");
  failure.said = "a second rank 1 (host c), pid 7";
  expect_only(alone_with(failure), Severity::error, "turned_away", "rank 0 refused rank 1 (host b): this is a second rank 1",
              "once");
  failure.broken_off = true;
  expect_only(alone_with(failure), Severity::error, "rank_0_lost", "lost rank 0", "see rank 0's report");
  failure.taken = "cannot listen at [::]:29500: address already in use";
  expect_only(alone_with(failure), Severity::error, "rendezvous_taken", "address already in use", "--rendezvous");
}

TEST(DoctorFindings, errors_come_before_warnings_and_hints) {
  auto cluster = healthy(2);
  cluster.ranks[0].machine.name_addresses = {"127.0.1.1"};
  cluster.ranks[0].machine.clock_source = "hpet";
  cluster.silent = {1};
  const auto findings = findings_of(cluster);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].severity, Severity::error);
  EXPECT_EQ(findings[2].severity, Severity::hint);
  EXPECT_NE(findings_text(findings).find("1 error, 1 warning, 1 hint"), std::string::npos);
}

TEST(DoctorFacts, travel_as_json_without_loss) {
  auto cluster = healthy(2);
  cluster.ranks[1].id = {1, UINT64_MAX};
  cluster.ranks[1].machine.file_bytes = unlimited;
  fail(reach_of(cluster, 0, 1), Outcome::unauthenticated, "x");
  const auto copy = nlohmann::json(cluster.ranks[1]).get<RankFacts>();
  EXPECT_EQ(copy.id, cluster.ranks[1].id);
  EXPECT_EQ(nlohmann::json(copy), nlohmann::json(cluster.ranks[1]));
  for (const auto& reach : cluster.reaches)
    EXPECT_EQ(nlohmann::json(nlohmann::json(reach).get<Reach>()), nlohmann::json(reach));
  EXPECT_EQ(nlohmann::json(reach_of(cluster, 0, 1)).get<Reach>().tries[0].outcome, Outcome::unauthenticated);
  EXPECT_EQ(nlohmann::json(nlohmann::json(cluster.measured[0]).get<Measured>()), nlohmann::json(cluster.measured[0]));
}

TEST(DoctorTable, the_table_shows_which_ranks_cannot_connect) {
  auto cluster = healthy(2);
  fail(reach_of(cluster, 0, 1), Outcome::no_answer, "no answer");
  const auto text = pair_text(cluster, true);
  EXPECT_NE(text.find("    0        ·       NO\n    1      yes        ·"), std::string::npos) << text;
  EXPECT_NE(text.find("0 -> 1  10.0.0.2:4000 (eth0): no answer after 2.5000 s"), std::string::npos) << text;
}

}  // namespace
}  // namespace unisono::cli

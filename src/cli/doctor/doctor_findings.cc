#include "cli/doctor/doctor_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr uint64_t descriptors_base = 64;  // any process needs this many descriptors for its streams, logs, epoll and the like
constexpr uint64_t descriptors_per_rank = 4;  // for the two directions of a link, and for shared memory

bool is_loopback_text(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]") || address == "::1";
}

// Returns one rank of each host: the one with the lowest number.
std::vector<const RankFacts*> one_per_host(const ClusterFacts& cluster) {
  std::vector<const RankFacts*> hosts;
  for (const auto& rank : cluster.ranks) {
    if (std::none_of(hosts.begin(), hosts.end(), [&](const auto* other) { return same_host(*other, rank); }))
      hosts.push_back(&rank);
  }
  return hosts;
}

void find_cores(const ClusterFacts& cluster, const RankFacts& host, std::vector<Finding>& findings) {
  std::set<uint32_t> cores;
  std::vector<uint32_t> ranks;
  for (const auto& rank : cluster.ranks) {
    if (!same_host(rank, host)) continue;
    ranks.push_back(rank.rank);
    cores.insert(rank.machine.cores_allowed.begin(), rank.machine.cores_allowed.end());
  }
  const auto& machine = host.machine;
  const double usable = machine.cores_quota > 0 ? std::min(machine.cores_quota, static_cast<double>(cores.size()))
                                                : static_cast<double>(cores.size());
  if (cores.empty() || static_cast<double>(ranks.size()) <= usable) return;
  const auto why = machine.cores_quota > 0 && machine.cores_quota < static_cast<double>(cores.size())
                       ? "its control group grants no more"
                   : cores.size() < machine.cores_online
                       ? fmt::format("their affinity allows no others of the {} that there are", machine.cores_online)
                       : std::string("it has no more");
  findings.push_back({Severity::warning, "few_cores",
                      fmt::format("{} share {:g} core{} of host {} ({}), so ranks wait for each other's turn",
                                  format_ranks(ranks), usable, usable == 1 ? "" : "s", machine.host, why),
                      fmt::format("start at most {:g} ranks there (--hosts {}:{:g}), or give the ranks more cores (taskset, "
                                  "the container's CPU limit)",
                                  std::max(1.0, std::floor(usable)), machine.host, std::max(1.0, std::floor(usable)))});
}

void find_limits(const ClusterFacts& cluster, const RankFacts& rank, std::vector<Finding>& findings) {
  const auto& machine = rank.machine;
  if (!machine.arena_error.empty()) {
    findings.push_back(
        {Severity::error, "no_shared_memory",
         fmt::format("host {} gives no shared memory: {}", machine.host, machine.arena_error),
         "lift the limit that is named (ulimit -f unlimited, more memory for the container), or go without: --transport tcp"});
  }
  const auto wanted = descriptors_base + descriptors_per_rank * cluster.world_size;
  if (machine.descriptors < wanted) {
    findings.push_back({Severity::warning, "few_descriptors",
                        fmt::format("a process on host {} may open {} descriptors; {} ranks can need {}", machine.host,
                                    machine.descriptors, cluster.world_size, wanted),
                        fmt::format("raise the limit before the ranks start: ulimit -n {}", std::max<uint64_t>(4096, wanted))});
  }
  static const std::set<std::string> slow{"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"};
  if (slow.contains(machine.clock_source)) {
    findings.push_back({Severity::warning, "slow_clock",
                        fmt::format("the clock source of host {} is {}: each look at the clock costs a microsecond or more",
                                    machine.host, machine.clock_source),
                        "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, or start the kernel with "
                        "clocksource=tsc if it lists tsc as available"});
  }
}

void find_interfaces(const ClusterFacts& cluster, const RankFacts& rank, std::vector<Finding>& findings) {
  const auto& machine = rank.machine;
  if (!machine.interface_error.empty()) {
    findings.push_back({Severity::error, "no_such_interface", fmt::format("host {}: {}", machine.host, machine.interface_error),
                        "give --interface (UNISONO_INTERFACE) a name or address that this host has, or leave it out"});
    return;
  }
  const auto first =
      std::find_if(machine.offers.begin(), machine.offers.end(), [](const Offer& offer) { return offer.offered; });
  if (first == machine.offers.end()) {
    findings.push_back({Severity::warning, "no_address",
                        fmt::format("no interface of host {} is up with an address", machine.host),
                        "ip link set dev lo up, and give the host's network interface an address"});
    return;
  }
  if (first->kind == "loopback" && one_per_host(cluster).size() > 1) {
    findings.push_back({Severity::error, "loopback_only",
                        fmt::format("host {} offers loopback addresses only ({}), which no other host can reach", machine.host,
                                    first->address),
                        "bring its network interface up, or point --interface (UNISONO_INTERFACE) at it"});
  }
  for (const auto& interface : machine.interfaces) {
    const bool used = first->interface == interface.name && first->kind != "loopback";
    if (used && (!interface.up || !interface.carrier)) {
      findings.push_back({Severity::warning, "no_carrier",
                          fmt::format("host {} would be reached first through {} ({}), which has no carrier", machine.host,
                                      interface.name, first->address),
                          "plug the cable in, or choose another interface with --interface (UNISONO_INTERFACE)"});
    }
  }
}

void find_names(const RankFacts& rank, std::vector<Finding>& findings) {
  const auto& machine = rank.machine;
  const bool only_loopback = !machine.name_addresses.empty() &&
                             std::all_of(machine.name_addresses.begin(), machine.name_addresses.end(), is_loopback_text);
  if (only_loopback && machine.host != "localhost") {
    findings.push_back(
        {Severity::hint, "name_is_loopback",
         fmt::format(
             "on host {0} its own name resolves to {1}; a host that resolves the name {0} to {1}, too, finds only itself there",
             machine.host, machine.name_addresses.front()),
         fmt::format(
             "nothing, if the other hosts resolve {0} to an address of this host; otherwise give the address "
             "(MASTER_ADDR=<address>, --rendezvous tcp://<address>:port), or put it before {0} in /etc/hosts in place of {1}",
             machine.host, machine.name_addresses.front())});
  }
  if (!machine.name_error.empty()) {
    findings.push_back(
        {Severity::hint, "name_unknown",
         fmt::format("host {} does not know its own name: {}", machine.host, machine.name_error),
         fmt::format("add a line for {} to /etc/hosts if you use the name in --hosts or MASTER_ADDR", machine.host)});
  }
}

// Adds a hint if two of the hosts are containers on one machine. Only the first such pair of hosts is reported.
void find_apart(const std::vector<const RankFacts*>& hosts, std::vector<Finding>& findings) {
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = i + 1; j < hosts.size(); ++j) {
      if (hosts[i]->machine.boot != hosts[j]->machine.boot || hosts[i]->machine.boot.empty()) continue;
      findings.push_back(
          {Severity::hint, "apart_on_one_machine",
           fmt::format(
               "{} and {} run on one machine but in different network name spaces, so they use TCP instead of shared memory",
               name_of(*hosts[i]), name_of(*hosts[j])),
           "start the containers in one network name space (docker run --network host, or one pod) if they may share memory"});
      return;
    }
  }
}

void find_between_hosts(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  const auto hosts = one_per_host(cluster);
  find_apart(hosts, findings);
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = i + 1; j < hosts.size(); ++j) {
      const auto &a = *hosts[i], &b = *hosts[j];
      if (a.machine.version != b.machine.version) {
        findings.push_back(
            {Severity::error, "versions",
             fmt::format("{} runs unisono {}, {} runs {}", name_of(a), a.machine.version, name_of(b), b.machine.version),
             "install the same version on all hosts"});
      }
      if (a.machine.host == b.machine.host) {
        findings.push_back(
            {Severity::hint, "same_name",
             fmt::format("rank {} and rank {} are on different hosts or containers that both call themselves {}", a.rank,
                         b.rank, a.machine.host),
             "give each a name of its own (hostnamectl set-hostname, docker run --hostname): messages name hosts by it"});
      }
    }
  }
}

std::string here(const ClusterFacts& cluster) {
  std::string text;
  for (const auto& rank : cluster.ranks) text += (text.empty() ? "" : ", ") + name_of(rank);
  return text;
}

std::string tried(const RendezvousFailure& failure) {
  std::string text;
  for (const auto& attempt : failure.tries)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", attempt.address, attempt.error);
  return text;
}

Finding unreachable_rendezvous(const ClusterFacts& cluster, const RendezvousFailure& failure, const std::string& who) {
  const auto& first = failure.tries.front();
  const auto any = [&](Outcome outcome) {
    return std::any_of(failure.tries.begin(), failure.tries.end(),
                       [&](const AddressTry& attempt) { return attempt.outcome == outcome; });
  };
  const bool loops =
      std::all_of(failure.tries.begin(), failure.tries.end(), [](const AddressTry& a) { return is_loopback_text(a.address); });
  const auto seen =
      fmt::format("{} cannot reach rank 0 at {} within {:.1f} s: {}", who, cluster.rendezvous, failure.seconds, tried(failure));
  if (loops) {
    return {Severity::error, "rendezvous_is_loopback", seen + "; this address is this host itself",
            "if rank 0 runs on another host, give its address as others see it: MASTER_ADDR=<address> or --rendezvous "
            "tcp://<address>:port, or fix the name's line in /etc/hosts; if it runs here: is it started?"};
  }
  const auto address = host_part(first.address);
  if (any(Outcome::no_answer)) {
    return {Severity::error, "rendezvous_no_answer", seen,
            fmt::format("packets to {0} or their answers are dropped: is it rank 0's address, and does the firewall of rank "
                        "0's host let TCP in there "
                        "(iptables -I INPUT -p tcp --dport {1} -j ACCEPT) and that of this host let the answers in? Otherwise "
                        "choose an address or port "
                        "that is open: --rendezvous tcp://<address>:port",
                        address, first.address.substr(first.address.rfind(':') + 1))};
  }
  if (any(Outcome::unauthenticated)) {
    return {Severity::error, "rendezvous_unauthenticated", seen,
            "another program has that port (a store of the launcher, or 'unisono rendezvous', which does not speak the "
            "doctor's protocol): give the doctor a free one, --rendezvous tcp://<address>:port"};
  }
  if (any(Outcome::refused)) {
    return {Severity::error, "rendezvous_refused", seen,
            "the host answers, but no process listens there: is rank 0 started, on that host, with the same --rendezvous "
            "(MASTER_ADDR, MASTER_PORT)? A firewall that rejects looks the same"};
  }
  return {
      Severity::error, "rendezvous_no_route", seen,
      fmt::format("this host has no way to {0}: see 'ip route get {0}', or give an address in a network that both hosts are in",
                  address)};
}

void find_rendezvous_failure(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  const auto& failure = *cluster.rendezvous_failure;
  const auto* rank = cluster.find(failure.rank);
  const auto who = rank != nullptr ? name_of(*rank) : fmt::format("rank {}", failure.rank);
  if (!failure.taken.empty()) {
    findings.push_back(
        {Severity::error, "rendezvous_taken", fmt::format("{} cannot listen at {}: {}", who, cluster.rendezvous, failure.taken),
         "end the program that has the port (ss -ltnp shows it), or choose another with --rendezvous (MASTER_PORT)"});
  } else if (failure.broken_off) {
    findings.push_back(
        {Severity::error, "rank_0_lost",
         fmt::format("{} lost rank 0 at {} after {:.1f} s: {}", who, cluster.rendezvous, failure.seconds, failure.said),
         "see rank 0's report; if there is none, it was ended or its host cannot be reached any more"});
  } else if (!failure.said.empty()) {
    findings.push_back({Severity::error, "turned_away", fmt::format("rank 0 refused {}: this is {}", who, failure.said),
                        "start every rank once, with one WORLD_SIZE, one UNISONO_JOB and one version of the tool"});
  } else if (!failure.resolve_error.empty()) {
    findings.push_back({Severity::error, "rendezvous_name",
                        fmt::format("{}: the name in {} does not resolve: {}", who, cluster.rendezvous, failure.resolve_error),
                        "put the name into /etc/hosts or the name service, or give the address of rank 0's host as a number: "
                        "MASTER_ADDR, --rendezvous"});
  } else if (!failure.tries.empty()) {
    findings.push_back(unreachable_rendezvous(cluster, failure, who));
  }
}

}  // namespace

const char* name(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
    case Severity::hint: return "hint";
  }
  return "unknown";
}

std::string format_rate(double rate) {
  if (rate >= 1e9) return fmt::format("{:.2f} GB/s", rate / 1e9);
  if (rate >= 1e6) return fmt::format("{:.1f} MB/s", rate / 1e6);
  return fmt::format("{:.0f} kB/s", rate / 1e3);
}

std::string format_us(double us) { return us >= 1000 ? fmt::format("{:.1f} ms", us / 1000) : fmt::format("{:.0f} µs", us); }

std::string host_part(const std::string& address) {
  const auto host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

std::string interface_of(const MachineFacts& machine, const std::string& address) {
  const auto at =
      std::find_if(machine.offers.begin(), machine.offers.end(), [&](const Offer& offer) { return offer.address == address; });
  return at == machine.offers.end() ? "" : at->interface;
}

void find_in_machines(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  for (const auto* host : one_per_host(cluster)) {
    find_cores(cluster, *host, findings);
    find_limits(cluster, *host, findings);
    find_interfaces(cluster, *host, findings);
    find_names(*host, findings);
  }
  find_between_hosts(cluster, findings);
}

void find_in_rendezvous(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  if (cluster.rendezvous_failure) return find_rendezvous_failure(cluster, findings);
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < cluster.world_size; ++rank) {
    if (cluster.find(rank) == nullptr) missing.push_back(rank);
  }
  if (!missing.empty()) {
    findings.push_back({Severity::error, "missing",
                        fmt::format("{} of {} did not connect to {} within {:.1f} s; here: {}", format_ranks(missing),
                                    cluster.world_size, cluster.rendezvous, cluster.waited_seconds, here(cluster)),
                        "see their own reports: not started, another rendezvous address, or a firewall on rank 0's host that "
                        "does not let them in; --timeout gives them longer"});
  }
  for (const auto& who : cluster.turned_away) {
    findings.push_back({Severity::error, "turned_away", fmt::format("rank 0 refused {}", who),
                        "start every rank once, with one WORLD_SIZE, one UNISONO_JOB and one version of the tool"});
  }
  for (const auto rank : cluster.silent) {
    const auto* facts = cluster.find(rank);
    findings.push_back({Severity::error, "silent",
                        fmt::format("{} connected and then stopped answering rank 0",
                                    facts != nullptr ? name_of(*facts) : fmt::format("rank {}", rank)),
                        "see its own report; if there is none, it was ended or stopped, or long packets between it and rank "
                        "0's host get lost (MTU)"});
  }
}

std::vector<Finding> findings_of(const ClusterFacts& cluster) {
  std::vector<Finding> findings;
  find_in_rendezvous(cluster, findings);
  find_in_addresses(cluster, findings);
  find_in_pairs(cluster, findings);
  find_in_security(cluster, findings);
  find_in_machines(cluster, findings);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

}  // namespace unisono::cli

// Findings about pairs of ranks: at which addresses one rank reaches the other, and how good the link is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/doctor/doctor_findings.h"
#include "net/socket_address.h"

namespace unisono::cli {
namespace {

// A pair counts as slow if other pairs are this many times as fast. Noise alone causes only smaller differences.
constexpr double slow_factor = 3;
constexpr double thin_rate =
    3e8;  // Bytes per second. If a link between hosts is slower than this, encoding saves more time than it costs.
// Bytes per second of a connection. If two connections are faster than this, a difference between them comes from the
// processors, not from the links.
constexpr double processor_rate = 3e9;
constexpr double late_factor = 5;
// a round trip counts as late only if it takes this much longer than the round trips of other pairs
constexpr double late_least_us = 500;
// if the clocks of two hosts differ by this much, entries in their logs cannot be compared by time
constexpr double clock_warning_us = 1e6;
constexpr double clock_hint_us = 50e3;

// If several pairs of ranks on the same two hosts have the same finding, merges these findings into one. It describes the first
// pair.
class Grouped {
 public:
  void add(const std::string& key, Finding finding) {
    const auto [at, is_new] = index_.try_emplace(key, findings_.size());
    if (is_new) findings_.push_back({std::move(finding), 0});
    else ++findings_[at->second].second;
  }
  void move_to(std::vector<Finding>& findings) {
    for (auto& [finding, more] : findings_) {
      if (more > 0) finding.seen += fmt::format(" (and {} more pair{} of these hosts)", more, more == 1 ? "" : "s");
      findings.push_back(std::move(finding));
    }
  }

 private:
  std::map<std::string, size_t> index_;
  std::vector<std::pair<Finding, size_t>> findings_;
};

std::string tried(const Reach& reach) {
  std::string text;
  for (const auto& attempt : reach.tries) {
    if (!attempt.offered) continue;
    text += fmt::format("{}{} ({}): {} after {:.1f} s", text.empty() ? "" : "; ", attempt.address, attempt.interface,
                        attempt.error, attempt.seconds);
  }
  return text.empty() ? "it has no address that another host could reach" : text;
}

// Returns the address that `to` sees when `from` connects to it. A firewall rule needs this address.
std::string source_of(const ClusterFacts& cluster, const Reach& reach, const RankFacts& from) {
  if (const auto* back = cluster.reach(reach.to, reach.from)) {
    if (const auto* works = first_reached(*back)) return host_part(works->address);
  }
  for (const auto& offer : from.machine.offers) {
    if (offer.offered && offer.kind != "loopback") return offer.address;
  }
  return "<address>";
}

std::string remedy_for(const ClusterFacts& cluster, const Reach& reach, const RankFacts& from, const RankFacts& to) {
  const auto any = [&](Outcome outcome) {
    return std::any_of(reach.tries.begin(), reach.tries.end(),
                       [&](const AddressTry& a) { return a.offered && a.outcome == outcome; });
  };
  const auto source = source_of(cluster, reach, from);
  if (any(Outcome::no_answer)) {
    return fmt::format(
        "a firewall on host {1}, or between the hosts, drops what host {0} sends: let TCP from {2} in on host {1}, at all "
        "ports, because the kernel "
        "chooses them (iptables -I INPUT -p tcp -s {2} -j ACCEPT)",
        from.machine.host, to.machine.host, source);
  }
  if (any(Outcome::refused)) {
    return fmt::format(
        "a firewall on host {1} rejects what host {0} sends (iptables -I INPUT -p tcp -s {2} -j ACCEPT on host {1}), or the "
        "address belongs to "
        "another machine, too: then choose an interface with --interface (UNISONO_INTERFACE)",
        from.machine.host, to.machine.host, source);
  }
  if (any(Outcome::unauthenticated))
    return "the address is in use twice, or leads to another machine: choose another interface with --interface "
           "(UNISONO_INTERFACE)";
  return fmt::format(
      "host {} has no route to these addresses: see 'ip route', or choose an interface in a network of both hosts with "
      "--interface (UNISONO_INTERFACE)",
      from.machine.host);
}

// Returns why `machine` does not offer an address that works.
std::string why_not_offered(const MachineFacts& machine) {
  if (!machine.interface_asked.empty())
    return fmt::format("host {} is set to use interface {}", machine.host, machine.interface_asked);
  const auto offered = std::ranges::count(machine.offers, true, &Offer::offered);
  return fmt::format("host {} offers {} of its {} addresses, and none of these", machine.host, offered, machine.offers.size());
}

// If --interface excludes an address, or the host has so many that it does not offer this one, and the address works, adds the
// finding and returns true.
bool find_wrong_interface(const Reach& reach, const RankFacts& from, const RankFacts& to, Grouped& grouped) {
  const auto works = std::find_if(reach.tries.begin(), reach.tries.end(),
                                  [](const AddressTry& a) { return !a.offered && a.outcome == Outcome::reached; });
  if (works == reach.tries.end()) return false;
  const auto same = std::find_if(reach.tries.begin(), reach.tries.end(),
                                 [&](const AddressTry& a) { return a.offered && a.address == works->address; });
  // True: the address was offered, and it works if the kernel chooses the source address. So --interface on `from` is the
  // cause.
  const bool ours = same != reach.tries.end();
  const auto& blamed = ours ? from : to;
  const auto better = ours ? interface_of(from.machine, host_part(works->source)) : works->interface;
  const auto asked = blamed.machine.interface_asked;
  grouped.add(fmt::format("interface {} {}", blamed.machine.host, asked),
              {Severity::error, "wrong_interface",
               fmt::format("{} cannot reach {} because {}: {}; {} on {} answers", name_of(from), name_of(to),
                           why_not_offered(blamed.machine), tried(reach), works->address, works->interface),
               fmt::format("on host {}: --interface {} (UNISONO_INTERFACE={})", blamed.machine.host, better, better)});
  return true;
}

bool share_memory(const ClusterFacts& cluster, uint32_t a, uint32_t b) {
  return std::any_of(cluster.shared.begin(), cluster.shared.end(), [&](const Shared& s) {
    return s.error.empty() && ((s.from == a && s.to == b) || (s.from == b && s.to == a));
  });
}

void find_unreached(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  Grouped grouped;
  for (const auto& reach : cluster.reaches) {
    const auto *from = cluster.find(reach.from), *to = cluster.find(reach.to);
    if (from == nullptr || to == nullptr || first_reached(reach) != nullptr) continue;
    if (find_wrong_interface(reach, *from, *to, grouped)) continue;
    const auto* back = cluster.reach(reach.to, reach.from);
    const bool back_works = back != nullptr && first_reached(*back) != nullptr;
    const bool spared = share_memory(cluster, reach.from, reach.to);
    const auto* end = spared            ? "; they share memory, so only --transport tcp would fail"
                      : back_works      ? "; the other direction works, so a group forms only when chance lets that side dial"
                      : back == nullptr ? ""
                                        : "; the other direction is not known to work either";
    grouped.add(fmt::format("{} {} {}", from->machine.host, to->machine.host, back_works),
                {spared ? Severity::warning : Severity::error, back_works ? "one_direction" : "unreachable",
                 fmt::format("{} cannot connect to {}: {}{}", name_of(*from), name_of(*to), tried(reach), end),
                 remedy_for(cluster, reach, *from, *to)});
  }
  grouped.move_to(findings);
}

// Finds addresses that no other host can reach. Ranks that nobody can reach at any address are left out.
void find_dead_addresses(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  struct Fate {
    bool reached = false;
    bool first = false;     // true: it is tried before the address that works
    bool expected = false;  // true: most addresses of this kind cannot be reached from other hosts
    std::string seen;       // describes the first attempt that failed
    std::string good;       // the interface that has the address that works
    std::string host;
    std::string interface;
  };
  std::map<std::string, Fate> fates;
  for (const auto& reach : cluster.reaches) {
    const auto *from = cluster.find(reach.from), *to = cluster.find(reach.to);
    const auto* good = first_reached(reach);
    if (from == nullptr || to == nullptr || good == nullptr || same_host(*from, *to)) continue;
    for (const auto& attempt : reach.tries) {
      if (!attempt.offered) continue;
      const auto address = host_part(attempt.address);
      auto& fate = fates[to->machine.host + " " + address];
      if (attempt.outcome == Outcome::reached) fate.reached = true;
      if (attempt.outcome == Outcome::reached || !fate.seen.empty()) continue;
      fate = {.reached = fate.reached,
              .first = &attempt < good,
              .expected =
                  address.starts_with("fe80:") || address.starts_with("169.254.") || is_virtual_interface(attempt.interface),
              .seen = fmt::format("{} ({}) of host {} cannot be reached from host {}: {}", address, attempt.interface,
                                  to->machine.host, from->machine.host, attempt.error),
              .good = good->interface,
              .host = to->machine.host,
              .interface = attempt.interface};
    }
  }
  for (const auto& [key, fate] : fates) {
    // Every interface has a link-local address, and every container adds virtual interfaces, but few of these addresses are
    // routed. So such an address that does not work is reported only if it is tried before the address that works.
    if (fate.reached || fate.seen.empty() || (!fate.first && fate.expected)) continue;
    findings.push_back(
        {fate.first ? Severity::warning : Severity::hint, "dead_address",
         fate.seen + (fate.first ? "; it is tried before the one that works, which costs 0.1 s for each link"
                                 : "; it is tried after the one that works, so it costs nothing"),
         fmt::format("leave it out, on host {}: --interface {} (UNISONO_INTERFACE={})", fate.host, fate.good, fate.good)});
  }
}

struct Rate {
  const RankFacts* from;
  const RankFacts* to;
  double value;
};

// Returns a value that a quarter of the other pairs reach. The median would be misleading: if one of three hosts is slow, four
// of the six directions are slow.
double best_of_others(const std::vector<Rate>& rates, const Rate& one, bool more_is_better) {
  std::vector<double> others;
  for (const auto& rate : rates) {
    if (&rate != &one) others.push_back(rate.value);
  }
  if (others.empty()) return 0;
  std::sort(others.begin(), others.end());
  if (more_is_better) std::reverse(others.begin(), others.end());
  return others[others.size() / 4];
}

// Recommends codecs for slow links; see docs/design/methods/flash.md, "Advice that doctor gives".
void find_thin(std::vector<Rate> rates, std::vector<Finding>& findings) {
  if (rates.empty()) return;
  std::sort(rates.begin(), rates.end(), [](const Rate& a, const Rate& b) { return a.value > b.value; });
  const auto& good = rates[rates.size() / 4];
  if (good.value >= thin_rate) return;
  findings.push_back({Severity::hint, "thin_links",
                      fmt::format("links between hosts are thin: {} from {} to {}, and three quarters of the pairs have no "
                                  "more; a sum of fp32 elements takes as long as its bytes",
                                  format_rate(good.value), name_of(*good.from), name_of(*good.to)),
                      "if the tensors bear it, let elements travel in fewer bits: 8 first (UNISONO_CODEC=int8); where channels "
                      "have outliers, int4:spikes=on (4.625 bits on the wire) before "
                      "int4:group=32 (5.0); 2 bits only with spikes and error feedback. Compare at equal bits on the wire: "
                      "unisono codec compare FILE, unisono bench all-reduce --codec int8"});
}

// Only links between hosts are compared. Ranks on one host share memory, and the measurement over TCP would show what else the
// processors do.
void find_slow(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  std::vector<Rate> rates, trips;
  for (const auto& measured : cluster.measured) {
    const auto *from = cluster.find(measured.from), *to = cluster.find(measured.to);
    if (from == nullptr || to == nullptr || same_host(*from, *to)) continue;
    if (measured.forth_rate > 0) rates.push_back({from, to, measured.forth_rate});
    if (measured.back_rate > 0) rates.push_back({to, from, measured.back_rate});
    if (measured.round_trip_us > 0) trips.push_back({from, to, measured.round_trip_us});
  }
  Grouped grouped;
  for (const auto& rate : rates) {
    const auto usual = best_of_others(rates, rate, true);
    if (rate.value * slow_factor > std::min(usual, processor_rate)) continue;
    grouped.add(
        "slow " + rate.from->machine.host + " " + rate.to->machine.host,
        {Severity::warning, "slow_pair",
         fmt::format("{} sends to {} at {}; the best quarter of the other pairs reaches {}, {:.1f} times as much",
                     name_of(*rate.from), name_of(*rate.to), format_rate(rate.value), format_rate(usual), usual / rate.value),
         fmt::format("look at the link of these two hosts: negotiated speed (ethtool <interface>), errors (ip -s link), a "
                     "limit (tc qdisc show), the switch's port; "
                     "or leave the slow host out of --hosts")});
  }
  for (const auto& trip : trips) {
    const auto usual = best_of_others(trips, trip, false);
    if (usual <= 0 || trip.value < late_factor * usual || trip.value < usual + late_least_us) continue;
    grouped.add(
        "late " + trip.from->machine.host + " " + trip.to->machine.host,
        {Severity::warning, "late_pair",
         fmt::format(
             "the round trip between {} and {} takes {}; the best quarter of the other pairs needs {}, {:.1f} times less",
             name_of(*trip.from), name_of(*trip.to), format_us(trip.value), format_us(usual), trip.value / usual),
         "look at the way between these two hosts (tracepath), at queues on it (tc -s qdisc) and at other load on both"});
  }
  grouped.move_to(findings);
  find_thin(rates, findings);
}

void find_stuck(const ClusterFacts& cluster, const Measured& measured, Grouped& grouped) {
  const auto *from = cluster.find(measured.from), *to = cluster.find(measured.to);
  if (from == nullptr || to == nullptr) return;
  if (!measured.forth_stuck && !measured.back_stuck) {
    if (measured.error.empty()) return;
    grouped.add(
        "broken " + from->machine.host + " " + to->machine.host,
        {Severity::error, "broken_pair",
         fmt::format("{} reached {} at {}, but the measurement failed: {}", name_of(*from), name_of(*to), measured.address,
                     measured.error),
         "try again; if it fails again, packets of this pair get lost: ip -s link on both hosts, and the switch's counters"});
    return;
  }
  const auto& sender = measured.forth_stuck ? *from : *to;
  const auto& receiver = measured.forth_stuck ? *to : *from;
  const int headers = measured.address.starts_with('[') ? 60 : 40;
  const auto interface = interface_of(to->machine, host_part(measured.address));
  const auto both = measured.forth_stuck && measured.back_stuck ? ", and neither do they the other way" : "";
  const auto fits = measured.segment_passes > 0 ? fmt::format("; with segments of {} bytes they do", measured.segment_passes)
                                                : std::string("; no shorter segments that were tried get through either");
  const auto mtu = measured.segment_passes > 0 ? measured.segment_passes + static_cast<uint32_t>(headers) : 1280;
  grouped.add(
      "mtu " + sender.machine.host + " " + receiver.machine.host,
      {Severity::error, "mtu",
       fmt::format("from {} to {} short frames pass (round trip {}), full segments of {} bytes do not{}{}", name_of(sender),
                   name_of(receiver), format_us(measured.round_trip_us), measured.segment_bytes, both, fits),
       fmt::format("something on the way takes smaller packets and its ICMP 'fragmentation needed' is filtered: let ICMP pass, "
                   "or lower the MTU on both hosts "
                   "(on host {}: ip link set dev {} mtu {}), or sysctl -w net.ipv4.tcp_mtu_probing=1 on both",
                   to->machine.host, interface.empty() ? "<interface>" : interface, mtu)});
}

void find_clock(const ClusterFacts& cluster, const Measured& measured, Grouped& grouped) {
  const auto *from = cluster.find(measured.from), *to = cluster.find(measured.to);
  const auto apart = std::abs(measured.clock_ahead_us);
  if (from == nullptr || to == nullptr || same_host(*from, *to) || apart < clock_hint_us) return;
  grouped.add("clock " + from->machine.host + " " + to->machine.host,
              {apart >= clock_warning_us ? Severity::warning : Severity::hint, "clock",
               fmt::format("the clock of {} is {:.2f} s {} that of {} (uncertain by {}): their logs do not line up",
                           name_of(*to), apart / 1e6, measured.clock_ahead_us > 0 ? "ahead of" : "behind", name_of(*from),
                           format_us(measured.round_trip_us / 2)),
               "run a time service on both hosts (chrony, systemd-timesyncd); Unisono itself measures no time across hosts"});
}

void find_unshared(const ClusterFacts& cluster, Grouped& grouped) {
  for (const auto& shared : cluster.shared) {
    const auto *from = cluster.find(shared.from), *to = cluster.find(shared.to);
    if (from == nullptr || to == nullptr || shared.error.empty()) continue;
    grouped.add("shared " + from->machine.host, {Severity::error, "not_shared",
                                                 fmt::format("{} and {} are on one host but cannot share memory: {}",
                                                             name_of(*from), name_of(*to), shared.error),
                                                 "let the processes see each other (one user, no security profile between the "
                                                 "containers), or go without: --transport tcp"});
  }
}

}  // namespace

void find_in_addresses(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  find_unreached(cluster, findings);
  find_dead_addresses(cluster, findings);
}

void find_in_pairs(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  Grouped grouped;
  for (const auto& measured : cluster.measured) {
    find_stuck(cluster, measured, grouped);
    find_clock(cluster, measured, grouped);
  }
  find_unshared(cluster, grouped);
  grouped.move_to(findings);
  find_slow(cluster, findings);
  if (cluster.pairs_skipped > 0) {
    findings.push_back(
        {Severity::hint, "skipped",
         fmt::format("{} pairs were not measured: after a minute of measuring the doctor stops", cluster.pairs_skipped),
         "examine fewer ranks at a time; one per host tells most"});
  }
}

}  // namespace unisono::cli

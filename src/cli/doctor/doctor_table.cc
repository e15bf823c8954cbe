#include "cli/doctor/doctor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr size_t matrix_ranks_max = 16;  // a larger matrix does not fit on a screen

std::string limit_text(uint64_t limit, bool bytes) {
  if (limit == unlimited) return "unlimited";
  return bytes ? format_bytes(limit) : fmt::format("{}", limit);
}

std::string line(const std::string& title, const std::string& text) { return fmt::format("  {:<15} {}\n", title, text); }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string why_first(const Offer& offer, const MachineFacts& machine) {
  if (!machine.interface_asked.empty()) return "--interface asks for it";
  if (offer.kind == "global") return "global addresses come before link-local, virtual and loopback ones, IPv4 before IPv6";
  return fmt::format("there is nothing better than a {} address", offer.kind);
}

std::string interfaces_text(const MachineFacts& machine, bool verbose) {
  std::string text;
  const auto first =
      std::find_if(machine.offers.begin(), machine.offers.end(), [](const Offer& offer) { return offer.offered; });
  for (const auto& interface : machine.interfaces) {
    std::vector<std::string> addresses;
    for (const auto& offer : machine.offers) {
      if (offer.interface == interface.name)
        addresses.push_back(offer.address +
                            (verbose ? fmt::format(" ({}{})", offer.kind, offer.offered ? "" : ", not offered") : ""));
    }
    if (!interface.up && !verbose) continue;
    const auto* state = !interface.up ? "down" : interface.carrier ? "up" : "up, no carrier";
    text += line(text.empty() ? "interfaces" : "",
                 fmt::format("{:<10} {:<5} MTU {:<6} {}", interface.name, state, interface.mtu, joined(addresses)));
  }
  if (first != machine.offers.end())
    text += line("first choice", fmt::format("{} ({}): {}", first->address, first->interface, why_first(*first, machine)));
  return text;
}

std::string security_text(const SecurityFacts& facts) {
  if (facts.level == "off") return "not wanted (security is off)";
  if (!facts.key_error.empty()) return facts.key_error;
  return facts.key_source.empty() ? "none here; `unisono launch` makes one for each job" : "from " + facts.key_source;
}

std::string one_machine(const ClusterFacts& cluster, const RankFacts& rank, bool verbose) {
  const auto& machine = rank.machine;
  std::vector<uint32_t> ranks;
  for (const auto& other : cluster.ranks) {
    if (same_host(rank, other)) ranks.push_back(other.rank);
  }
  const auto alone = cluster.rendezvous == "none";
  auto text = fmt::format("host {}{}\n", machine.host, alone ? "" : ", " + format_ranks(ranks));
  text += line("processor",
               fmt::format("{}, {} of {} cores{}", machine.processor, machine.cores_allowed.size(), machine.cores_online,
                           machine.cores_quota > 0 ? fmt::format(", control group grants {:g}", machine.cores_quota) : ""));
  text += line("kernel", fmt::format("{}, clock source {}, TCP {}", machine.kernel,
                                     machine.clock_source.empty() ? "unknown" : machine.clock_source,
                                     machine.congestion_control.empty() ? "unknown" : machine.congestion_control));
  text += line("limits", fmt::format("descriptors {}, locked memory {}, file size {}", limit_text(machine.descriptors, false),
                                     limit_text(machine.locked_bytes, true), limit_text(machine.file_bytes, true)));
  const auto arena = rank.transport == "tcp"       ? "not wanted (--transport tcp)"
                     : machine.arena_error.empty() ? "can be made"
                                                   : machine.arena_error;
  text += line("shared memory",
               fmt::format("{}; /dev/shm {}", arena,
                           machine.shm_bytes == 0 ? "is not there (not needed)"
                                                  : fmt::format("{}, {} free (not needed)", format_bytes(machine.shm_bytes),
                                                                format_bytes(machine.shm_free_bytes))));
  text += line("key", security_text(rank.security));
  text += line("own name", machine.name_error.empty()
                               ? fmt::format("{} resolves to {}", machine.host, joined(machine.name_addresses))
                               : machine.name_error);
  return text + interfaces_text(machine, verbose);
}

// Formats a matrix. For each ordered pair of ranks, cell(from, to) gives the text. An empty text is shown as a dash.
std::string matrix(const ClusterFacts& cluster, const std::string& title,
                   const std::function<std::string(uint32_t, uint32_t)>& cell) {
  const auto count = std::min(cluster.ranks.size(), matrix_ranks_max);
  std::string text = "\n" + title +
                     (count < cluster.ranks.size() ? fmt::format(" (the first {} ranks; --json has all)", count) : "") +
                     "\n     ";
  for (size_t j = 0; j < count; ++j) text += fmt::format(" {:>8}", cluster.ranks[j].rank);
  for (size_t i = 0; i < count; ++i) {
    text += fmt::format("\n{:>5}", cluster.ranks[i].rank);
    for (size_t j = 0; j < count; ++j) {
      const auto value = i == j ? std::string("·") : cell(cluster.ranks[i].rank, cluster.ranks[j].rank);
      text += fmt::format(" {:>8}", value.empty() ? "-" : value);
    }
  }
  return text + "\n";
}

const Measured* measured_of(const ClusterFacts& cluster, uint32_t a, uint32_t b) {
  const auto at = std::find_if(cluster.measured.begin(), cluster.measured.end(),
                               [&](const Measured& m) { return (m.from == a && m.to == b) || (m.from == b && m.to == a); });
  return at == cluster.measured.end() ? nullptr : &*at;
}

std::string tries_text(const ClusterFacts& cluster) {
  std::string text = "\naddresses tried\n";
  for (const auto& reach : cluster.reaches) {
    for (const auto& attempt : reach.tries) {
      text +=
          fmt::format("  {} -> {}  {} ({}){}: {} after {:.4f} s{}\n", reach.from, reach.to, attempt.address, attempt.interface,
                      attempt.offered ? "" : ", not offered", attempt.outcome == Outcome::reached ? "reached" : attempt.error,
                      attempt.seconds, attempt.source.empty() ? "" : ", from " + attempt.source);
    }
  }
  return text;
}

std::string shared_text(const ClusterFacts& cluster) {
  std::vector<std::string> pairs;
  for (const auto& shared : cluster.shared) {
    if (shared.error.empty()) pairs.push_back(fmt::format("{}-{}", shared.from, shared.to));
  }
  return pairs.empty() ? "" : fmt::format("\npairs that share memory: {}\n", joined(pairs));
}

std::string counted(size_t count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

}  // namespace

std::string machine_text(const ClusterFacts& cluster, bool verbose) {
  std::string text;
  for (size_t i = 0; i < cluster.ranks.size(); ++i) {
    const auto& rank = cluster.ranks[i];
    const auto first = std::find_if(cluster.ranks.begin(), cluster.ranks.end(),
                                    [&](const RankFacts& other) { return same_host(other, rank); });
    if (first->rank == rank.rank) text += (text.empty() ? "" : "\n") + one_machine(cluster, rank, verbose);
  }
  return text;
}

std::string pair_text(const ClusterFacts& cluster, bool verbose) {
  if (cluster.ranks.size() < 2) return {};
  auto text = matrix(cluster, "which ranks reach which over TCP: the row dials", [&](uint32_t a, uint32_t b) -> std::string {
    const auto* reach = cluster.reach(a, b);
    if (reach == nullptr) return "";
    return first_reached(*reach) != nullptr ? "yes" : "NO";
  });
  text += matrix(cluster, "round trip of a short TCP frame, µs", [&](uint32_t a, uint32_t b) -> std::string {
    const auto* measured = measured_of(cluster, a, b);
    return measured == nullptr || measured->round_trip_us <= 0 ? "" : fmt::format("{:.0f}", measured->round_trip_us);
  });
  text += matrix(cluster, "bandwidth of one TCP connection, MB/s: the row sends", [&](uint32_t a, uint32_t b) -> std::string {
    const auto* measured = measured_of(cluster, a, b);
    if (measured == nullptr) return "";
    if (measured->from == a ? measured->forth_stuck : measured->back_stuck) return "stuck";
    const double rate = measured->from == a ? measured->forth_rate : measured->back_rate;
    return rate <= 0 ? "" : fmt::format("{:.{}f}", rate / 1e6, rate < 1e8 ? 1 : 0);
  });
  text += shared_text(cluster);
  return verbose ? text + tries_text(cluster) : text;
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text = "\nfindings\n";
  size_t counts[3] = {};
  for (const auto& finding : findings) {
    text += fmt::format("  {:<8} {}\n           fix: {}\n", name(finding.severity), finding.seen, finding.remedy);
    ++counts[static_cast<size_t>(finding.severity)];
  }
  return text +
         fmt::format("  {}, {}, {}\n", counted(counts[0], "error"), counted(counts[1], "warning"), counted(counts[2], "hint"));
}

std::string report_json(const ClusterFacts& cluster, const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back(
        {{"severity", name(finding.severity)}, {"code", finding.code}, {"seen", finding.seen}, {"mend", finding.remedy}});
  }
  const nlohmann::json report = {{"kind", "doctor"}, {"facts", cluster}, {"findings", std::move(list)}};
  return report.dump() + "\n";
}

}  // namespace unisono::cli

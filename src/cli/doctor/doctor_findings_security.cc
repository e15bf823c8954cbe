// The findings about the secret keys of the ranks.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/common/text.h"
#include "cli/doctor/doctor_findings.h"

namespace unisono::cli {
namespace {

// Returns whether the key of each rank could be read, so that the keys can be compared.
bool find_unusable_keys(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  bool all_usable = true;
  for (const auto& rank : cluster.ranks) {
    if (rank.security.key_error.empty()) continue;
    all_usable = false;
    findings.push_back(
        {Severity::error, "bad_key", fmt::format("{} has no usable key: {}", name_of(rank), rank.security.key_error),
         "make a key with `unisono key --output FILE`, copy it to all hosts, and give the file to UNISONO_KEY_FILE "
         "there; only its owner, or a group, may read it (chmod 600)"});
  }
  return all_usable;
}

}  // namespace

void find_in_security(const ClusterFacts& cluster, std::vector<Finding>& findings) {
  if (!find_unusable_keys(cluster, findings) || cluster.ranks.empty()) return;
  const auto& first = cluster.ranks.front();
  std::vector<uint32_t> others;
  for (const auto& rank : cluster.ranks) {
    if (rank.security.key_mark != first.security.key_mark) others.push_back(rank.rank);
  }
  if (!others.empty()) {
    const auto source = first.security.key_source.empty() ? std::string("no key") : first.security.key_source;
    findings.push_back({Severity::error, "keys_differ",
                        fmt::format("rank {} and {} do not have the same key; rank {} has {}", first.rank, format_ranks(others),
                                    first.rank, source),
                        "give all ranks the same key, or start them with `unisono launch`, which does this"});
    return;
  }
  const bool beyond_host = std::ranges::any_of(cluster.ranks, [&](const RankFacts& rank) { return !same_host(rank, first); });
  if (beyond_host && first.security.key_mark.empty() && first.security.level != "off") {
    findings.push_back({Severity::hint, "no_key", "no rank has a key, so links between hosts are not encrypted",
                        "start the ranks with `unisono launch`, or give all of them a key (UNISONO_KEY_FILE); "
                        "UNISONO_SECURITY=off says that you want none"});
  }
}

}  // namespace unisono::cli

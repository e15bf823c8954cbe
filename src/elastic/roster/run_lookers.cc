#include "elastic/roster/run_lookers.h"

#include <algorithm>

namespace unisono {
namespace {

bool listens_at(const PeerEntry& entry, const std::string& address) {
  return std::ranges::find(entry.facts.addresses, address) != entry.facts.addresses.end();
}

}  // namespace

void RunLookers::add(const PeerId& from, const std::vector<PeerClaim>& claims) {
  if (claims.empty() || claims.front().entry.id != from || entries_.size() >= most) return;
  entries_[from] = claims.front().entry;
}

std::string RunLookers::name_at(const std::string& address) const {
  for (const auto& [id, entry] : entries_) {
    if (listens_at(entry, address)) return entry.facts.name.empty() ? "a process without a name" : entry.facts.name;
  }
  return {};
}

std::string RunLookers::not_at(std::span<const std::string> addresses) const {
  std::string names;
  for (const auto& looker : entries_) {
    const auto& entry = looker.second;
    if (std::ranges::none_of(addresses, [&](const std::string& one) { return listens_at(entry, one); }))
      names += (names.empty() ? "" : ", ") + label(entry);
  }
  return names;
}

}  // namespace unisono

// The processes that answered a joining process that they are themselves still looking for the run. The joiner names them if it
// finds no run: then it may be that nobody has begun one. Holds at most `most` processes; others are dropped. A value.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "elastic/roster/peer_roster.h"
#include "wire/peer_id.h"

namespace unisono {

class RunLookers {
 public:
  static constexpr size_t most = 64;

  // Takes an answer of the process `from`. Its first claim must be the process's own entry, or the answer is ignored.
  void add(const PeerId& from, const std::vector<PeerClaim>& claims);
  bool empty() const { return entries_.empty(); }
  // Returns the name of the process that listens at the address, or an empty text if none of these processes does.
  std::string name_at(const std::string& address) const;
  // Names those processes that say that they listen at none of these addresses. They may be behind an address translator.
  std::string not_at(std::span<const std::string> addresses) const;

 private:
  std::map<PeerId, PeerEntry> entries_;
};

}  // namespace unisono

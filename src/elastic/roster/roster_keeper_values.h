// Options of a RosterKeeper, and the values that it returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "elastic/layout/moshpit_grid.h"
#include "elastic/roster/peer_roster.h"
#include "elastic/roster/roster_messages.h"
#include "elastic/wire/elastic_times.h"
#include "wire/peer_id.h"

namespace unisono {

struct KeeperOptions {
  std::string run_id;
  ElasticTimes times;
  std::vector<std::string> seeds;  // addresses; any one that answers is enough
  bool found = false;              // begin the run instead of joining it
  uint32_t min_peers = 1;          // peers with a vector of their own that must be there before the first layout
  uint32_t max_peers = roster_peers_max;
  GridKind grid = GridKind::fitted;
  uint32_t max_group = 32;
  std::vector<uint32_t> dims;  // for tests: used where they fit the peers; otherwise dims are fitted
  uint64_t seed = 0;           // of all random choices
};

struct RosterSend {
  PeerId to;  // zero: the process that listens at the address
  std::string address;
  RosterMessage message;
};

struct RosterEvent {
  PeerId peer;
  PeerStatus before = PeerStatus::joining;
  PeerStatus now = PeerStatus::joining;
  bool added = false;  // not known before; `before` is then meaningless
  std::string why;
};

enum class JoinState : uint8_t { idle, joining, joined, failed, left };

struct KeeperCounters {
  uint64_t foreign = 0;          // messages of other runs
  uint64_t unauthenticated = 0;  // messages of processes that are not in the roster
  uint64_t full = 0;             // entries refused because max_peers are present
  uint64_t suspicions = 0;       // suspicions raised by this process's own probes
  uint64_t refutations = 0;      // times that this process refuted a report that it is suspect or dead
  uint64_t naps = 0;             // times that it woke up much too late, and therefore judged no peer
  uint64_t layouts_made = 0;
};

}  // namespace unisono

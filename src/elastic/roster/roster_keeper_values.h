// What a roster's keeper is made from, and what comes out of it.
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
  bool found = false;              // begin the run rather than join it
  uint32_t min_peers = 1;          // with a vector of their own, before the first layout
  uint32_t max_peers = roster_peers_max;
  GridKind grid = GridKind::fitted;
  uint32_t max_group = 32;
  std::vector<uint32_t> dims;  // for tests: a grid where they fit; else one is fitted
  uint64_t seed = 0;           // of all random choices
};

struct RosterSend {
  PeerId to;  // zero: whoever listens at the address
  std::string address;
  RosterMessage message;
};

struct RosterNews {
  PeerId peer;
  PeerStatus before = PeerStatus::joining;
  PeerStatus now = PeerStatus::joining;
  bool added = false;  // not known before: `before` says nothing
  std::string why;
};

enum class JoinState : uint8_t { idle, joining, joined, failed, left };

struct KeeperCounters {
  uint64_t foreign = 0;          // messages of other runs
  uint64_t unauthenticated = 0;  // messages of processes that the roster did not know
  uint64_t full = 0;             // entries refused because max_peers are present
  uint64_t suspicions = 0;       // of others, by this process's own probes
  uint64_t refutations = 0;      // this process contradicted that it is suspect or dead
  uint64_t naps = 0;             // it woke up much too late, and judged nobody for it
  uint64_t layouts_made = 0;
};

}  // namespace unisono

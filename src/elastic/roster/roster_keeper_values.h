// The options of a RosterKeeper, and the types of its results.
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
  std::vector<std::string> seeds;  // addresses of seeds; it is enough if one of them answers
  bool found = false;              // true: begin a new run instead of joining one
  Nanos join_timeout = 0;          // joining fails if no seed has welcomed this process by then; 0: times.heal_period
  // The first layout is made when at least this many peers that have a vector are present.
  uint32_t min_peers = 1;
  uint32_t max_peers = roster_peers_max;
  GridKind grid = GridKind::fitted;
  uint32_t max_group = 32;
  std::vector<uint32_t> dims;  // tests set these dimensions; they are used if they fit the number of peers
  uint64_t seed = 0;           // determines all random choices
};

struct RosterSend {
  PeerId to;  // PeerId{}: whichever process listens at `address`
  std::string address;
  RosterMessage message;
};

struct RosterEvent {
  PeerId peer;
  PeerStatus before = PeerStatus::joining;
  PeerStatus now = PeerStatus::joining;
  bool added = false;  // true: the peer was unknown before, so `before` has no meaning
  std::string why;
};

enum class JoinState : uint8_t { idle, joining, joined, failed, left };

struct KeeperCounters {
  uint64_t foreign = 0;          // messages from other runs
  uint64_t unauthenticated = 0;  // messages from processes that are not in the roster
  uint64_t full = 0;             // entries that were refused because max_peers peers are present
  uint64_t suspicions = 0;       // suspicions that came from this process's own probes
  // How often this process refuted a report that it is suspect or gone.
  uint64_t refutations = 0;
  // How often this process woke up too late, and therefore postponed its deadlines for other peers.
  uint64_t late_wakeups = 0;
  uint64_t layouts_made = 0;
};

}  // namespace unisono

// An elastic run in virtual time: the shipped MoshpitPeers on virtual links. Each peer has a loop that trains (waits) and
// averages.
//
// Tests and studies observe the run through callbacks. Faults are those of ElasticNetwork, and processes that join later.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "elastic/peer/moshpit_peer.h"
#include "elastic/roster/peer_slots.h"
#include "sim/elastic/elastic_network.h"

namespace unisono::sim {

struct ElasticClusterOptions {
  ElasticLinkModel links;
  MoshpitSettings settings;  // of all peers; the cluster fills in self, name, addresses, seeds, found and seed
  uint64_t seed = 0;
  Nanos compute = 10 * millisecond;  // between a peer's averaging steps
  Nanos compute_jitter = 0;
  uint32_t seeds_given = 4;  // number of living earlier peers whose addresses a joiner gets
};

// One process and its loop.
struct ElasticMember;

class ElasticCluster {
 public:
  explicit ElasticCluster(const ElasticClusterOptions& options);
  ~ElasticCluster();

  // The first peer founds the run. Returns the peer's index.
  uint32_t add(Nanos at = 0);
  uint32_t add(const MoshpitSettings& settings, Nanos at);
  void kill(uint32_t index);
  void leave(uint32_t index);
  // Checks again whether the peer continues with another averaging step.
  void recheck(uint32_t index);
  ElasticNetwork& network() { return network_; }
  MoshpitPeer* peer(uint32_t index);
  size_t size() const;
  uint32_t index_of(const PeerId& id) const;
  PeerId id_of(uint32_t index) const;

  // Sets the values that a peer averages in its next averaging step, and returns their weight. Default: its current values,
  // weight 1.
  std::function<double(uint32_t index, std::vector<float>& values)> prepare;
  std::function<void(uint32_t index, const FinishedStep& step)> on_step;
  std::function<void(uint32_t index, const ElasticState& state)> on_loaded;  // a joiner has received the run's state
  // A peer's initial values.
  std::function<std::vector<float>(uint32_t index)> initial;
  // Whether a peer continues with another averaging step; default: always.
  std::function<bool(uint32_t index)> goes_on;

  bool run(Nanos until, const std::function<bool()>& done = {}) { return network_.run(until, done); }
  Nanos now() const { return network_.now(); }
  // All live peers hold the same layout, which names all of them.
  bool settled();
  const std::vector<float>& values(uint32_t index) const;

 private:
  friend struct ElasticMember;

  ElasticClusterOptions options_;
  ElasticNetwork network_;
  Random random_;
  std::vector<std::unique_ptr<ElasticMember>> members_;
  PeerSlots indices_;
};

}  // namespace unisono::sim

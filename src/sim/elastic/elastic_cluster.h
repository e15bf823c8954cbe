// An elastic run in virtual time. Its peers are objects of the production class MoshpitPeer, on virtual links. Each peer
// alternates between training, which is only a pause here, and averaging.
//
// Tests and studies observe the run through callbacks. ElasticNetwork provides the faults. Processes can join later.
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
  // The settings of all peers. The cluster itself sets `self`, `name`, `addresses`, `seeds`, `found` and `seed`.
  MoshpitSettings settings;
  uint64_t seed = 0;
  Nanos compute = 10 * millisecond;  // pause of a peer between two averaging steps
  Nanos compute_jitter = 0;
  uint32_t seeds_given = 4;  // a joining peer gets the addresses of this many living peers
};

// One process and its training loop.
struct ElasticMember;

class ElasticCluster {
 public:
  explicit ElasticCluster(const ElasticClusterOptions& options);
  ~ElasticCluster();

  // Adds a peer at time `at` and returns the peer's index. The first peer founds the run.
  uint32_t add(Nanos at = 0);
  uint32_t add(const MoshpitSettings& settings, Nanos at);
  void kill(uint32_t index);
  void leave(uint32_t index);
  // Evaluates should_continue() again for the peer.
  void check_continue(uint32_t index);
  ElasticNetwork& network() { return network_; }
  MoshpitPeer* peer(uint32_t index);
  size_t size() const;
  uint32_t index_of(const PeerId& id) const;
  PeerId id_of(uint32_t index) const;

  // Is called before each averaging step of a peer. Sets the values that the peer contributes, and returns their weight.
  // Without this callback, the peer contributes its current values with weight 1.
  std::function<double(uint32_t index, std::vector<float>& values)> prepare;
  std::function<void(uint32_t index, const FinishedStep& step)> on_step;
  // is called when a joining peer has received the run's state
  std::function<void(uint32_t index, const ElasticState& state)> on_loaded;
  // Returns the initial values of a peer.
  std::function<std::vector<float>(uint32_t index)> initial;
  // Returns whether a peer continues with another averaging step. Default: always.
  std::function<bool(uint32_t index)> should_continue;

  bool run(Nanos until, const std::function<bool()>& done = {}) { return network_.run(until, done); }
  Nanos now() const { return network_.now(); }
  // Returns whether all living peers hold one layout that contains all living peers.
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

// The state that a peer loads when it joins, and the state that it offers to joiners.
//
// Once the peer knows the roster, it loads the state from other peers, if any peer has one. Then settled() becomes true. After
// each averaging step, the peer keeps the values for joiners. The memory of these values does not change, so neither averaging
// nor the user's tensors have to wait for a joiner.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "elastic/peer/elastic_port.h"
#include "elastic/peer/moshpit_settings.h"
#include "elastic/roster/roster_keeper.h"
#include "elastic/round/chunk_values.h"
#include "elastic/state/state_copy.h"
#include "elastic/state/state_donor.h"
#include "elastic/state/state_loader.h"
#include "unisono/elastic.h"

namespace unisono {

class MoshpitState {
 public:
  MoshpitState(const MoshpitSettings& settings, const ChunkTable& table);

  bool settled() const { return stage_ == Stage::settled; }
  bool loading() const { return stage_ == Stage::loading; }
  // Returns true if the run had made averaging steps before this process joined. If so, this peer's values have weight 0 in its
  // first averaging step.
  bool newcomer() const { return newcomer_; }
  std::optional<ElasticState> take_loaded() { return std::exchange(loaded_, std::nullopt); }

  // Sets the blobs that joiners get together with the values of the next keep().
  void set_blobs(std::vector<NamedBlob> blobs);
  // Sets the values that joiners get from now on. If `step` is -1, no averaging step has been made yet.
  void keep(int64_t step, const ChunkValues& values, RosterKeeper& keeper, Nanos now);
  void set_bandwidth(double bytes_per_second) { donor_.set_bandwidth(bytes_per_second); }

  // Handles a message. Returns the error corrupt if no correct peer would send it.
  Status message(const PeerId& from, const SharedBuffer& message, Nanos now);
  void peer_gone(const PeerId& peer, Nanos now);
  void roster_changed() { sources_changed_ = true; }
  void leave() { donor_.leave(); }
  void woke(Nanos now);
  Nanos next_deadline() const;
  // Sends pending messages. Begins to load the state once the roster is known. Returns true if anything happened.
  bool act(RosterKeeper& keeper, ElasticPort& port, Nanos now);

  uint32_t serving() const { return donor_.serving(); }

 private:
  enum class Stage : uint8_t { joining, loading, settled };

  void begin_loading(RosterKeeper& keeper, Nanos now);
  void end_loading(Result<LoadedState> outcome, RosterKeeper& keeper, Nanos now);
  void settle(RosterKeeper& keeper, Nanos now);
  std::vector<StateSource> sources(const RosterKeeper& keeper) const;

  PeerId self_;
  ElasticRole role_;
  uint64_t schema_;
  ElasticTimes times_;
  ChunkTable table_;
  std::vector<size_t> chunk_bytes_;
  std::optional<std::vector<StateBlob>> blobs_;
  StateCopy copy_;
  StateDonor donor_;
  std::unique_ptr<StateLoader> loader_;
  Stage stage_ = Stage::joining;
  bool newcomer_ = false;
  bool sources_changed_ = false;
  Nanos loading_since_ = 0;
  std::optional<ElasticState> loaded_;
};

}  // namespace unisono

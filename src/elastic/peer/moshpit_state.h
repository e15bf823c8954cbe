// The state that a peer offers to joiners, and the state that it loads when it joins.
//
// From the moment that the roster is known until settled(), it loads the state from other peers, if any has one. After each
// averaging step it keeps the values for joiners. Their memory does not change, so neither averaging nor the user's tensors
// wait for a joiner.
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
  // The run had made averaging steps before this process joined, so this peer gives nothing to the first one that it takes part
  // in.
  bool newcomer() const { return newcomer_; }
  std::optional<ElasticState> take_loaded() { return std::exchange(loaded_, std::nullopt); }

  // Offered together with the values of the next keep().
  void set_blobs(std::vector<NamedBlob> blobs);
  // Sets the values that joiners get from now on. step -1: no averaging step has been made yet.
  void keep(int64_t step, const ChunkValues& values, RosterKeeper& keeper, Nanos now);
  void set_bandwidth(double bytes_per_second) { donor_.set_bandwidth(bytes_per_second); }

  // Error: corrupt, for a message that no correct peer would send.
  Status message(const PeerId& from, const SharedBuffer& message, Nanos now);
  void peer_gone(const PeerId& peer, Nanos now);
  void roster_changed() { sources_changed_ = true; }
  void leave() { donor_.leave(); }
  void woke(Nanos now);
  Nanos next_deadline() const;
  // Sends pending messages, and begins loading once the roster is known. True if anything happened.
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

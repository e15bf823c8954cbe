// One complete peer of an elastic run: roster, coordinator, seeker, rounds, state for joiners. A state machine that
// elastic/peer/elastic_run drives in real time and sim/elastic/elastic_cluster in virtual time. It sends through an ElasticPort
// only.
//
// It runs one averaging step at a time: begin_step() takes the values, take_step() returns them, averaged as far as it went.
// Between and during averaging steps it answers other peers: as coordinator, as member of rounds that have ended here, as
// donor. Each part decodes its own messages, and counts those that it cannot use.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/group_seeker.h"
#include "elastic/layout/moshpit_key.h"
#include "elastic/peer/elastic_group.h"
#include "elastic/peer/elastic_port.h"
#include "elastic/peer/moshpit_settings.h"
#include "elastic/peer/moshpit_state.h"
#include "elastic/roster/flat_advice.h"
#include "elastic/roster/roster_keeper.h"
#include "elastic/round/chunk_table.h"
#include "elastic/round/moshpit_round.h"
#include "unisono/elastic.h"

namespace unisono {

class MoshpitGroup;
struct MoshpitAveraging;

class MoshpitPeer {
 public:
  // The port must outlive the peer.
  MoshpitPeer(const MoshpitSettings& settings, ElasticPort& port);
  ~MoshpitPeer();

  Status start(Nanos now);
  // Events from the port. ----------------------------------------------------------------------------------------------
  void received(const PeerId& from, SharedBuffer message, Nanos now);
  void link_lost(const PeerId& peer, const Status& why, bool refused, Nanos now);
  void address_failed(const std::string& address, const Status& why, Nanos now);
  void credit(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;

  // Joining. -----------------------------------------------------------------------------------------------------------
  //
  // ok while joining is under way or has succeeded; else the reason of the failure.
  const Status& join_status() const { return keeper_.join_status(); }
  // The peer knows the roster, and has loaded the state if there was any.
  bool joined() const { return state_.settled(); }
  // The peer has joined, min_peers are there, and there is a layout.
  bool ready() const { return joined() && keeper_.newest_layout() != nullptr && keeper_.settled(); }
  // The loaded state, once, after joined().
  std::optional<ElasticState> take_state() { return state_.take_loaded(); }

  // Averaging steps. ---------------------------------------------------------------------------------------------------
  //
  // values: `elements` fp32; none for a reducer. Errors. invalid: an averaging step is under way. unavailable: after leave().
  Status begin_step(StepInput input, Nanos now);
  // Ends the averaging step under way: after the current round, or at once if no round has begun.
  void cancel_step(Nanos now);
  std::optional<FinishedStep> take_step();
  bool averaging() const { return step_ != nullptr; }

  // State for joiners. -------------------------------------------------------------------------------------------------
  void set_blobs(std::vector<NamedBlob> blobs) { state_.set_blobs(std::move(blobs)); }
  // Measured, in bytes/s; decides this peer's share of a group's chunks.
  void set_bandwidth(double bytes_per_second, Nanos now);
  // Sending rate in bytes/s; joiners are given a part of it.
  void set_sending_rate(double bytes_per_second) { state_.set_bandwidth(bytes_per_second); }
  // As RosterKeeper::set_seeds.
  void set_seeds(const std::vector<std::string>& addresses, Nanos now);
  void offer_values(const SharedBuffer& values, Nanos now);

  // Begins no new averaging step. The current round may end within the grace; otherwise the group is told to go on without this
  // peer.
  void leave(Nanos now);
  bool left() const { return left_; }

  ElasticStatus status(Nanos now) const;
  // This peer's rank in an ordinary group of all peers of the newest layout, and the address of that group's rendezvous.
  Result<ElasticGroupLocation> group_location() const;
  void tell_address(const std::string& address, Nanos now);
  const RosterKeeper& keeper() const { return keeper_; }
  uint64_t refused() const { return refused_; }
  size_t groups_kept() const { return groups_.size(); }
  size_t held_bytes() const;  // of messages that wait for their group's descriptor, and of groups

 private:
  // moshpit_peer.cc
  void act(Nanos now);
  bool act_roster(Nanos now);
  bool act_formation(Nanos now);
  void on_roster(const PeerId& from, const SharedBuffer& message, Nanos now);
  void on_formation(const PeerId& from, const SharedBuffer& message, Nanos now);
  void on_state(const PeerId& from, const SharedBuffer& message, Nanos now);
  void peer_gone(const RosterEvent& news, Nanos now);
  void refuse(const PeerId& from, const Status& why);
  void send_formation(const FormationSend& one);

  // moshpit_groups.cc: the current round, and rounds that have ended here but not at other members
  void on_round(const PeerId& from, SharedBuffer message, Nanos now);
  bool begin_round(const GroupDescriptor& descriptor, Nanos now);
  bool act_groups(Nanos now);
  void hold_early(const GroupId& id, const PeerId& from, SharedBuffer message, Nanos now);
  void drop_groups(Nanos now);
  void member_gone(const PeerId& peer, MemberLoss why, Nanos now);
  RoundSummary summary_of(const MoshpitGroup& group) const;
  std::string label_of(const PeerId& peer) const;

  // averaging_step.cc
  bool act_step(Nanos now);
  bool choose_layout(Nanos now);
  const Layout* layout_to_take(bool patience_over);
  void take_layout(const Layout& layout);
  void skip_steps();
  void begin_seeking(Nanos now);
  void take_outcome(const SeekOutcome& outcome, Nanos now);
  void take_outcome(const SeekClosed& closed, Nanos now);
  void take_outcome(const SeekStale& stale, Nanos now);
  void pass_round(const char* outcome, Nanos now);
  void end_round(RoundSummary summary, Nanos now);
  void end_step(Nanos now);
  SeekRequest request_for(uint32_t round) const;

  struct Early {  // messages of a group whose descriptor has not arrived
    Nanos since = 0;
    std::deque<std::pair<PeerId, SharedBuffer>> messages;
  };
  static constexpr size_t early_groups_max = 16;
  static constexpr size_t groups_kept_max = 32;  // ended here; late members still ask for their results
  static constexpr size_t groups_forgotten_max = 256;

  MoshpitSettings settings_;
  ElasticPort& port_;
  ChunkTable table_;
  RosterKeeper keeper_;
  GroupCoordinator coordinator_;
  GroupSeeker seeker_;
  MoshpitState state_;
  std::deque<FormationSend> own_messages_;  // messages from this process to itself

  std::unique_ptr<MoshpitGroup> group_;               // the group of the current round
  std::deque<std::unique_ptr<MoshpitGroup>> groups_;  // groups whose rounds ended here, newest last
  std::deque<GroupId> forgotten_;                     // groups that this process has dropped; their messages are ignored
  std::map<GroupId, Early> early_;
  size_t early_bytes_ = 0;
  Nanos drop_at_ = never;

  std::unique_ptr<MoshpitAveraging> step_;
  std::optional<FinishedStep> finished_;
  uint64_t next_step_ = 0;
  std::map<uint32_t, std::vector<PeerId>> missing_;  // by round, from the latest averaging step with that round
  MoshpitKey key_;                                   // under the latest averaging step's layout, if it has keys
  bool reported_inexact_ = false;
  std::vector<bool> newcomer_;  // by chunk: takes the mean and gives nothing until the chunk has been committed once
  uint64_t steps_done_ = 0, exact_averaging_steps_ = 0;
  FlatAdvice advice_;

  Nanos leave_by_ = never;  // end of the grace after leave(); `never` before
  bool left_ = false;
  uint64_t refused_ = 0;
  std::string last_refusal_;
  bool acting_ = false;
};

}  // namespace unisono

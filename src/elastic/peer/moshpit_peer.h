// One complete peer of an elastic run: roster, coordinator, seeker, rounds, and state for joiners. It is a state machine that
// sends only through an ElasticPort. elastic/peer/elastic_run drives it in real time, and sim/elastic/elastic_cluster drives it
// in virtual time.
//
// A peer runs one averaging step at a time. begin_step() takes the values, and take_step() returns them, averaged by the rounds
// that succeeded. The peer also answers other peers at any time: it coordinates groups, gives its state to joiners, and answers
// members of rounds that have ended here. Each part of the peer decodes its own messages, and counts those that it cannot use.
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
struct AbsentPeer;
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
  // Returns ok while joining is under way or has succeeded. Otherwise returns why it failed.
  const Status& join_status() const { return keeper_.join_status(); }
  // Returns true once the peer knows the roster, and has loaded the run's state if another peer has one.
  bool joined() const { return state_.settled(); }
  // Returns true once the peer has joined, there is a layout, and this peer knows all peers of the newest layout. The first
  // layout is made when min_peers peers are present.
  bool ready() const { return joined() && keeper_.newest_layout() != nullptr && keeper_.settled(); }
  // Returns the loaded state once, after joined() has become true.
  std::optional<ElasticState> take_state() { return state_.take_loaded(); }

  // Averaging steps. ---------------------------------------------------------------------------------------------------
  //
  // Begins an averaging step. input.values must hold `elements` fp32; for a reducer it must be empty. Returns the error invalid
  // if an averaging step is under way, and the error unavailable if leave() was called.
  Status begin_step(StepInput input, Nanos now);
  // Ends the running averaging step. If a round is running, the step ends after it, otherwise at once.
  void cancel_step(Nanos now);
  std::optional<FinishedStep> take_step();
  bool averaging() const { return step_ != nullptr; }

  // State for joiners. -------------------------------------------------------------------------------------------------
  void set_blobs(std::vector<NamedBlob> blobs) { state_.set_blobs(std::move(blobs)); }
  // Sets the measured bandwidth in bytes/s. It determines how many of a group's chunks this peer owns.
  void set_bandwidth(double bytes_per_second, Nanos now);
  // Sets the measured sending rate in bytes/s. A fraction of it is used for joiners.
  void set_sending_rate(double bytes_per_second) { state_.set_bandwidth(bytes_per_second); }
  // See RosterKeeper::set_seeds.
  void set_seeds(const std::vector<std::string>& addresses, Nanos now);
  void offer_values(const SharedBuffer& values, Nanos now);

  // Leaves the run, so no averaging step begins any more. The current round may go on for leave_grace. If it has not ended by
  // then, its other members are told to continue without this peer.
  void leave(Nanos now);
  bool left() const { return left_; }

  ElasticStatus status(Nanos now) const;
  // For an ordinary group of all peers of the newest layout: returns the rank of this peer, and the address of the group's
  // rendezvous.
  Result<ElasticGroupLocation> group_location() const;
  void publish_address(const std::string& address, Nanos now);
  const RosterKeeper& keeper() const { return keeper_; }
  uint64_t refused() const { return refused_; }
  size_t groups_kept() const { return groups_.size(); }
  size_t held_bytes() const;  // of groups, and of messages that wait for their group's descriptor

 private:
  // Defined in moshpit_peer.cc.
  void act(Nanos now);
  bool act_roster(Nanos now);
  bool act_formation(Nanos now);
  void on_roster(const PeerId& from, const SharedBuffer& message, Nanos now);
  void on_formation(const PeerId& from, const SharedBuffer& message, Nanos now);
  void on_state(const PeerId& from, const SharedBuffer& message, Nanos now);
  void peer_gone(const RosterEvent& event, Nanos now);
  void refuse(const PeerId& from, const Status& why);
  void send_formation(const FormationSend& one);

  // Defined in moshpit_groups.cc: the current round, and earlier rounds that have not ended yet at other members.
  void on_round(const PeerId& from, SharedBuffer message, Nanos now);
  bool begin_round(const GroupDescriptor& descriptor, Nanos now);
  bool act_groups(Nanos now);
  void hold_early_message(const GroupId& id, const PeerId& from, SharedBuffer message, Nanos now);
  void drop_groups(Nanos now);
  void member_gone(const PeerId& peer, MemberLoss why, Nanos now);
  RoundSummary summary_of(const MoshpitGroup& group, const std::vector<AbsentPeer>& absent) const;
  std::vector<AbsentPeer> absent_from(const MoshpitGroup& group) const;
  std::vector<AbsentPeer> absent_from_line(const SlotName& slot, const std::vector<PeerId>& present,
                                           const std::vector<PeerId>& missing) const;
  std::string label_of(const PeerId& peer) const;
  std::string label_of(const AbsentPeer& absent) const;

  // Defined in averaging_step.cc.
  bool act_step(Nanos now);
  bool choose_layout(Nanos now);
  const Layout* layout_to_take(bool timed_out);
  void take_layout(const Layout& layout);
  void skip_steps();
  void begin_seeking(Nanos now);
  void take_outcome(const SeekOutcome& outcome, Nanos now);
  void take_outcome(const SeekAlone& alone, Nanos now);
  void take_outcome(const SeekClosed& closed, Nanos now);
  void take_outcome(const SeekStale& stale, Nanos now);
  SeekRequest request_for(uint32_t round) const;

  // Defined in averaging_step_end.cc: the ends of rounds and of the averaging step.
  void skip_round(const char* outcome, Nanos now);
  void skip_round(const char* outcome, const std::vector<AbsentPeer>& absent, Nanos now);
  void end_round(RoundSummary summary, const std::vector<AbsentPeer>& absent, Nanos now);
  void end_step(Nanos now);
  std::string inexact_note(const std::vector<RoundSummary>& rounds, bool held_back) const;

  struct Early {  // messages of a group whose descriptor has not arrived here
    Nanos since = 0;
    std::deque<std::pair<PeerId, SharedBuffer>> messages;
  };
  static constexpr size_t early_groups_max = 16;
  // At most this many ended groups are kept, because late members may still request results from them.
  static constexpr size_t groups_kept_max = 32;
  static constexpr size_t groups_forgotten_max = 256;

  MoshpitSettings settings_;
  ElasticPort& port_;
  ChunkTable table_;
  RosterKeeper keeper_;
  GroupCoordinator coordinator_;
  GroupSeeker seeker_;
  MoshpitState state_;
  std::deque<FormationSend> own_messages_;  // messages that this process sends to itself

  std::unique_ptr<MoshpitGroup> group_;               // the group of the current round
  std::deque<std::unique_ptr<MoshpitGroup>> groups_;  // groups whose rounds have ended here, newest last
  std::deque<GroupId> forgotten_;                     // dropped groups, whose messages are ignored
  std::map<GroupId, Early> early_;
  size_t early_bytes_ = 0;
  Nanos drop_at_ = never;

  std::unique_ptr<MoshpitAveraging> step_;
  std::optional<FinishedStep> finished_;
  uint64_t next_step_ = 0;
  std::map<uint32_t, std::vector<PeerId>> missing_;  // by round: the members that were missing from this peer's latest group
  MoshpitKey key_;                                   // this peer's key, used if the latest step's layout has keys
  bool reported_inexact_ = false;
  // For each chunk: true until this peer, as a newcomer, has taken the chunk's mean once. While it is true, this peer's values
  // have weight 0.
  std::vector<bool> newcomer_;
  uint64_t steps_done_ = 0, exact_averaging_steps_ = 0;
  FlatAdvice advice_;

  // leave() begins a leave_grace, which ends at this time. `never` before leave().
  Nanos leave_by_ = never;
  bool left_ = false;
  uint64_t refused_ = 0;
  std::string last_refusal_;
  bool acting_ = false;
};

}  // namespace unisono

// Keeps the roster of an elastic run in one process. It joins the run, detects failures, gossips changes, reunites with peers
// after a network cut, and holds the layouts. It is a state machine: messages and losses go in, messages and events come out,
// and time is an argument.
//
// Failure detection follows SWIM (Das, Gupta, Motivala 2002): in each period the process probes one random peer. A peer that
// does not answer becomes suspect, and later dead if it stays silent. It refutes the suspicion by raising its incarnation.
// Changes travel on messages that are sent anyway, so a period costs O(1) messages for any number of peers. Whole rosters are
// sent only to joiners and to peers that were cut off.
//
// If a peer is reported dead because it was silent, the report at first counts only as a suspicion: after a network cut each
// side believes the other side dead, but must not lose peers that still answer. This has the same effect as a report that
// arrives later, so merging keeps its properties.
//
// Before calling woke(), pass in all messages that have arrived. Otherwise a process that was stopped would judge other peers
// by their old silence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "elastic/layout/formation_view.h"
#include "elastic/layout/layout_book.h"
#include "elastic/layout/record_holders.h"
#include "elastic/roster/gossip_queue.h"
#include "elastic/roster/peer_roster.h"
#include "elastic/roster/peer_timers.h"
#include "elastic/roster/roster_keeper_values.h"
#include "elastic/roster/roster_suspicions.h"
#include "elastic/roster/run_lookers.h"

namespace unisono {

class RosterKeeper final : public FormationView {
 public:
  // Ignores the status in `self`: a founder is alive at once, and a joiner is `joining` until set_alive().
  RosterKeeper(KeeperOptions options, PeerEntry self);

  // Founds the run or begins to join it. Returns ok, or the error invalid with the name of the faulty option or of the faulty
  // member of the entry.
  Status start(Nanos now);
  // Handles a message. A message of another run is counted, but has no other effect.
  void message(const PeerId& from, const RosterMessage& message, Nanos now);
  void woke(Nanos now);
  // Returns when woke() must be called next: `never` before start() and after the end.
  Nanos next_deadline() const;

  // Call when the link to the peer broke. This counts as a failed probe: other peers are asked at once to probe the peer.
  void link_lost(const PeerId& peer, Nanos now);
  // Call when no process listens at the peer's addresses any more. The peer then counts as dead at once.
  void known_dead(const PeerId& peer, const std::string& why, Nanos now);
  // Call when a message to an address was not delivered. Joining fails once this has happened for every seed. other_run: a
  // process answered, but it belongs to another run or has another key.
  void address_unreachable(const std::string& address, const std::string& why, bool other_run, Nanos now);

  std::vector<RosterSend> take_sends() { return std::exchange(sends_, {}); }
  std::vector<RosterEvent> take_events() { return std::exchange(events_, {}); }
  // Returns true if this process knows all members of the newest layout, or has stopped asking for them. While a member is
  // unknown, this process may choose other coordinators than its peers.
  bool settled() const { return seek_at_ == never; }
  bool take_layout_change() { return std::exchange(layout_changed_, false); }

  JoinState join_state() const { return state_; }
  // Returns why joining failed. The text begins with NO_SEED, RUN_ID_MISMATCH, SCHEMA_MISMATCH or ROSTER_FULL.
  const Status& join_status() const { return join_status_; }

  // Sets the present addresses of the seeds. A joiner also asks the earlier seeds, but healing uses only the present ones. An
  // empty list changes nothing.
  void set_seeds(const std::vector<std::string>& addresses, Nanos now);
  // Call when this process has loaded the state. It becomes alive. Does nothing if the process has not joined yet.
  void set_alive(Nanos now);
  // Leaves the run. Tells up to 64 other peers directly; afterwards this process sends nothing more.
  void leave(Nanos now);
  void set_bandwidth(double bytes_per_second, Nanos now);  // gossiped only if it changes by more than a tenth
  // Adds an address of this process, in any form. Does nothing if the process has peer_addresses_max addresses already.
  void add_address(const std::string& address, Nanos now);
  void set_registered(uint64_t step, Nanos now);
  void set_finished(int64_t step, uint64_t state_digest, Nanos now);
  // Call when a REGISTER (a request for a group) has opened this averaging step, here or at another peer.
  void note_opened(uint64_t step, Nanos now);
  // Adds a layout that came with a message about group formation. Returns false if the layout is not added.
  bool adopt_layout(const Layout& layout, Nanos now);

  const PeerId& self() const { return self_; }
  const PeerEntry& self_entry() const { return *roster_.find(self_); }
  const PeerRoster& roster() const { return roster_; }
  const Layout* newest_layout() const { return layouts_.newest().get(); }
  const KeeperCounters& counters() const { return counters_; }

  const Layout* find_layout(uint64_t version, uint64_t digest) const override { return layouts_.find(version, digest); }
  const Layout* layout_for(uint64_t step) const override { return layouts_.in_effect(step); }
  bool gone(const PeerId& peer) const override { return roster_.gone(peer); }
  std::vector<PeerId> coordinators(std::string_view key, const SlotName& slot) const override;
  // Returns the holders of a layout's key, best first. The first holder makes the layout.
  std::vector<PeerId> holders(std::string_view key) const { return record_holders(key, roster_.keepers()); }
  uint64_t steps_opened() const override { return steps_opened_; }

 private:
  struct Seed {
    bool failed = false;
    bool other_run = false;
    std::string why;
    Nanos asked_at = never;  // when the seed was last asked; `never`: not yet
  };
  struct Probe {
    uint32_t sequence = 0;
    bool relayed = false;  // true: other peers were also asked to probe the target
    Nanos began = 0;
  };

  // Defined in roster_keeper.cc: joining, and incoming messages.
  bool running() const { return state_ == JoinState::joining || state_ == JoinState::joined; }
  Status check_options() const;
  void take_message(const PeerId& from, const RosterMessage& message, Nanos now);
  bool admit(const PeerId& from, const RosterHello& hello, const RosterMessage& message, Nanos now);
  void on_body(const PeerId& from, const RosterHello& hello, Nanos now);
  void on_body(const PeerId& from, const RosterWelcome& welcome, Nanos now);
  void on_body(const PeerId& from, const RosterRefused& refused, Nanos now);
  void on_body(const PeerId& from, const RosterProbe& probe, Nanos now);
  void on_body(const PeerId& from, const RosterAck& ack, Nanos now);
  void on_body(const PeerId& from, const RosterProbeRequest& request, Nanos now);
  void on_body(const PeerId& from, const RosterGossip& gossip, Nanos now);
  void on_body(const PeerId& from, const LayoutPull& pull, Nanos now);
  void on_body(const PeerId& from, const LayoutPush& push, Nanos now);
  void joined(Nanos now);
  void fail(Code code, const std::string& why);
  void send_hello(Nanos now);
  void seed_failed(const std::string& address, const std::string& why, bool other_run, Nanos now);
  void fail_joining();

  // Defined in roster_keeper_gossip.cc: claims, gossip, and healing.
  bool take_claim(const PeerClaim& claim, const PeerId& from, bool spreads, Nanos now);
  bool counts_as_suspicion(const PeerClaim& claim, Nanos now) const;
  void set_status(const PeerId& id, PeerStatus status, bool proven, const std::string& why, Nanos now);
  void changed(const PeerId& id, const MergeOutcome& outcome, const std::string& why, bool spreads, Nanos now);
  bool refute(const PeerClaim& claim, Nanos now);
  void answer_unknown_peer(const PeerId& from, Nanos now);
  void change_facts(const PeerFacts& facts, Nanos now);
  void spread(const PeerId& id, GossipKind kind, Nanos now);
  void spread_suspicion(const PeerId& id, Nanos now);
  void spread_versions(Nanos now);
  void want_gossip(bool urgent, Nanos now);
  void gossip(Nanos now);
  void heal(Nanos now);
  RosterMessage make_message(RosterBody body) const;
  RosterMessage hello(Nanos now) const;
  void compare_with_one(Nanos now);
  void send(const PeerId& to, RosterBody body);
  void send_gossip(const PeerId& to, RosterBody body, bool facts, Nanos now);
  bool has_gossip() const { return !suspicions_.empty() || !gossip_items_.empty(); }
  void send_claims(const PeerId& to, const std::vector<PeerId>& about, Nanos now);
  void send_roster(const PeerId& to, bool welcome, const std::vector<uint64_t>& parts, Nanos now);
  bool can_reach(const PeerId& id, Nanos now) const;
  std::vector<PeerId> pick_peers(const std::vector<PeerId>& among, size_t count, const PeerId& except, Nanos now);
  std::string label_of(const PeerId& id) const;
  uint32_t hops() const;

  // Defined in roster_keeper_probe.cc: failure detection.
  void probe_one(Nanos now);
  void start_probe(const PeerId& target, Nanos now);
  bool request_indirect_probes(const PeerId& target, Nanos now);
  void probe_expired(const PeerId& target, Nanos now);
  void end_probe(const PeerId& target);
  void set_timers(const PeerId& id, const MergeOutcome& outcome, Nanos now);
  void excuse_late_wakeup(Nanos now);

  // Defined in roster_keeper_layout.cc.
  uint64_t layout_version_max() const;
  bool plausible(const Layout& layout) const;
  void note_layout(const PeerId& from, uint64_t version, uint64_t digest, Nanos now);
  bool take_layout(std::shared_ptr<const Layout> layout, const PeerId& from, size_t push_count, Nanos now);
  bool knows_all_of_layout() const;
  void seek_members(const PeerId& from, Nanos now);
  void send_layout(const PeerId& to, Nanos now);
  void members_changed(Nanos now);
  void consider_layout(Nanos now);
  void make_next_layout(uint64_t version, const std::vector<PeerId>& members, Nanos now);
  void take_steps_opened(uint64_t steps, Nanos now);

  KeeperOptions options_;
  PeerId self_;
  uint64_t run_ = 0;
  PeerEntry first_entry_;
  Random random_;
  PeerRoster roster_;
  JoinState state_ = JoinState::idle;
  Status join_status_;
  std::map<std::string, Seed> seeds_;
  RunLookers lookers_;
  Nanos join_until_ = never, hello_at_ = never;

  GossipQueue gossip_items_;     // sent together with all facts about their peers
  RosterSuspicions suspicions_;  // sent soon, and without facts
  // The last change of steps_opened or of the newest layout's version must be sent with this many more messages.
  uint32_t version_sends_left_ = 0;
  Nanos gossip_at_ = never;
  Nanos gossiped_at_ = 0;
  Nanos facts_gossiped_at_ = 0;  // when gossip was last sent with facts
  Nanos heal_at_ = never;
  Nanos unknown_asked_at_ = 0;  // no unknown peer is asked for its entry before this time
  // When each client last sent a message to this process. A client can be reached only while it keeps its link.
  std::map<PeerId, Nanos> clients_;

  Nanos probe_at_ = never;
  uint32_t sequence_ = 0;
  std::map<PeerId, Probe> probes_;  // running probes, by target
  PeerTimers probe_deadlines_;
  PeerTimers suspects_;   // when each suspect peer becomes dead
  PeerTimers suspected_;  // since when each suspect peer has been suspect
  uint32_t late_wakeups_ = 0;

  LayoutBook layouts_;
  // A cache for coordinators(): those peers of one layout that are in keepers(). Each group needs this list, and it seldom
  // changes.
  struct NamedKeepers {
    uint64_t layout_version = 0, layout_digest = 0, keepers_version = 0;
    std::vector<PeerId> peers;
  };
  mutable NamedKeepers named_keepers_;
  // True: peers have come or gone since this process last compared its roster with another peer.
  bool unsettled_ = false;
  std::vector<PeerId> newcomers_;  // members that are new in the newest layout
  bool layout_changed_ = false;
  uint64_t reported_version_ = 0;  // the highest layout version that a peer has reported
  Nanos reported_at_ = 0;
  PeerId reported_by_;
  Nanos pull_until_ = 0;  // no further LayoutPull is sent before this time
  Nanos adopted_at_ = 0;
  // The time from which on the present members have differed from those of the newest layout. `never`: they are equal.
  Nanos wanted_since_ = never;
  Nanos layout_at_ = never;  // when consider_layout() runs next
  // When to ask again for members of the newest layout that are unknown here. `never`: there is nothing more to ask.
  Nanos seek_at_ = never;
  uint32_t seek_count_ = 0;  // how often other peers were asked for unknown members
  Nanos considered_at_ = 0;

  uint64_t steps_opened_ = 0;
  Nanos opened_at_ = 0;       // when steps_opened_ last changed
  double step_interval_ = 0;  // time from one averaging step to the next, smoothed
  std::vector<RosterSend> sends_;
  std::vector<RosterEvent> events_;
  KeeperCounters counters_;
};

}  // namespace unisono

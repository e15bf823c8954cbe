// Keeps the roster of an elastic run in one process: joins the run, detects failures, gossips changes, reunites with peers that
// were cut off, and holds the layouts. A state machine: messages and losses go in, messages and events come out, time is an
// argument.
//
// Failure detection follows SWIM (Das, Gupta, Motivala 2002): each period probes one random peer. Silence makes it suspect,
// lasting silence dead; the peer refutes that by raising its incarnation. Changes travel on messages that are sent anyway, so a
// period costs O(1) messages for any number of peers. Whole rosters are sent only to joiners and to peers that were cut off.
//
// A report that a peer died of silence counts as a suspicion first. After a network cut each side believes the other dead, and
// a peer must not lose neighbours that still answer it. This equals the same report arriving later, so merging keeps its
// properties.
//
// Pass messages that have arrived before calling woke(): a process that was stopped must hear the events before it judges
// others.
#pragma once

#include <array>
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

namespace unisono {

class RosterKeeper final : public FormationView {
 public:
  // The entry's status is ignored: a founder is alive at once, a joiner is joining until set_alive().
  RosterKeeper(KeeperOptions options, PeerEntry self);

  // Error: invalid, naming the fault in the options or the entry.
  Status start(Nanos now);
  // Never fails; a message that is not for this process is counted.
  void message(const PeerId& from, const RosterMessage& message, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` before start() and after the end.
  Nanos next_deadline() const;

  // The link to the peer broke: counts as a failed probe, and other peers are asked to probe it at once.
  void link_lost(const PeerId& peer, Nanos now);
  // No process listens at the peer's addresses any more: it is dead at once.
  void known_dead(const PeerId& peer, const std::string& why, Nanos now);
  // A message sent to an address could not be delivered. Joining fails when this holds for every seed. other_run: a process
  // answered, but of another run or without the run key.
  void address_unreachable(const std::string& address, const std::string& why, bool other_run, Nanos now);

  std::vector<RosterSend> take_sends() { return std::exchange(sends_, {}); }
  std::vector<RosterEvent> take_news() { return std::exchange(news_, {}); }
  // settled(): this process knows all members of the newest layout, or has found that no peer knows them. Only then does it
  // choose the same coordinators as other peers do. take_layout_change(): true once after the newest layout changed.
  bool settled() const { return seek_at_ == never; }
  bool take_layout_change() { return std::exchange(layout_changed_, false); }

  JoinState join_state() const { return state_; }
  // The reason of the failure: the message begins with NO_SEED, RUN_ID_MISMATCH, SCHEMA_MISMATCH or ROSTER_FULL.
  const Status& join_status() const { return join_status_; }

  // Sets the seeds' present addresses. A joiner asks these as well as the old ones; healing uses only these. An empty list
  // changes nothing.
  void set_seeds(const std::vector<std::string>& addresses, Nanos now);
  // Call when the state is loaded: joining becomes alive. No effect before joining has ended.
  void set_alive(Nanos now);
  // Tells up to 64 other peers at once; afterwards this process sends nothing more.
  void leave(Nanos now);
  void set_bandwidth(double bytes_per_second, Nanos now);  // only changes by more than a tenth are gossiped
  // Adds an address of this process, in any form; at most peer_addresses_max in all.
  void add_address(const std::string& address, Nanos now);
  void set_registered(uint64_t step, Nanos now);
  void set_finished(int64_t step, uint64_t state_digest, Nanos now);
  // A REGISTER opened this averaging step, here or at another peer.
  void note_opened(uint64_t step, Nanos now);
  // Takes in a layout that came with a formation message. False if it is not taken.
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
  // The holders of a layout's key; the first of them makes the layout.
  std::vector<PeerId> holders(std::string_view key) const { return record_holders(key, roster_.keepers()); }
  uint64_t steps_opened() const override { return steps_opened_; }

 private:
  struct Seed {
    bool failed = false;
    bool other_run = false;
    std::string why;
    Nanos asked_at = never;  // time of the last question
  };
  struct Probe {
    uint32_t sequence = 0;
    bool relayed = false;  // other peers were asked to probe it too
    Nanos began = 0;
  };

  // roster_keeper.cc: joining, and incoming messages
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
  void say_hello(Nanos now);
  void seed_failed(const std::string& address, const std::string& why, bool other_run, Nanos now);
  void fail_joining();

  // roster_keeper_gossip.cc: claims, gossip items, healing
  bool take_claim(const PeerClaim& claim, const PeerId& from, bool spreads, Nanos now);
  bool held_back(const PeerClaim& claim, Nanos now) const;
  void judge(const PeerId& id, PeerStatus status, bool proven, const std::string& why, Nanos now);
  void changed(const PeerId& id, const MergeOutcome& outcome, const std::string& why, bool spreads, Nanos now);
  bool contradict(const PeerClaim& claim, Nanos now);
  void answer_outsider(const PeerId& from, Nanos now);
  void change_facts(const PeerFacts& facts, Nanos now);
  void spread(const PeerId& id, GossipKind kind, Nanos now);
  void spread_suspicion(const PeerId& id, Nanos now);
  void spread_notes(Nanos now);
  void want_gossip(bool urgent, Nanos now);
  void gossip(Nanos now);
  void heal(Nanos now);
  RosterMessage make_message(RosterBody body) const;
  RosterMessage hello(Nanos now) const;
  void compare_with_one(Nanos now);
  void send(const PeerId& to, RosterBody body);
  void send_gossip(const PeerId& to, RosterBody body, bool facts, Nanos now);
  bool has_gossip() const { return !suspicions_.empty() || !gossip_items_.empty(); }
  void tell(const PeerId& to, const std::vector<PeerId>& about, Nanos now);
  void send_roster(const PeerId& to, bool welcome, const std::vector<uint64_t>& parts, Nanos now);
  bool can_reach(const PeerId& id, Nanos now) const;
  std::vector<PeerId> some(const std::vector<PeerId>& among, size_t count, const PeerId& except, Nanos now);
  std::string label_of(const PeerId& id) const;
  uint32_t hops() const;

  // roster_keeper_probe.cc: failure detection
  void probe_one(Nanos now);
  void start_probe(const PeerId& target, Nanos now);
  bool ask_others(const PeerId& target, Nanos now);
  void probe_expired(const PeerId& target, Nanos now);
  void end_probe(const PeerId& target);
  void watch(const PeerId& id, const MergeOutcome& outcome, Nanos now);
  void excuse_late_wakeup(Nanos now);

  // roster_keeper_layout.cc
  uint64_t layout_version_max() const;
  bool believable(const Layout& layout) const;
  void note_layout(const PeerId& from, uint64_t version, uint64_t digest, Nanos now);
  bool take_layout(std::shared_ptr<const Layout> layout, const PeerId& from, size_t told, Nanos now);
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
  Nanos join_until_ = never, hello_at_ = never;

  GossipQueue gossip_items_;     // sent with all facts of the peer
  RosterSuspicions suspicions_;  // sent without facts, and soon
  // How many more messages must go out for the fields that every message carries: steps_opened, the layout.
  uint32_t notes_left_ = 0;
  Nanos gossip_at_ = never;
  Nanos gossiped_at_ = 0;
  Nanos facts_gossiped_at_ = 0;  // time of the last gossip that carried facts
  Nanos heal_at_ = never;
  Nanos unknown_asked_at_ = 0;       // an unauthenticated peer is asked for its identity no sooner than this
  std::map<PeerId, Nanos> clients_;  // when each client was last heard here: it can be reached only while it keeps a link

  Nanos probe_at_ = never;
  uint32_t sequence_ = 0;
  std::map<PeerId, Probe> probes_;  // running ones, at most one per peer
  PeerTimers probe_ends_;
  PeerTimers suspects_;   // when each suspect becomes dead
  PeerTimers suspected_;  // since when
  uint32_t late_wakeups_ = 0;

  LayoutBook layouts_;
  // Cache of the keepers that a layout names: it is asked for each group, and changes rarely.
  struct NamedKeepers {
    uint64_t layout_version = 0, layout_digest = 0, keepers_version = 0;
    std::vector<PeerId> peers;
  };
  mutable NamedKeepers named_keepers_;
  bool unsettled_ = false;         // the set of peers has changed since this process last compared its roster with another's
  std::vector<PeerId> newcomers_;  // members of the newest layout that the one before did not have
  bool layout_changed_ = false;
  uint64_t heard_version_ = 0;  // the newest version that any peer was heard to hold
  Nanos heard_at_ = 0;
  PeerId heard_from_;
  Nanos pull_until_ = 0;  // waiting for an answer until then
  Nanos adopted_at_ = 0;
  Nanos wanted_since_ = never;  // since when the newest layout no longer names the present members
  Nanos layout_at_ = never;     // when to consider a layout again
  Nanos seek_at_ = never;       // the newest layout names unknown peers: when to ask other peers again
  uint32_t sought_ = 0;         // how often they were asked
  Nanos looked_at_ = 0;

  uint64_t steps_opened_ = 0;
  Nanos opened_at_ = 0;       // when the last opened averaging step was heard of
  double step_interval_ = 0;  // smoothed time between them
  std::vector<RosterSend> sends_;
  std::vector<RosterEvent> news_;
  KeeperCounters counters_;
};

}  // namespace unisono

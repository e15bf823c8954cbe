// How the living members of a group agree on the next roster without a server. Each process has one such state machine as long
// as it is a member. Its inputs are received bytes, lost links and the time; its outputs are bytes to send.
//
// Every member has a set of survivors. It sends PROPOSE to all survivors: the list of the members that it believes to be gone.
// When a member receives such a list, it adds the list to its own, so its set of survivors can only get smaller. At some point,
// every member of the set has proposed exactly this set. The lowest rank of the set then makes the roster and sends it
// (COMMIT). If a member that has the new roster receives an old proposal, it passes the roster on to the sender.
//
// A member accepts a roster only from a member of its own set. After that it never proposes again. Therefore no other set that
// contains this member can be agreed on, and no other roster that contains it can be committed. A member that was left out
// receives REMOVED and ends. REMOVED is sent to it at once, and again whenever it sends a message that belongs to an old epoch.
// There is one exception: if a few members went on without many members that were awake, the few end and the many go on; see
// accepts_removal().
//
// A member whose link is made anew is waited for, up to link_timeout. Meanwhile this process agrees to nothing, and tells the
// others so.
//
// If a group is cut into two parts, only the part with the majority goes on. A member whose death is proven does not count, so
// only silence can stop the smaller part. The smaller part waits for such proofs up to link_timeout, and then ends. Without
// require_majority, the group becomes two groups. Their epochs have different digests (hashes of the roster).
//
// Before you call woke(), pass all messages that have arrived. Then a process that was stopped reads its messages before it
// judges others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "group/lifecycle/reform_messages.h"
#include "rendezvous/roster.h"
#include "unisono/status.h"

namespace unisono {

struct ReformRequest {
  std::vector<PeerId> dead;                           // members that have ended or left, which is proven; nobody waits for them
  std::vector<PeerId> lost{};                         // members that are lost without such a proof; nobody waits for them
  std::vector<std::pair<PeerId, Nanos>> relinking{};  // members whose link is made anew, and until when at most
  std::vector<MemberRecord> joiners;  // processes that want to join, as far as this process knows them; their ranks are ignored
  Nanos timeout = 200 * millisecond;  // how long to wait for a member that is silent
  // How long to wait for a member whose link is made anew, and for proofs of deaths if there is no majority without them.
  Nanos link_timeout = 10 * second;
  uint32_t min_world = 1;  // At least this many members must survive.
  // true: of the old members whose death is not proven, more than half must survive, or exactly half with the lowest of their
  // ranks
  bool require_majority = true;
};

struct ReformResult {
  Roster roster;                   // roster of the next epoch: the survivors in their old order, then the joiners
  uint64_t digest = 0;             // hash of the roster; wire_epoch(roster) combines epoch and digest for the use in frames
  Rank self = 0;                   // rank of this process in the new roster
  std::vector<MemberRecord> lost;  // members that were lost, with their old ranks
  std::vector<std::string> lost_reasons;  // for each entry of `lost`: why the member was lost
  std::vector<MemberRecord> joined;       // new members, with their new ranks
};

struct ReformSend {
  PeerId to;  // A member of the old or of the new roster. If there is no link to it, drop the message.
  Bytes bytes;
};

struct ReformCounters {
  uint64_t malformed = 0;        // messages that a correct member never sends
  uint64_t unauthenticated = 0;  // messages from processes that have never been members
};

class Reform {
 public:
  // The roster must contain `self`.
  Reform(Roster roster, PeerId self);

  // Begins to re-form the group. Returns `invalid` if this is already going on. If this state machine has ended, returns the
  // reason: this process was removed, or too few members were left.
  Status start(const ReformRequest& request, Nanos now);
  // Handles a message from a present or former member. It may be called at any time. If the message is malformed, nothing
  // changes, and the result is `corrupt`.
  Status message(const PeerId& from, ByteView bytes, Nanos now);
  // Tells the state machine that the link to a member is gone, and will not be made anew. If start() has not been called, the
  // loss is remembered for the next re-forming.
  void peer_lost(const PeerId& peer, Nanos now);
  // Likewise, and it is proven that the process of the member has ended or has left.
  void peer_dead(const PeerId& peer, Nanos now);
  // While the group re-forms: the link to a member is made anew, until `until` at most. Until link_up() or `until`, the member
  // is waited for.
  void link_down(const PeerId& peer, Nanos until, Nanos now);
  void link_up(const PeerId& peer, Nanos now);
  bool is_link_down(const PeerId& peer) const;
  // Returns true while the group re-forms and this process takes the member for alive.
  bool is_waiting_for(const PeerId& peer) const;
  void woke(Nanos now);
  // Returns the time at which woke() must be called. Returns `never` if nothing is going on.
  Nanos next_deadline() const;

  std::vector<ReformSend> take_sends() { return std::exchange(sends_, {}); }
  // Returns one result for each re-forming: the new roster, or an error. The error peer_lost says that this process was
  // removed; this can happen even if start() was not called. The error unavailable says that too few members are left.
  std::optional<Result<ReformResult>> take_result() { return std::exchange(result_, std::nullopt); }

  bool running() const { return phase_ == Phase::running; }
  // Returns true if another member re-forms this epoch and waits for this process. The caller must then end its operations and
  // call start().
  bool requested_by_peer() const { return phase_ == Phase::idle && requested_; }
  const Roster& roster() const { return roster_; }
  const ReformCounters& counters() const { return counters_; }

 private:
  enum class Phase : uint8_t { idle, running, ended };

  struct Peer {
    bool alive = true;
    bool has_proposed = false;
    uint32_t round = 0;  // number of the peer's last proposal
    // How many members the peer's last proposal says are gone. This process also counts all of them as gone. Therefore, if the
    // numbers are equal, the sets are equal.
    uint32_t departed_count = 0;
    uint32_t proven_count = 0;  // likewise: how many of these departures are proven
    Nanos waits_until = 0;      // Its last proposal says that it waits for a link. It is waited for until then. 0: it does not.
    Nanos link_until = never;   // This process's link to it is made anew, until then. `never`: the link is up.
    Nanos link_down_at = 0;
    Nanos link_up_at = 0;      // when that link was made anew
    Departure departure;       // why the peer is gone, if it is not alive
    std::vector<Bytes> early;  // Messages that arrived before start(), and messages that belong to the next epoch.
  };
  struct RemovalNote {
    Removed removed;  // age_ms is set when the message is sent.
    Nanos at = 0;
  };

  Status dispatch(const PeerId& from, ReformMessage& message, ByteView bytes, Nanos now);
  void on_propose(Rank from, const Propose& propose, Nanos now);
  Status on_commit(Rank from, const Commit& commit, ByteView bytes, Nanos now);
  void on_removed(Rank from, const Removed& removed, Nanos now);
  void on_other_epoch(const PeerId& from, ReformMessage& message, Nanos now);
  void answer_old_proposal(const PeerId& from, const EpochName& base, Nanos now);
  bool accepts_removal(Rank from, const Removed& removed, Nanos now) const;
  void end_removed(const Removed& removed);
  Departure unreachable(Rank rank, Nanos now) const;
  void depart(const PeerId& id, Departure::Cause cause, Nanos now);
  void mark_link_down(Rank rank, Nanos until, Nanos now);
  void keep_early(Rank from, ByteView bytes);
  Status check_commit(const Commit& commit) const;

  bool mark_departed(const Departure& departure);
  void add_joiners(const std::vector<MemberRecord>& joiners);
  void set_changed(Nanos now);
  void propose_again(Nanos now);
  void broadcast_proposal(Nanos now);
  void check_agreement(Nanos now);
  void commit(Nanos now);
  void adopt(Commit commit, ByteView bytes, Nanos now);
  void end(Status why);
  Status too_few() const;
  bool lacks_majority() const;
  Status no_majority(Nanos now) const;
  // All survivors agree, but without further proofs of deaths they are no majority.
  bool in_doubt() const { return lacks_majority() && all_agree(); }
  bool all_agree() const;
  Nanos waits_until() const;
  bool handle_late_wakeup(Nanos now);
  Nanos deadline_of(Rank rank) const;
  Rank leader() const;
  std::vector<Departure> departures() const;
  std::vector<Rank> living() const;

  Roster roster_;
  EpochName name_;
  PeerId self_;
  Rank self_rank_ = 0;
  Phase phase_ = Phase::idle;
  Status ended_;  // why this state machine has ended
  bool requested_ = false;
  ReformRequest request_;
  // The index is the rank in roster_. The entry of this process is always alive, and its other fields are not used.
  std::vector<Peer> peers_;
  std::map<PeerId, Rank> ranks_;
  uint32_t departed_count_ = 0;
  uint32_t proven_count_ = 0;  // how many of the departed members are proven to be dead
  uint32_t round_ = 0;
  uint32_t late_wakeups_ = 0;
  bool was_stopped_ = false;  // true: this process was stopped for so long that the others may have gone on without it
  Nanos began_ = 0;           // when start() was called
  Nanos started_ = 0;  // When the wait for silent members began. This is began_, or a later time if this process was stopped.
  Nanos told_until_ = 0;   // The last proposal says that this process waits for links until then. 0: it waits for none.
  Nanos gives_up_at_ = 0;  // until then, links that are made anew and proofs of deaths are waited for
  Nanos changed_ = 0;      // when the set of survivors of this member changed last
  Nanos agreed_ = never;   // when all members had proposed the same set as this member
  std::vector<MemberRecord> joiners_;

  EpochName previous_;      // the epoch before the current one
  Bytes previous_commit_;   // the COMMIT message that ended the epoch previous_
  Nanos adopted_ = 0;       // when this member adopted the current roster
  uint32_t survivors_ = 0;  // How many members of previous_ went on. The lowest rank of them is lowest_survivor_.
  Rank lowest_survivor_ = 0;
  std::map<PeerId, RemovalNote> removals_;
  std::vector<ReformSend> sends_;
  std::optional<Result<ReformResult>> result_;
  ReformCounters counters_;
};

}  // namespace unisono

// How the living members of a group agree on the next roster, without a server: a state machine, one per process, kept
// for as long as the process is a member. Bytes and losses in, bytes out, time as an argument.
//
// Every member tells all members that it believes alive which ones it believes gone (PROPOSE). The set of survivors only ever
// shrinks: each member adds what it receives to what it knows. When every member of the set has proposed exactly this set, its
// lowest rank makes the roster and sends it (COMMIT). A member that has it passes it on to members that send an old proposal. A
// member takes a roster only from a member of its own set; so if one roster was taken anywhere, no other one with that member
// in it can come about. (A member that took roster S never proposes again, so a later set that holds it is never agreed on.) A
// member that was left out is notified (REMOVED), at once and whenever it sends something of an old epoch, and ends. Only if a
// few went on without many that were awake all the time, the many go on and the few end: see obeys().
//
// A group cut in two halves becomes two groups, whose epochs differ in their digest, unless require_majority is set.
// Feed messages that have arrived before woke(): a process that was stopped should read what was sent to it before it judges
// others.
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
  std::vector<PeerId> dead;           // members known to be gone; nobody waits for them
  std::vector<MemberRecord> joiners;  // processes known here that want to join; ranks are ignored
  Nanos timeout = 200 * millisecond;  // how long a silent member is waited for
  uint32_t min_world = 1;             // survivors that must be left
  bool require_majority = false;      // more than half, or half with rank 0, of the old roster must be left
};

struct ReformResult {
  Roster roster;                      // epoch + 1, survivors in old order, joiners last
  uint64_t digest = 0;                // of the roster; wire_epoch(roster) mixes both for frames
  Rank self = 0;                      // new rank
  std::vector<MemberRecord> lost;     // with their old ranks
  std::vector<std::string> lost_why;  // one per lost member
  std::vector<MemberRecord> joined;   // with their new ranks
};

struct ReformSend {
  PeerId to;  // of the old or the new roster; nothing is lost if there is no link to it any more
  Bytes bytes;
};

struct ReformCounters {
  uint64_t malformed = 0;        // messages that no member sends
  uint64_t unauthenticated = 0;  // from processes that were never members, or about epochs that nobody here knows
};

class Reform {
 public:
  // self must be in the roster.
  Reform(Roster roster, PeerId self);

  // Begins to re-form. Invalid while one is running; after the end (removed, too few left) why it ended.
  Status start(const ReformRequest& request, Nanos now);
  // A message of any member, past or present, at any time. Corrupt if it is malformed; it then changed nothing.
  Status message(const PeerId& from, ByteView bytes, Nanos now);
  // The link to a member is gone. Before start() it is kept in mind for it.
  void peer_lost(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if nothing is running.
  Nanos next_deadline() const;

  std::vector<ReformSend> take_sends() { return std::exchange(sends_, {}); }
  // Once per re-forming: the new roster, or why there is none: peer_lost (this process was removed; that may come without
  // a start), unavailable (too few are left).
  std::optional<Result<ReformResult>> take_result() { return std::exchange(result_, std::nullopt); }

  bool running() const { return phase_ == Phase::running; }
  // Another member is re-forming this epoch and waits for this process: end what is running and start.
  bool wanted() const { return phase_ == Phase::idle && wanted_; }
  const Roster& roster() const { return roster_; }
  const ReformCounters& counters() const { return counters_; }

 private:
  enum class Phase : uint8_t { idle, running, ended };

  struct Peer {
    bool alive = true;
    bool spoke = false;
    uint32_t round = 0;           // of its last proposal
    uint32_t departed_count = 0;  // in it; always a subset of ours, so equal counts are equal sets
    Departure departure;          // if not alive
    std::vector<Bytes> early;     // what it said before we started, or about the epoch after this one
  };
  struct RemovalNote {
    Removed removed;  // age_ms is filled in when it is said
    Nanos at = 0;
  };

  Status dispatch(const PeerId& from, ReformMessage& message, ByteView bytes, Nanos now);
  void on_propose(Rank from, const Propose& propose, Nanos now);
  Status on_commit(Rank from, const Commit& commit, ByteView bytes, Nanos now);
  void on_removed(Rank from, const Removed& removed, Nanos now);
  void on_other_epoch(const PeerId& from, ReformMessage& message, Nanos now);
  void answer_old_proposal(const PeerId& from, const EpochName& base, Nanos now);
  bool obeys(Rank from, const Removed& removed, Nanos now) const;
  void end_removed(const Removed& removed);
  void keep_early(Rank from, ByteView bytes);
  Status check_commit(const Commit& commit) const;

  bool depart(const Departure& departure);
  void add_joiners(const std::vector<MemberRecord>& joiners);
  void set_changed(Nanos now);
  void broadcast_proposal();
  void settle(Nanos now);
  void commit(Nanos now);
  void adopt(Commit commit, ByteView bytes, Nanos now);
  void end(Status why);
  bool too_few(Status& why) const;
  bool all_agree() const;
  bool overslept(Nanos now);
  Nanos deadline_of(Rank rank) const;
  Rank leader() const;
  std::vector<Departure> departures() const;
  std::vector<Rank> living() const;

  Roster roster_;
  EpochName name_;
  PeerId self_;
  Rank self_rank_ = 0;
  Phase phase_ = Phase::idle;
  Status ended_;  // why
  bool wanted_ = false;
  ReformRequest request_;
  std::vector<Peer> peers_;  // by rank in roster_; ours is alive and has no say
  std::map<PeerId, Rank> ranks_;
  uint32_t departed_count_ = 0;
  uint32_t round_ = 0;
  uint32_t naps_ = 0;
  bool slept_ = false;    // for so long that the others may have gone on without us
  Nanos began_ = 0;       // start() was called
  Nanos started_ = 0;     // from when on silence counts: began_, or later if we slept
  Nanos changed_ = 0;     // our set did
  Nanos agreed_ = never;  // all did, on our set
  std::vector<MemberRecord> joiners_;

  EpochName previous_;      // the epoch before this one
  Bytes previous_commit_;   // the message that ended it
  Nanos adopted_ = 0;       // when
  uint32_t survivors_ = 0;  // how many of its members went on, and the lowest rank of them
  Rank lowest_survivor_ = 0;
  std::map<PeerId, RemovalNote> removals_;
  std::vector<ReformSend> sends_;
  std::optional<Result<ReformResult>> result_;
  ReformCounters counters_;
};

}  // namespace unisono

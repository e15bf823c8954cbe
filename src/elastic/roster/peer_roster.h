// The roster lists the processes of an elastic run, with one entry per process. Peers merge each other's entries until all
// peers hold the same ones.
//
// Merging is a join in a lattice: it takes the larger (incarnation, status), and separately the facts with the larger counter.
// It is therefore commutative, associative and idempotent. If peers with two different rosters of a run meet, the rosters
// become equal. Only the process that an entry describes may raise the entry's incarnation; it does so to refute a suspicion or
// a report of its death. An entry is kept for forget_dead after its peer has left or died, so that old gossip cannot revive the
// peer. Such entries do not count towards max_peers.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "elastic/roster/peer_slots.h"
#include "elastic/wire/elastic_message.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// A suspect peer has not answered, and becomes dead if it stays silent. If two entries have the same incarnation, merging takes
// the status with the larger number.
enum class PeerStatus : uint8_t { joining = 0, alive = 1, suspect = 2, left = 3, dead = 4 };
const char* name(PeerStatus status);
constexpr bool is_gone(PeerStatus status) { return status >= PeerStatus::left; }

// Data from the network must keep within these limits.
inline constexpr size_t peer_name_bytes_max = 255;
inline constexpr size_t peer_address_bytes_max = 255;
inline constexpr size_t peer_addresses_max = 16;
// A roster's sum (the sum of hashes of its present peers) is sent in at most this many parts.
inline constexpr size_t roster_parts_max = 256;
inline constexpr uint32_t incarnation_max = 1u << 31;
inline constexpr uint64_t step_number_max = uint64_t{1} << 53;  // averaging steps and layout versions have no larger numbers

// Facts that only the process itself can state. The greater one of two PeerFacts of one process is newer, because `counter` is
// compared first.
struct PeerFacts {
  uint64_t counter = 0;
  std::string name;
  // The process listens at these addresses, such as "tcp://host:port". If the list is empty, the process cannot be reached.
  std::vector<std::string> addresses;
  ElasticRole role = ElasticRole::peer;
  uint64_t schema_hash = 0;
  double bandwidth = -1;         // measured, in bytes/s; unknown if below 0
  int64_t registered_step = -1;  // the process last registered for this averaging step; -1: for none yet
  int64_t finished_step = -1;
  uint64_t layout_version = 0;  // version of the newest layout held; 0: the process holds none
  // Digest of the state that the process had after finished_step. It offers this state to joiners.
  uint64_t state_digest = 0;
  friend bool operator==(const PeerFacts&, const PeerFacts&) = default;
  friend std::partial_ordering operator<=>(const PeerFacts&, const PeerFacts&) = default;
};

struct PeerEntry {
  PeerId id;
  uint32_t incarnation = 0;
  PeerStatus status = PeerStatus::joining;
  PeerFacts facts;
  friend bool operator==(const PeerEntry&, const PeerEntry&) = default;
};
// Returns "name (tcp://host:port)".
std::string label(const PeerEntry& entry);

// A roster entry, as one process sends it to another process.
struct PeerClaim {
  PeerEntry entry;
  // The peer left or died this long ago. A duration is sent, because peers do not compare clocks.
  uint32_t gone_ms = 0;
  // True: the peer is dead, and no process listens at its addresses any more. False: the peer may only have been silent.
  bool proven = false;
  // True: the claim has no facts. If the receiver does not know the peer, it cannot use the claim.
  bool brief = false;
  friend bool operator==(const PeerClaim&, const PeerClaim&) = default;
};
// Returns ok, or the error invalid with the limit in the text. The name and each address must not be too long, there must not
// be too many addresses, and the bandwidth must be a finite number.
Status check_entry(const PeerEntry& entry);
void write_claim(ByteWriter& writer, const PeerClaim& claim);
// Reads a claim. Returns false if bytes are missing, a number exceeds its limit, or the claim contradicts itself.
bool read_claim(ByteReader& reader, PeerClaim& claim);

struct MergeOutcome {
  enum class Effect : uint8_t {
    none,    // nothing changed
    facts,   // only the owner's facts are newer
    status,  // the status or the incarnation changed
    added,   // the peer was unknown before
    late,    // not merged: the peer has been gone for longer than forget_dead
    full,    // not merged: max_peers peers are present
  };
  Effect effect = Effect::none;
  PeerStatus before = PeerStatus::joining;  // status before the merge, if the peer was known then
  PeerStatus now = PeerStatus::joining;
  // True: the claim had newer facts than the roster. The status may have changed, too.
  bool newer_facts = false;
  bool changed() const { return effect == Effect::facts || effect == Effect::status || effect == Effect::added; }
};

class PeerRoster {
 public:
  PeerRoster(uint32_t max_peers, Nanos forget_dead) : max_peers_(max_peers), forget_dead_(forget_dead) {}

  MergeOutcome merge(const PeerClaim& claim, Nanos now);
  // Drops the entries of peers that left or died at least forget_dead ago.
  void forget(Nanos now);
  // Returns the time at which forget() will next have an entry to drop.
  Nanos next_forget() const;

  // Returns the peer's entry, or null if the peer is unknown. The pointer is valid until the next merge.
  const PeerEntry* find(const PeerId& id) const;
  bool gone(const PeerId& id) const;
  bool is_keeper(const PeerId& id) const;                 // true if keepers() contains the peer
  PeerClaim claim_of(const PeerId& id, Nanos now) const;  // requires a known peer
  PeerClaim brief_claim_of(const PeerId& id, Nanos now) const;
  std::vector<PeerClaim> claims(Nanos now) const;  // claims about all peers, ordered by id
  // Compares this roster with the roster of another process. `parts` is what parts() returned there: sums of hashes, each over
  // some of the peers. Returns claims about all peers whose part has another sum here. If `parts` is empty, returns claims
  // about all peers.
  std::vector<PeerClaim> claims_beside(const std::vector<uint64_t>& parts, Nanos now) const;

  // Returns the peers that are joining, alive or suspect. present(), reachable(), keepers() and dead() are in no particular
  // order. If two rosters have gone through the same calls, their orders are equal.
  const std::vector<PeerId>& present() const { return lists_[present_list]; }
  // Returns the present peers that are not clients.
  const std::vector<PeerId>& reachable() const { return lists_[reachable_list]; }
  // Returns the peers that are alive or suspect, and not clients. Only these peers may hold records.
  const std::vector<PeerId>& keepers() const { return lists_[keepers_list]; }
  // Returns a number that changes whenever keepers() changes.
  uint64_t keepers_version() const { return keepers_version_; }
  const std::vector<PeerId>& dead() const { return lists_[dead_list]; }
  // Returns all peers that have a vector (so no reducers) and are alive, ordered by id. A suspect peer is included if stays(id)
  // is true.
  template <typename Stays>
  std::vector<PeerId> full_members(Stays stays) const {
    std::vector<PeerId> members;
    for (const auto& id : present()) {
      const auto& entry = *find(id);
      if (entry.facts.role == ElasticRole::reducer) continue;
      if (entry.status == PeerStatus::alive || (entry.status == PeerStatus::suspect && stays(id))) members.push_back(id);
    }
    std::ranges::sort(members);
    return members;
  }

  bool full() const { return present().size() >= max_peers_; }
  uint32_t max_peers() const { return max_peers_; }
  size_t size() const { return slots_.size(); }  // counts the peers that left or died, too
  // Returns the sum of the hashes of all present peers. If two rosters have equal sums, their present peers are equal, and so
  // are the statuses and incarnations of these peers (except with probability 2^-64).
  uint64_t sum() const;
  // Returns the sum in parts, or nothing if one part is enough. A peer's id determines to which part the peer belongs. Each
  // part covers few entries.
  std::vector<uint64_t> parts() const;

 private:
  enum List : uint8_t { present_list, reachable_list, keepers_list, dead_list, list_count };
  static constexpr uint32_t not_in_list = ~0u;
  struct Record {
    PeerEntry entry;
    Nanos gone_at = 0;
    bool proven = false;
    // For each list: the index at which it holds this entry, or `not_in_list` if it does not.
    std::array<uint32_t, list_count> positions{not_in_list, not_in_list, not_in_list, not_in_list};
  };

  void enter(Record& record);
  void withdraw(const Record& record);
  void put(Record& record, List list, bool wanted);
  void drop_surplus();
  void erase(PeerId id);
  uint64_t& sum_of(const PeerId& id) { return sums_[part_of(id, roster_parts_max)]; }
  static size_t part_of(const PeerId& id, size_t parts) { return static_cast<size_t>(id.low % parts); }
  std::vector<uint64_t> parts(size_t count) const;
  Record* record(const PeerId& id) { return const_cast<Record*>(std::as_const(*this).record(id)); }
  const Record* record(const PeerId& id) const;  // null: the peer is unknown
  const Record& record_of(const PeerId& id) const;
  Record& new_record(const PeerId& id);
  static PeerClaim claim_of(const Record& record, bool brief, Nanos now);

  uint32_t max_peers_;
  Nanos forget_dead_;
  PeerSlots slots_;              // gives each peer's index in records_
  std::vector<Record> records_;  // records, including unused ones
  std::vector<uint32_t> unused_;
  std::array<std::vector<PeerId>, list_count> lists_;
  // The peers that left or died, ordered by the time at which they did. There are at most max_peers_ of them; if there are
  // more, the one that went first is dropped.
  std::set<std::pair<Nanos, PeerId>> gone_;
  std::array<uint64_t, roster_parts_max> sums_{};
  uint64_t keepers_version_ = 0;
};

}  // namespace unisono

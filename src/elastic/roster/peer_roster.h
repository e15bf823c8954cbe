// The processes of an elastic run: one entry per process, merged with other peers' entries until all hold the same.
//
// Merging is a join in a lattice: it takes the larger (incarnation, status) and, separately, the owner's facts with the larger
// counter. So it is commutative, associative and idempotent, and any two rosters of a run unite when their peers meet. Only the
// owner of an entry raises its incarnation, to refute a suspicion or a report of its death. Entries of peers that left or died
// stay for forget_dead, so that old gossip cannot revive them. They do not count towards max_peers.
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

// At equal incarnation the later one in this order wins.
enum class PeerStatus : uint8_t { joining = 0, alive = 1, suspect = 2, left = 3, dead = 4 };
const char* name(PeerStatus status);
constexpr bool is_gone(PeerStatus status) { return status >= PeerStatus::left; }

// Limits of data that is accepted from the network.
inline constexpr size_t peer_name_bytes_max = 255;
inline constexpr size_t peer_address_bytes_max = 255;
inline constexpr size_t peer_addresses_max = 16;
inline constexpr size_t roster_parts_max = 256;  // limit of parts that a roster's sum is cut into
inline constexpr uint32_t incarnation_max = 1u << 31;
inline constexpr uint64_t step_number_max = uint64_t{1} << 53;  // also the limit of layout versions, as in a slot's name

// Facts that only the process itself can state. The counter comes first: comparing two facts of one process compares their age.
struct PeerFacts {
  uint64_t counter = 0;
  std::string name;
  std::vector<std::string> addresses;  // where it listens, "tcp://host:port"; empty: it cannot be reached
  ElasticRole role = ElasticRole::peer;
  uint64_t schema_hash = 0;
  double bandwidth = -1;         // bytes/s, measured; below 0: unknown
  int64_t registered_step = -1;  // the last one; -1: none yet
  int64_t finished_step = -1;
  uint64_t layout_version = 0;  // the newest layout that it holds; 0: none
  uint64_t state_digest = 0;    // of the state that it offers to joiners, after finished_step
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
// "name (tcp://host:port)"
std::string label(const PeerEntry& entry);

// A roster entry as one process sends it to another.
struct PeerClaim {
  PeerEntry entry;
  uint32_t gone_ms = 0;  // how long the peer has been gone, if it is. Ages are sent because clocks are never compared
  bool proven = false;   // dead, and not only silent: no process listens at its addresses any more
  bool brief = false;    // sent without facts: useless to a receiver that does not know the peer
  friend bool operator==(const PeerClaim&, const PeerClaim&) = default;
};
// Error: invalid, naming the limit: a name or an address that is too long, too many addresses, a bandwidth that is not a
// number.
Status check_entry(const PeerEntry& entry);
void write_claim(ByteWriter& writer, const PeerClaim& claim);
// False if it is cut, over a limit, or impossible.
bool read_claim(ByteReader& reader, PeerClaim& claim);

struct MergeOutcome {
  enum class Effect : uint8_t {
    none,    // nothing changed
    facts,   // the owner's facts are newer
    status,  // status or incarnation changed
    added,   // the peer was not known before
    late,    // refused: gone for longer than forget_dead
    full,    // refused: max_peers are present
  };
  Effect effect = Effect::none;
  PeerStatus before = PeerStatus::joining;  // the status before, if the peer was known
  PeerStatus now = PeerStatus::joining;
  bool newer_facts = false;  // may be true together with a change of status
  bool changed() const { return effect == Effect::facts || effect == Effect::status || effect == Effect::added; }
};

class PeerRoster {
 public:
  PeerRoster(uint32_t max_peers, Nanos forget_dead) : max_peers_(max_peers), forget_dead_(forget_dead) {}

  MergeOutcome merge(const PeerClaim& claim, Nanos now);
  // Drops peers that have been gone for forget_dead.
  void forget(Nanos now);
  // When forget() has something to drop next.
  Nanos next_forget() const;

  // Null: unknown. The pointer is valid until the next merge.
  const PeerEntry* find(const PeerId& id) const;
  bool gone(const PeerId& id) const;
  bool is_keeper(const PeerId& id) const;                 // in keepers()
  PeerClaim claim_of(const PeerId& id, Nanos now) const;  // the peer must be known
  PeerClaim brief_claim_of(const PeerId& id, Nanos now) const;
  std::vector<PeerClaim> claims(Nanos now) const;  // of all peers, by id
  // Claims of the peers whose part of the sum differs; of all peers if `parts` is empty.
  std::vector<PeerClaim> claims_beside(const std::vector<uint64_t>& parts, Nanos now) const;

  // Peers that are joining, alive or suspect. The order of these four lists is unspecified, but equal for equal histories.
  const std::vector<PeerId>& present() const { return lists_[present_list]; }
  // Present peers that are not clients.
  const std::vector<PeerId>& reachable() const { return lists_[reachable_list]; }
  // Peers that are alive or suspect and not clients: they may hold records.
  const std::vector<PeerId>& keepers() const { return lists_[keepers_list]; }
  // Changes whenever keepers() has changed.
  uint64_t keepers_version() const { return keepers_version_; }
  const std::vector<PeerId>& dead() const { return lists_[dead_list]; }
  // Peers with a vector of their own (peers and clients), by id: the alive ones, and the suspect ones for which stays() is
  // true.
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
  size_t size() const { return slots_.size(); }  // peers that are gone count too
  // Two rosters with equal sums hold the same present processes with the same status and incarnation, except by a chance of
  // 2^-64.
  uint64_t sum() const;
  // The sum in parts, by id; few entries fall into each. Empty if one part would do.
  std::vector<uint64_t> parts() const;

 private:
  enum List : uint8_t { present_list, reachable_list, keepers_list, dead_list, list_count };
  static constexpr uint32_t nowhere = ~0u;
  struct Record {
    PeerEntry entry;
    Nanos gone_at = 0;
    bool proven = false;
    std::array<uint32_t, list_count> places{nowhere, nowhere, nowhere, nowhere};  // index in each list
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
  const Record* record(const PeerId& id) const;  // null: unknown
  const Record& record_of(const PeerId& id) const;
  Record& new_record(const PeerId& id);
  static PeerClaim claim_of(const Record& record, bool brief, Nanos now);

  uint32_t max_peers_;
  Nanos forget_dead_;
  PeerSlots slots_;              // of records
  std::vector<Record> records_;  // unused ones among them
  std::vector<uint32_t> unused_;
  std::array<std::vector<PeerId>, list_count> lists_;
  // Peers that left or died, by time. At most max_peers_; the longest gone are dropped first.
  std::set<std::pair<Nanos, PeerId>> gone_;
  std::array<uint64_t, roster_parts_max> sums_{};
  uint64_t keepers_version_ = 0;
};

}  // namespace unisono

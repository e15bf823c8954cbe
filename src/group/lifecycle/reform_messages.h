// The messages of members that re-form their group: bytes <-> values, bounded, trusting nothing.
//
// Every message names the roster that it belongs to (epoch and digest), so that a late message of an earlier epoch, or of
// the other half of a split group, is recognised by its first bytes. Carried as the payload of control frames.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "rendezvous/roster.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr uint8_t reform_version = 2;
inline constexpr size_t reform_joiners_max = 256;  // taken in by one re-forming; more wait for the next

// Which roster a message is about.
struct EpochName {
  uint32_t epoch = 0;
  uint64_t digest = 0;
  friend bool operator==(const EpochName&, const EpochName&) = default;
};
EpochName name_of(const Roster& roster);

// Why a rank is not in the next roster. Ranks are those of the roster that is being re-formed.
struct Departure {
  enum class Cause : uint8_t {
    lost = 0,    // the accuser's link to it is gone
    silent = 1,  // it did not answer the accuser in time
    left = 2,    // it told the accuser that it had gone on without it
  };
  Rank rank = 0;
  Cause cause = Cause::lost;
  Rank accuser = 0;        // the rank that noticed first
  uint32_t waited_ms = 0;  // silent
  friend bool operator==(const Departure&, const Departure&) = default;
};
// "it did not answer rank 0 for 200 ms", "rank 2 lost the link to it"
std::string to_string(const Departure& departure);

// "I believe that these members are gone, and I know of these processes that want to join."
struct Propose {
  uint32_t round = 0;  // counts this sender's proposals; frames may overtake each other
  std::vector<Departure> departures;
  std::vector<MemberRecord> joiners;
};
// "Everybody in it agreed: this is the next roster."
struct Commit {
  Roster roster;
  std::vector<Departure> departures;
};
// "The group went on without you."
struct Removed {
  uint32_t epoch = 0;  // of the roster that lacks the receiver
  Departure departure;
  std::vector<Rank> removers;  // the first ranks that went on, by their old numbers
  uint32_t survivors = 0;      // how many went on
  uint32_t age_ms = 0;         // how long ago
};

struct ReformMessage {
  EpochName base;
  std::variant<Propose, Commit, Removed> body;
};

Bytes encode(const ReformMessage& message);
// Corrupt, naming the field, if cut, over a limit, or with bytes left over. Ranks are checked to be below world_size_max
// and departures to be in ascending order of rank; whether they make sense in the roster is for the state machine.
Result<ReformMessage> decode_reform(ByteView bytes);

}  // namespace unisono

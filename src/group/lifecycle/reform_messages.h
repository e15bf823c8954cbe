// The messages that members exchange to re-form their group. The functions convert bytes to values and back. They check all
// values and limits.
//
// Every message has the epoch and the digest of the roster to which it belongs. Therefore its first bytes show whether it
// belongs to an earlier epoch, or to the other half of a group that was split. The messages are sent as the payload of control
// frames.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "rendezvous/roster.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr uint8_t reform_version = 3;
// At most this many processes can join in one re-forming. The others wait for the next one.
inline constexpr size_t reform_joiners_max = 256;

// Identifies the roster to which a message belongs.
struct EpochName {
  uint32_t epoch = 0;
  uint64_t digest = 0;
  friend bool operator==(const EpochName&, const EpochName&) = default;
};
EpochName name_of(const Roster& roster);

// Says why a rank is not in the next roster. All ranks are those of the old roster, which is being re-formed.
struct Departure {
  enum class Cause : uint8_t {
    lost = 0,         // The reporter lost its link to the rank.
    silent = 1,       // The rank did not answer the reporter in time.
    left = 2,         // The rank told the reporter that it had gone on without the reporter.
    dead = 3,         // The reporter has proof that the rank's process has ended, or has left the job.
    unreachable = 4,  // The reporter could not make its link to the rank anew in time.
  };
  Rank rank = 0;
  Cause cause = Cause::lost;
  Rank reporter = 0;       // the rank that noticed the loss first
  uint32_t waited_ms = 0;  // used if the cause is `silent` or `unreachable`
  // Only members whose death is not proven count when a majority is required.
  bool is_proven() const { return cause == Cause::dead; }
  friend bool operator==(const Departure&, const Departure&) = default;
};
// Returns a text like "it did not answer rank 0 for 200 ms" or "rank 2 lost the link to it".
std::string to_string(const Departure& departure);

// PROPOSE: lists the members that the sender believes to be gone, and the processes that, as far as the sender knows, want to
// join.
struct Propose {
  uint32_t round = 0;  // The number of this proposal. The sender counts its proposals, because frames may overtake each other.
  // Some link of the sender is made anew, and the sender waits for it for at most this long. Until it says 0, it agrees to
  // nothing.
  uint32_t waits_ms = 0;
  std::vector<Departure> departures;
  std::vector<MemberRecord> joiners;
};
// COMMIT: the next roster. All of its members that survived from the old one have agreed on it.
struct Commit {
  Roster roster;
  std::vector<Departure> departures;
};
// REMOVED: tells the receiver that the group has gone on without it.
struct Removed {
  uint32_t epoch = 0;  // epoch of the roster that does not contain the receiver
  Departure departure;
  std::vector<Rank> removers;  // the lowest ranks of the members that went on; these are their old ranks
  uint32_t survivors = 0;      // number of members that went on
  uint32_t age_ms = 0;         // time since the group went on
};

struct ReformMessage {
  EpochName base;
  std::variant<Propose, Commit, Removed> body;
};

Bytes encode(const ReformMessage& message);
// Returns `corrupt`, with the name of the field, if the message is cut off, exceeds a limit, or has extra bytes. Ranks must be
// below world_size_max, and departures must be in ascending order of rank. The function does not know the roster; the state
// machine checks whether the ranks fit it.
Result<ReformMessage> decode_reform(ByteView bytes);

}  // namespace unisono

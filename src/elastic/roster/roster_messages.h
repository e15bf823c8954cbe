// What processes tell each other about who is there: the messages of RosterKeeper, and their bytes
// (docs/reference/wire_format.md).
//
// Every message carries what it costs nothing to carry: which layout is the newest, which averaging step was opened, and a few
// entries of the roster that changed lately. Decoders trust nothing: what is cut, too long or impossible is corrupt, and they
// allocate no more than they read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "elastic/layout/layout.h"
#include "elastic/roster/peer_roster.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr size_t run_id_bytes_max = 255;
inline constexpr size_t refusal_bytes_max = 1024;
inline constexpr size_t roster_claims_max = 128;  // per message: longer ones are split by who makes them

// To whoever listens at a seed, or where somebody lived that died: the sender's own claim comes first. Answered by
// RosterWelcome or RosterRefused; by nothing while the other is joining itself.
struct RosterHello {
  std::string run_id;
  uint64_t sum = 0;  // of the sender's roster: if it is the receiver's, no roster need be sent
  std::vector<uint64_t>
      parts;  // the sum in so many parts (PeerRoster::parts), or none: only of those that differ entries need be sent
  friend bool operator==(const RosterHello&, const RosterHello&) = default;
};
// A part of the roster; in order, the last part says so.
struct RosterWelcome {
  uint64_t sum = 0;
  bool last = false;
  std::vector<uint64_t> parts;  // with the last one, as in RosterHello
  friend bool operator==(const RosterWelcome&, const RosterWelcome&) = default;
};
enum class RefusalReason : uint8_t { run_id = 1, schema = 2, full = 3 };
struct RosterRefused {
  RefusalReason reason = RefusalReason::run_id;
  std::string text;
  friend bool operator==(const RosterRefused&, const RosterRefused&) = default;
};
// Answered by RosterAck to who sent it, with the same origin and sequence; a helper hands the answer on to the origin.
struct RosterProbe {
  PeerId origin;
  uint32_t sequence = 0;
  friend bool operator==(const RosterProbe&, const RosterProbe&) = default;
};
struct RosterAck {
  PeerId origin;
  PeerId target;
  uint32_t sequence = 0;
  friend bool operator==(const RosterAck&, const RosterAck&) = default;
};
// "Probe it for me."
struct RosterProbeRequest {
  PeerId target;
  uint32_t sequence = 0;
  friend bool operator==(const RosterProbeRequest&, const RosterProbeRequest&) = default;
};
// Changes, or parts of a whole roster.
struct RosterGossip {
  bool answer = false;  // to something: never answered itself, so that two who disagree do not go on for ever
  friend bool operator==(const RosterGossip&, const RosterGossip&) = default;
};
// Answered by the newest layout that the other holds.
struct LayoutPull {
  uint64_t version = 0;
  friend bool operator==(const LayoutPull&, const LayoutPull&) = default;
};
struct LayoutPush {
  std::shared_ptr<const Layout> layout;  // never null
  friend bool operator==(const LayoutPush& a, const LayoutPush& b) { return *a.layout == *b.layout; }
};

using RosterBody = std::variant<RosterHello, RosterWelcome, RosterRefused, RosterProbe, RosterAck, RosterProbeRequest,
                                RosterGossip, LayoutPull, LayoutPush>;

struct RosterMessage {
  uint64_t run = 0;             // fnv1a64 of the run's id: others' messages are dropped
  uint64_t steps_opened = 0;    // as FormationView says it
  uint64_t layout_version = 0;  // the newest that the sender holds; 0: none
  uint64_t layout_digest = 0;
  RosterBody body;
  std::vector<PeerClaim> claims;  // at most roster_claims_max
  friend bool operator==(const RosterMessage&, const RosterMessage&) = default;
};

// The first byte is ElasticChannel::roster, the second the kind.
Bytes encode(const RosterMessage& message);
Result<RosterMessage> decode_roster_message(ByteView bytes);

}  // namespace unisono

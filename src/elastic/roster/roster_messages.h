// Messages between RosterKeepers, and their bytes (docs/reference/wire_format.md).
//
// Every message also carries, at almost no cost, the newest layout, the opened averaging step, and a few roster entries that
// changed lately. Decoding trusts no input: cut, too long or impossible messages are corrupt, and it allocates no more than it
// reads.
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
inline constexpr size_t roster_claims_max = 128;  // per message; the sender splits longer lists

// To the process at a seed's address, or at a dead peer's: the sender's own claim comes first. It is answered by RosterWelcome
// or RosterRefused; a receiver that is joining itself does not answer.
struct RosterHello {
  std::string run_id;
  uint64_t sum = 0;  // of the sender's roster; if the receiver's is equal, no roster needs to be sent
  // The sum in parts (PeerRoster::parts), or empty. Only entries of parts that differ need to be sent.
  std::vector<uint64_t> parts;
  friend bool operator==(const RosterHello&, const RosterHello&) = default;
};
// One part of the roster. Parts are sent in order; the last one is marked.
struct RosterWelcome {
  uint64_t sum = 0;
  bool last = false;
  std::vector<uint64_t> parts;  // only in the last part, as in RosterHello
  friend bool operator==(const RosterWelcome&, const RosterWelcome&) = default;
};
enum class RefusalReason : uint8_t { run_id = 1, schema = 2, full = 3 };
struct RosterRefused {
  RefusalReason reason = RefusalReason::run_id;
  std::string text;
  friend bool operator==(const RosterRefused&, const RosterRefused&) = default;
};
// Answered by RosterAck to the sender, with the same origin and sequence. A helper passes the answer on to the origin.
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
// Asks the receiver to probe the target for the sender.
struct RosterProbeRequest {
  PeerId target;
  uint32_t sequence = 0;
  friend bool operator==(const RosterProbeRequest&, const RosterProbeRequest&) = default;
};
// Changes, or parts of a whole roster.
struct RosterGossip {
  // This is an answer: it is never answered, so that two peers that disagree do not answer each other for ever.
  bool answer = false;
  friend bool operator==(const RosterGossip&, const RosterGossip&) = default;
};
// Answered with the newest layout that the receiver holds.
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
  uint64_t run = 0;             // fnv1a64 of the run id; messages of other runs are dropped
  uint64_t steps_opened = 0;    // as in FormationView
  uint64_t layout_version = 0;  // the newest layout that the sender holds; 0: none
  uint64_t layout_digest = 0;
  RosterBody body;
  std::vector<PeerClaim> claims;  // at most roster_claims_max
  friend bool operator==(const RosterMessage&, const RosterMessage&) = default;
};

// The first byte is ElasticChannel::roster, the second the kind.
Bytes encode(const RosterMessage& message);
Result<RosterMessage> decode_roster_message(ByteView bytes);

}  // namespace unisono

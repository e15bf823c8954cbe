// Messages between RosterKeepers, and their encoding (docs/reference/wire_format.md).
//
// Every message also carries the version of the newest layout, the highest opened averaging step, and a few recently changed
// roster entries. This costs almost nothing. Decoding trusts no input: a message that is too short, too long or impossible is
// corrupt. Decoding allocates no more memory than the length of the message justifies.
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

// Asks the receiver to compare rosters. The receiver is a peer, or whichever process listens at the address of a seed or of a
// dead peer. The first claim is the sender's own entry. The receiver answers with RosterWelcome or RosterRefused.
struct RosterHello {
  std::string run_id;
  // The sum of the sender's roster (PeerRoster::sum). If the receiver has the same sum, it sends no roster.
  uint64_t sum = 0;
  // The sum in parts (PeerRoster::parts), or empty. If the receiver has the same part, it need not send the entries of that
  // part.
  std::vector<uint64_t> parts;
  friend bool operator==(const RosterHello&, const RosterHello&) = default;
};
// Its claims are entries of the sender's roster. A long roster takes several messages, which are sent in order; `last` marks
// the final one.
struct RosterWelcome {
  uint64_t sum = 0;
  bool last = false;
  std::vector<uint64_t> parts;  // the sum in parts, as in RosterHello; sent only if `last`
  friend bool operator==(const RosterWelcome&, const RosterWelcome&) = default;
};
// looking: the sender is itself still looking for the run. The first claim is then the sender's own entry. This is no failure:
// the receiver goes on asking, because the sender may find the run.
enum class RefusalReason : uint8_t { run_id = 1, schema = 2, full = 3, looking = 4 };
struct RosterRefused {
  RefusalReason reason = RefusalReason::run_id;
  std::string text;
  friend bool operator==(const RosterRefused&, const RosterRefused&) = default;
};
// The receiver answers the sender with a RosterAck that has the same `origin` and `sequence`. A sender may probe on behalf of
// another peer, which is then the `origin`. It passes the answer on to that peer.
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
// Asks the receiver to probe the target on behalf of the sender.
struct RosterProbeRequest {
  PeerId target;
  uint32_t sequence = 0;
  friend bool operator==(const RosterProbeRequest&, const RosterProbeRequest&) = default;
};
// Its claims are changed entries, or the entries of a whole roster.
struct RosterGossip {
  // True: this is an answer, and the receiver must not reply. Otherwise, two peers that disagree could answer each other for
  // ever.
  bool answer = false;
  friend bool operator==(const RosterGossip&, const RosterGossip&) = default;
};
// Requests the newest layout that the receiver holds.
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
  uint64_t run = 0;             // fnv1a64 of the run's id; receivers drop messages of other runs
  uint64_t steps_opened = 0;    // the highest opened averaging step that the sender knows, plus 1; 0: it knows none
  uint64_t layout_version = 0;  // version of the sender's newest layout; 0: it has none
  uint64_t layout_digest = 0;
  RosterBody body;
  std::vector<PeerClaim> claims;  // at most roster_claims_max
  friend bool operator==(const RosterMessage&, const RosterMessage&) = default;
};

// Encodes the message. The first byte is ElasticChannel::roster, and the second byte is the kind.
Bytes encode(const RosterMessage& message);
Result<RosterMessage> decode_roster_message(ByteView bytes);

}  // namespace unisono

// The peers of an engine: the processes to which it has a link. The engine owns the table. The ports of operations, the control
// messages, the failure protocol and the fast path use it. Entries are never removed.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "transports/transport.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

// The failure or the wait that a peer reported last.
struct PeerReport {
  std::string text{};  // for example "all_reduce 5: not finished after 300 ms: …"; empty: it reported none
  Nanos at = 0;
};

struct Peer {
  Transport* route = nullptr;         // the transport of the link; null: no link was ever added
  std::string label;                  // for example "host b, pid 42"
  Status lost;                        // ok while the link is up, otherwise the reason why it is down
  PeerFate fate = PeerFate::unknown;  // if the link is lost: what is known about the peer's process
  PeerReport report{};                // explains why the peer leaves, if it leaves soon after
  bool credit_requested = false;      // true: credit was requested, and the peer has not given any since
  // control frames that wait for credit; the oldest is first
  std::list<std::pair<FrameHeader, std::shared_ptr<Bytes>>> waiting;
};

using PeerTable = std::vector<Peer>;  // indexed by PeerIndex

}  // namespace unisono

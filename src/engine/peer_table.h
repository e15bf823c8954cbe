// The processes that an engine has links to: one table, which the engine, its operations' ports, the control messages, the
// failure protocol and the fast path share. The engine owns it; no entry is ever removed.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "transports/transport.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

struct Peer {
  Transport* route = nullptr;                                         // null: no link was ever added
  std::string label;                                                  // "host b, pid 42"
  Status lost;                                                        // ok while the link stands, else why it does not
  bool credit_requested = false;                                      // since the peer last gave credit
  std::list<std::pair<FrameHeader, std::shared_ptr<Bytes>>> waiting;  // control frames that wait for credit, in order
};

using PeerTable = std::vector<Peer>;  // by PeerIndex

}  // namespace unisono

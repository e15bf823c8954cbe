// Tells a death from an outage: from what a process has seen of a peer whose streams have no connection, to what follows.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace unisono {

enum class TcpVerdict : uint8_t {
  outage,  // dial on
  left,    // the peer has left in order
  dead,    // the peer's process has ended
  lost,    // the peer may live, but this link is given up
};

enum class TcpEnd : uint8_t {
  none,   // the connections still stand
  clean,  // the peer closed its side
  reset,  // an error
};

struct TcpEvidence {
  bool leaving = false;  // the peer's last frame was read
  TcpEnd end = TcpEnd::none;
  // If the peer's process runs under the same boot id and pid namespace: whether it is still there. Then no refusal counts.
  std::optional<bool> process_there{};
  bool successor = false;   // a process of the same job and rank asks to join
  bool gone = false;        // another process of the peer's port says that the peer is gone, or another peer id answers there
  bool no_session = false;  // the peer itself says that it has given up this link
  bool confirmed = false;   // a `left` was sent or received, so neither side needs anything any more
  bool refused = false;     // the last dial was refused
  bool answered_before = false;  // a dial of this process was once answered there, so a refusal means something
  Nanos refused_for = 0;         // how long all dials have been refused
  Nanos down_for = 0;            // how long no stream has had a connection
};

struct TcpVerdictLimits {
  Nanos link_timeout = 10 * second;
  // Where no dial was ever answered, not even TcpDialBack's, a firewall may refuse. The peer's own dial is awaited for so long.
  Nanos refused_timeout = 150 * millisecond;
  // After a clean end without `leaving`, a process that lives dials at once.
  Nanos silence_after_end = 1 * second;
};

TcpVerdict judge(const TcpEvidence& seen, const TcpVerdictLimits& limits = {});

// Returns true if a connection that stands looks broken, so that the stream dials beside it. Missing confirmations are no
// reason: a stopped process sends none.
bool is_suspicious(uint64_t unacknowledged_bytes, uint32_t repeats, Nanos since_acknowledged);

}  // namespace unisono

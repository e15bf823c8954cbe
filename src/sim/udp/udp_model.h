// Describes the network and the peers of a simulated run over UDP. As text, a model is one line, which gives rates, queues and
// delays, and the times at which peers die, stop or are slow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::sim {

//   dead: no datagram from or to the process arrives.
//   kill: the process is gone, and its host refuses datagrams.
//   stop: the process does nothing.
//   slow: the process takes `factor` times as long for its work between operations, and so do its ports for a datagram.
enum class PeerFaultKind : uint8_t { dead, kill, stop, slow };
const char* name(PeerFaultKind kind);

struct PeerFault {
  PeerFaultKind kind = PeerFaultKind::dead;
  PeerIndex process = 0;
  // The times are counted from the start of the first operation. If `to` is `never`, the fault lasts until the end of the run.
  Nanos from = 0, to = never;
  double factor = 1;              // only for `slow`
  std::string to_string() const;  // for example "dead=3@2s"
  friend bool operator==(const PeerFault&, const PeerFault&) = default;
};

struct UdpModel {
  uint64_t bits_per_second = 1'000'000'000;  // rate of each port, outgoing and incoming
  uint64_t queue_bytes = 256u << 10;         // queue before each incoming port
  Nanos delay = 50 * microsecond, jitter = 0;
  uint32_t datagram_bytes = 1472;  // largest datagram that the network carries
  Nanos compute = 0, spread = 0;   // Between two operations, a rank works for `compute` plus a random time of up to `spread`.
  std::vector<PeerFault> faults = {};

  // Parses a list such as
  // "rate=100M,queue=256K,delay=200us,jitter=50us,datagram=1472,compute=5ms,spread=1ms,dead=3@2s,slow=5x10". Other faults are
  // dead=3@2s-2.5s, kill=3@2s and stop=3@2s-2.1s. Faults may repeat. Missing values keep their defaults. Rates are in bits and
  // use powers of 1000. Sizes are in bytes and use powers of 1024. Fails with Code::invalid; the message quotes the invalid
  // part.
  static Result<UdpModel> parse(std::string_view text);
  std::string to_string() const;
  // Fails with Code::invalid if a fault concerns a process that does not exist, or if datagrams are too short for ranges.
  Status check(uint32_t processes) const;
  bool has(PeerFaultKind kind) const;
  friend bool operator==(const UdpModel&, const UdpModel&) = default;
};

}  // namespace unisono::sim

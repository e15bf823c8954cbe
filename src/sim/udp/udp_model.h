// Network and peers of a simulated run over UDP as one line of words: rates, queues, delays, and times at which peers die, stop
// or are slow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::sim {

// dead: nothing from or to the process arrives. kill: the process is gone, and its host refuses datagrams. stop: the process
// does nothing. slow: its ports, and its work between two operations, take `factor` times as long.
enum class PeerFaultKind : uint8_t { dead, kill, stop, slow };
const char* name(PeerFaultKind kind);

struct PeerFault {
  PeerFaultKind kind = PeerFaultKind::dead;
  PeerIndex process = 0;
  Nanos from = 0, to = never;     // since the start of the first operation; never: to the end
  double factor = 1;              // slow
  std::string to_string() const;  // "dead=3@2s"
  friend bool operator==(const PeerFault&, const PeerFault&) = default;
};

struct UdpModel {
  uint64_t bits_per_second = 1'000'000'000;  // of each port, out and in
  uint64_t queue_bytes = 256u << 10;         // before an incoming port
  Nanos delay = 50 * microsecond, jitter = 0;
  uint32_t datagram_bytes = 1472;  // largest datagram that the network carries
  Nanos compute = 0, spread = 0;   // work of a rank between two operations, and the limit of a random addition
  std::vector<PeerFault> faults = {};

  // "rate=100M,queue=256K,delay=200us,jitter=50us,datagram=1472,compute=5ms,spread=1ms,dead=3@2s,dead=3@2s-2.5s,kill=3@2s,stop=3@2s-2.1s,slow=5x10";
  // "" = as above. Rates are bits in powers of 1000, sizes bytes in powers of 1024. Faults as often as needed. invalid: names
  // the part that is wrong.
  static Result<UdpModel> parse(std::string_view text);
  std::string to_string() const;
  // invalid: it names a process that does not exist, or datagrams are too short for ranges.
  Status check(uint32_t processes) const;
  bool has(PeerFaultKind kind) const;
  friend bool operator==(const UdpModel&, const UdpModel&) = default;
};

}  // namespace unisono::sim

// For tests of links: what happens in a run, and which faults there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/tcp/stream_world.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono::sim {

enum class LinkFault : uint8_t {
  reset,
  relay_drop,
  forget_path,
  outage,
  one_way_outage,
  slow,
  stop,
  crash,
  host_loss,
  move,
  alter
};
inline constexpr int link_fault_count = 10;  // without `alter`, which only encrypted links survive

struct LinksPlan {
  uint64_t seed = 0;
  StreamSettings streams{};
  TcpOptions transport{};
  uint32_t processes = 2;
  bool relayed = false;  // process 1 is reached through a relay
  bool sleeps = false;   // processes poll only when there is work
  int steps = 300;
  size_t payload_bytes_max = 20'000;
  double fault_chance = 0;  // per step
  std::vector<LinkFault> faults{};
};

// A link ends only with one of its processes, or if both sides cannot find each other again. Outages are shorter than the time
// after which a link is lost.
inline bool may_lose_links(LinkFault fault) {
  switch (fault) {
    case LinkFault::crash:
    case LinkFault::host_loss:
    case LinkFault::move: return true;
    case LinkFault::reset:
    case LinkFault::relay_drop:
    case LinkFault::forget_path:
    case LinkFault::outage:
    case LinkFault::one_way_outage:
    case LinkFault::slow:
    case LinkFault::stop:
    case LinkFault::alter: return false;  // see LinkProcesses::start
  }
  return true;
}

}  // namespace unisono::sim

// For tests of links: the plan of a run, which seeds to run, and the network and the sizes that follow from a seed.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "sim/tcp/virtual_streams.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono::sim {

enum class LinkFault : uint8_t { reset, relay_drop, forget_path, outage, one_way_outage, slow, stop, crash, host_loss, move };
inline constexpr int link_fault_count = 10;

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
    case LinkFault::stop: return false;
  }
  return true;
}

struct Seeds {
  uint64_t first = 0, end = 0;
};

inline Seeds seeds(uint64_t count) {
  if (const char* text = std::getenv("UNISONO_TEST_SEED")) {
    const auto seed = std::strtoull(text, nullptr, 10);
    return {seed, seed + 1};
  }
  const char* text = std::getenv("UNISONO_TEST_SEEDS");
  return {0, text == nullptr ? count : std::strtoull(text, nullptr, 10)};
}

// A network and sizes from the seed, without faults.
inline LinksPlan plan_of(uint64_t seed) {
  Random random(mix64(seed) ^ 0x71);
  LinksPlan plan{.seed = seed};
  auto& streams = plan.streams;
  streams.seed = random.next();
  streams.delay = static_cast<Nanos>(10 + random.below(200)) * microsecond;
  streams.jitter = static_cast<Nanos>(random.below(200)) * microsecond;
  streams.send_queue_bytes = 200 + random.below(random.chance(0.5) ? 1000 : 60'000);
  streams.receive_queue_bytes = 200 + random.below(random.chance(0.5) ? 1000 : 60'000);
  streams.segment_bytes_max = 100 + random.below(3000);
  if (random.chance(0.2)) streams.record_bytes_max = 1 + random.below(150);
  streams.short_write = random.chance(0.5) ? 0.3 : 0;
  streams.short_read = random.chance(0.3) ? 0.3 : 0;
  streams.acknowledgement_delay = random.chance(0.5) ? millisecond : 0;
  streams.late_arrival = 0.5;
  auto& transport = plan.transport;
  transport.streams = random.chance(0.6) ? 1 : static_cast<uint32_t>(2 + random.below(4));
  transport.payload_checksum = random.chance(0.2);
  transport.link.queue_frames_max = 1 + random.below(16);
  transport.pool.owner_bytes_max = 4096u << random.below(6);
  plan.payload_bytes_max = std::min<size_t>(20'000, 20 * std::min(streams.send_queue_bytes, streams.receive_queue_bytes));
  plan.processes = random.chance(0.3) ? 3 : 2;
  plan.relayed = random.chance(0.2);
  plan.sleeps = random.chance(0.5);
  return plan;
}

}  // namespace unisono::sim

// For tests of links: which seeds to run, and the network and the sizes that follow from a seed.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "sim/tcp/link_processes_test_support.h"

namespace unisono::sim {

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

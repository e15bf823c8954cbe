// One rank's part of the doctor: its facts, and the probes of other ranks that rank 0 orders.
//
// Every probe has a deadline of its own and ends with a value, whatever the network does. One probe runs at a time; the
// answers to other ranks' probes are given meanwhile by the Responder's threads.
#pragma once

#include <memory>
#include <vector>

#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_responder.h"
#include "rendezvous/environment.h"
#include "transports/shm/shm_transport.h"
#include "unisono/status.h"

namespace unisono::cli {

class Prober {
 public:
  // Longer than the kernel takes to repeat a lost first packet (1 s).
  static constexpr Nanos dial_patience = 2500 * millisecond;
  static constexpr Nanos measure_patience = 25 * second;  // the longest that measure() takes
  static constexpr Nanos share_patience = 3 * second;

  // unavailable: no socket for the probes. Shared memory that cannot be made is a fact, not an error.
  static Result<std::unique_ptr<Prober>> make(const ResolvedOptions& options);

  const RankFacts& facts() const { return facts_; }
  // The ranks that take part, and the key under which they share memory.
  void set_ranks(std::vector<RankFacts> ranks, const JobKey& key);

  // Dials every address of every other rank.
  std::vector<Reach> reach_others() const;
  // How long that can take.
  Nanos reach_patience() const;
  // Round trip, long frames, bandwidth and clock, through the first address that answered. Call after reach_others found one.
  Measured measure(const Reach& reach) const;
  // Both ranks at the same time.
  Shared share(uint32_t with);

 private:
  struct Target {
    uint32_t rank = 0;
    AddressTry known;  // what is known of the address before it is tried
    DialRequest dial;
  };
  Prober() = default;
  std::vector<Target> targets_of(const RankFacts& other) const;
  const RankFacts* find(uint32_t rank) const;

  RankFacts facts_;
  std::unique_ptr<Responder> responder_;
  std::unique_ptr<ShmTransport> memory_;
  std::vector<RankFacts> ranks_;
};

}  // namespace unisono::cli

// The work of one rank for the doctor. It gathers its own facts, and probes other ranks when rank 0 orders it to.
//
// Every probe has a deadline and returns a value, whatever happens in the network. Only one probe runs at a time. Meanwhile,
// the threads of the Responder answer probes from other ranks.
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
  // If the first packet of a connection is lost, the kernel sends it again after 1 s. The timeout must be longer than this.
  static constexpr Nanos dial_timeout = 2500 * millisecond;
  static constexpr Nanos measure_timeout = 25 * second;  // measure() takes at most this long
  static constexpr Nanos share_timeout = 3 * second;

  // Returns Code::unavailable if there is no socket for the probes. It is no error if shared memory cannot be created; then
  // facts() says why.
  static Result<std::unique_ptr<Prober>> make(const ResolvedOptions& options);

  const RankFacts& facts() const { return facts_; }
  // Sets which ranks take part, and the key that they use to share memory.
  void set_ranks(std::vector<RankFacts> ranks, const JobKey& key);

  // Dials every address of every other rank.
  std::vector<Reach> reach_others() const;
  // Returns how long reach_others() may take at most.
  Nanos reach_timeout() const;
  // Measures round trip, long frames, bandwidth and clock. Uses the first address in `reach` that has answered. At least one
  // address must have answered.
  Measured measure(const Reach& reach) const;
  // Tries to share memory with another rank. Both ranks must call this at the same time.
  Shared share(uint32_t with);

 private:
  struct Target {
    uint32_t rank = 0;
    AddressTry known;  // what is known about the address before it is dialled
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

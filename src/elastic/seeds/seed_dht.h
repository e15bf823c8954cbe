// OpenDHT, a distributed hash table, as a place where processes of an elastic run find each other: each puts its addresses
// under a key that follows from the run's id, and reads what others have put there.
//
// What is read is anybody's word, checked for its form only (elastic/seeds/seed_record.h). The table's own threads end in here:
// they touch nothing of the caller's. Builds without OpenDHT have seed_dht_none.cc instead of seed_dht.cc, the only source that
// includes its headers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "unisono/status.h"

namespace unisono {

struct SeedDhtOptions {
  std::string run_id{};
  std::vector<std::string> addresses{};  // of this process, best first; empty: it is not to be found
  std::vector<TcpAddress> bind{};  // where it takes part in the table from: the first of each family; empty: all interfaces.
                                   // Ports are the kernel's choice
  uint64_t seed = 0;               // of the number of its record, and of random choices
};

// The text that is hashed for a run's key.
std::string seed_dht_key(const std::string& run_id);

class SeedDht {
 public:
  // Of all that others have put there, so many at most are given out, drawn at random.
  static constexpr size_t addresses_max = 32;
  // Records that a look-up takes in at most.
  static constexpr size_t records_max = 256;

  static bool built_in();
  // unsupported: built_in() is false. unavailable: its sockets cannot be opened, or its threads not be started.
  static Result<std::unique_ptr<SeedDht>> make(const SeedDhtOptions& options);
  virtual ~SeedDht() = default;

  struct Found {
    std::vector<std::string> addresses{};
    std::string failure{};  // why there are none
  };
  // Asks the bootstrap nodes `nodes` where this process is not yet part of the table, puts its record there, again if it was
  // not taken, and looks who else is there. Blocks for up to `wait` for an answer, and as long again for the search. Afterwards
  // the table keeps the record alive by itself. One call at a time; stop() may come meanwhile, and ends it.
  virtual Found look_up(std::span<const TcpAddress> nodes, Nanos wait) = 0;
  // Takes part no longer. What was put there expires within ten minutes.
  virtual void stop() = 0;
};

}  // namespace unisono

// Uses OpenDHT, a distributed hash table, to let processes of an elastic run find each other. Each process puts its addresses
// under a key derived from the run id, and reads other processes' records.
//
// Records may come from anybody; they are checked for their form only (elastic/seeds/seed_record.h). The table's own threads
// stay inside this class and touch nothing of the caller's. Only seed_dht.cc includes OpenDHT's headers; builds without OpenDHT
// use seed_dht_none.cc instead.
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
  std::vector<std::string> addresses{};  // of this process, best first; empty: other processes shall not find it
  // Local addresses from which it takes part in the table: the first of each family; empty: all interfaces. The kernel chooses
  // the ports.
  std::vector<TcpAddress> bind{};
  uint64_t seed = 0;  // for the number of its record, and for random choices
};

// The text whose hash is a run's key.
std::string seed_dht_key(const std::string& run_id);

class SeedDht {
 public:
  // A look-up returns at most this many addresses, drawn at random from those found.
  static constexpr size_t addresses_max = 32;
  // A look-up reads at most this many records.
  static constexpr size_t records_max = 256;

  static bool built_in();
  // Errors. unsupported: built_in() is false. unavailable: its sockets cannot be opened or its threads cannot be started.
  static Result<std::unique_ptr<SeedDht>> make(const SeedDhtOptions& options);
  virtual ~SeedDht() = default;

  struct Found {
    std::vector<std::string> addresses{};
    std::string failure{};  // why there are no addresses
  };
  // Joins the table through the bootstrap nodes `nodes` if necessary, puts this process's record there (again if it was not
  // accepted), and searches for other records. Blocks for up to `wait` for an answer, and as long again for the search.
  // Afterwards the table renews the record by itself. One call at a time; a concurrent stop() ends it.
  virtual Found look_up(std::span<const TcpAddress> nodes, Nanos wait) = 0;
  // Leaves the table. The record expires within ten minutes.
  virtual void stop() = 0;
};

}  // namespace unisono

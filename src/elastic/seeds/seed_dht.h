// The processes of an elastic run find each other through OpenDHT, a distributed hash table. Each process stores its addresses
// under a key that is derived from the run's id, and reads the records of other processes.
//
// Anybody can store records. Only their form is checked (elastic/seeds/seed_record.h). OpenDHT's threads do not access the
// caller's data. Only seed_dht.cc includes OpenDHT's headers. Builds without OpenDHT use seed_dht_none.cc instead.
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
  std::vector<std::string> addresses{};  // addresses of this process, best first; if empty, no record is stored
  // Local addresses for the table's sockets. The first IPv4 address and the first IPv6 address are used; the kernel chooses the
  // ports. If there are none, all interfaces are used.
  std::vector<TcpAddress> bind{};
  uint64_t seed = 0;  // determines the number of the record, and all random choices
};

// Returns a text. The hash of this text is the table's key for the run.
std::string seed_dht_key(const std::string& run_id);

class SeedDht {
 public:
  // A look-up returns at most this many addresses. If it finds more, it returns random ones of them.
  static constexpr size_t addresses_max = 32;
  // A look-up reads at most this many records.
  static constexpr size_t records_max = 256;

  static bool built_in();
  // Returns the error unsupported if built_in() is false. Returns the error unavailable if sockets cannot be opened or threads
  // cannot be started.
  static Result<std::unique_ptr<SeedDht>> make(const SeedDhtOptions& options);
  virtual ~SeedDht() = default;

  struct Found {
    std::vector<std::string> addresses{};
    // Why no address was found. Empty if some addresses were found.
    std::string failure{};
  };
  // Joins the table through the bootstrap nodes `nodes`, if it has not joined yet. Stores this process's record, if the table
  // has not accepted it yet; from then on the table renews the record by itself. Then searches for other records. Blocks for up
  // to `wait` until a node answers, and for up to `wait` during the search. There must be only one call at a time; a concurrent
  // stop() ends the call.
  virtual Found look_up(std::span<const TcpAddress> nodes, Nanos wait) = 0;
  // Leaves the table. This process's record expires within ten minutes.
  virtual void stop() = 0;
};

}  // namespace unisono

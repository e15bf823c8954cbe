// Looks up the seeds of an elastic run. It uses a new thread for each look-up, because name servers, files and a hash table may
// be slow, and the run's own thread must not wait for them. If all seeds are addresses, it uses no thread.
//
// Results are kept until newer ones replace them. version() tells, without a lock, whether there are newer results. If a
// look-up hangs in a name server, the destructor abandons the look-up's thread. That thread uses no data of other threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "elastic/seeds/elastic_options.h"
#include "elastic/seeds/seed_dht.h"
#include "unisono/status.h"

namespace unisono {

struct SeedFinderOptions {
  std::vector<std::string> seeds{};
  // One of the table's bootstrap nodes must answer within this time. The search that follows may take as long again.
  Nanos dht_wait = 3 * second;
  SeedDhtOptions dht{};
};

class SeedFinder {
 public:
  explicit SeedFinder(SeedFinderOptions options);
  ~SeedFinder();  // takes at most 0.2 s, and with a hash table the second or so that it needs to stop
  SeedFinder(const SeedFinder&) = delete;
  SeedFinder& operator=(const SeedFinder&) = delete;

  // Begins the first look-up. Returns when names and files were read, or after `timeout`. Results from the hash table come
  // later. Returns the errors of resolve_seeds.
  Status start(Nanos timeout);
  // Begins another look-up. Does nothing if a look-up is running or all seeds are addresses.
  void look_again();
  bool busy() const;
  // Returns true if some addresses may come from the hash table, to which anybody can write.
  bool by_table() const;
  // Returns a number that rises with each new result.
  uint64_t version() const;
  // Returns the results of the last look-up, and what a running look-up has found so far. dht_nodes is empty.
  Seeds found() const;

 private:
  struct State;
  static void look_up(const std::shared_ptr<State>& state);
  // Returns null if the table is not available, or if the finder is being destroyed.
  static SeedDht* dht_of(const std::shared_ptr<State>& state, std::vector<std::string>& failures);
  static void ask_dht(const std::shared_ptr<State>& state, const std::vector<SeedName>& nodes);
  const std::shared_ptr<State> state_;
};

}  // namespace unisono

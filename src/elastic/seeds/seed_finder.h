// Looks up the seeds of an elastic run in a thread of its own, once per request. Name servers, files and a hash table may be
// slow, and the run's own thread must not wait for them. If all seeds are addresses, there is no such thread.
//
// Results are kept until newer ones replace them; version() tells of these without a lock. A look-up that hangs in a name
// server is abandoned when the finder is destroyed: it shares no data with other threads.
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
  Nanos dht_wait = 3 * second;  // once for the table's bootstrap nodes, and once for the search
  SeedDhtOptions dht{};
};

class SeedFinder {
 public:
  explicit SeedFinder(SeedFinderOptions options);
  ~SeedFinder();  // takes at most two seconds
  SeedFinder(const SeedFinder&) = delete;
  SeedFinder& operator=(const SeedFinder&) = delete;

  // The first look-up. Returns when names and files are read, or at the timeout; the table's answer comes later. Errors: as
  // resolve_seeds.
  Status start(Nanos timeout);
  // Begins another look-up, unless one is under way or there is nothing to look up.
  void look_again();
  bool busy() const;
  // Some addresses come from the hash table, so anybody may have put them there.
  bool by_table() const;
  // Rises whenever there is a new result.
  uint64_t version() const;
  // Results of the last look-up, and those that a running one has found so far. dht_nodes is empty.
  Seeds found() const;

 private:
  struct State;
  static void look_up(const std::shared_ptr<State>& state);
  // Null if the table is not available, or the finder is being destroyed.
  static SeedDht* dht_of(const std::shared_ptr<State>& state, std::vector<std::string>& failures);
  static void ask_dht(const std::shared_ptr<State>& state, const std::vector<SeedName>& nodes);
  const std::shared_ptr<State> state_;
};

}  // namespace unisono

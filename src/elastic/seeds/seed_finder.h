// Looks up the seeds of an elastic run, as often as it is asked to, in a thread of its own: name servers, files and a hash
// table may take their time, and the run's own thread must not wait for them. Where all seeds are addresses there is no such
// thread.
//
// What is found stands here until more is: version() tells of it without a lock. A look-up that hangs in a name server is left
// behind when the finder goes: it shares nothing with anybody.
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
  Nanos dht_wait = 3 * second;  // for the table's bootstrap nodes, and again for what is there
  SeedDhtOptions dht{};
};

class SeedFinder {
 public:
  explicit SeedFinder(SeedFinderOptions options);
  ~SeedFinder();  // within two seconds
  SeedFinder(const SeedFinder&) = delete;
  SeedFinder& operator=(const SeedFinder&) = delete;

  // The first look-up. Returns when names and files are read, or the time is over; the table's answer comes later. Errors as
  // resolve_seeds.
  Status start(Nanos timeout);
  // Begins another one, unless one is under way or there is nothing to look up.
  void look_again();
  bool busy() const;
  // Some of what is found is anybody's word.
  bool by_table() const;
  // Higher whenever there is something new to be had.
  uint64_t version() const;
  // Of the last look-up, and of the one that is under way what it has by now. dht_nodes: none.
  Seeds found() const;

 private:
  struct State;
  static void look_up(const std::shared_ptr<State>& state);
  // Null if there is none to be had, or the finder is gone.
  static SeedDht* dht_of(const std::shared_ptr<State>& state, std::vector<std::string>& failures);
  static void ask_dht(const std::shared_ptr<State>& state, const std::vector<SeedName>& nodes);
  const std::shared_ptr<State> state_;
};

}  // namespace unisono

// What ElasticOptions ask for: checked, with time-outs filled in, seeds as addresses, and the digest of what peers must agree
// on.
//
// resolve_seeds and look_up_host ask name servers and read files, so they block; everything else here is a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/codec.h"
#include "elastic/wire/elastic_times.h"
#include "net/socket_address.h"
#include "unisono/elastic.h"
#include "unisono/status.h"

namespace unisono {

// Of all that peers of one run must agree on to average: sizes of tensors, codecs, group size, grid, rounds, commit.
uint64_t schema_hash(const ElasticOptions& options);
// The profile's time-outs, with those that are given in their place.
ElasticTimes elastic_times(const ElasticOptions& options);
// Elements of all tensors together; checked by check_elastic_options.
uint64_t total_elements(const ElasticOptions& options);
// invalid (bad_option), naming the option and what is allowed; unsupported: a seed that this build cannot look up.
Status check_elastic_options(const ElasticOptions& options);

struct SeedName {
  std::string host;
  uint16_t port = 0;
  bool dht = false;  // not a peer's: a node of a distributed hash table where peers can be found
  bool operator==(const SeedName&) const = default;
};
// "host:port", "[::1]:port", "tcp://…", "dht:host", "dht:host:port": host and port apart. invalid: not of that form.
// unsupported: this build has no table.
Result<SeedName> parse_seed(std::string_view text);

struct Seeds {
  std::vector<std::string> addresses;  // "tcp://10.0.0.1:4040", each once, in the order given
  std::vector<std::string> failures;   // "host x: name or service not known"; seeds that name nothing now may do so later
  std::vector<SeedName> dht_nodes;     // not looked up yet
};
// Names with several addresses stand for all of them; "file:PATH" holds one seed per line, "#" begins a comment.
// Errors as parse_seed, for what is no seed and no file by its form either.
Result<Seeds> resolve_seeds(std::span<const std::string> seeds);
// unavailable: it has no address, and why.
Result<std::vector<TcpAddress>> look_up_host(const SeedName& seed);
// True if looking them up again can bring nothing new: all are addresses.
bool seeds_stay(std::span<const std::string> seeds);

}  // namespace unisono

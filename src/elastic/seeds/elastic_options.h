// Checks ElasticOptions and derives from them: timeouts, addresses of seeds, and the digest of the settings that peers must
// agree on.
//
// resolve_seeds and look_up_host query name servers and read files, so they block. All others are pure functions.
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

// Digest of the settings that all peers of a run must agree on to average: sizes of tensors, codecs, group size, grid, rounds,
// commit.
uint64_t schema_hash(const ElasticOptions& options);
// The profile's timeouts, replaced by those that the options set.
ElasticTimes elastic_times(const ElasticOptions& options);
// Elements of all tensors together. The options must have passed check_elastic_options.
uint64_t total_elements(const ElasticOptions& options);
// Errors. invalid (bad_option): names the option and what is allowed. unsupported: a seed that this build cannot look up.
Status check_elastic_options(const ElasticOptions& options);

struct SeedName {
  std::string host;
  uint16_t port = 0;
  bool dht = false;  // the address is not a peer's but a node's of a distributed hash table, where peers can be found
  bool operator==(const SeedName&) const = default;
};
// Parses "host:port", "[::1]:port", "tcp://…", "dht:host" or "dht:host:port". Errors. invalid: another form. unsupported: this
// build has no distributed hash table.
Result<SeedName> parse_seed(std::string_view text);

struct Seeds {
  std::vector<std::string> addresses;  // "tcp://10.0.0.1:4040", each once, in the order given
  std::vector<std::string> failures;   // "host x: name or service not known"; a seed that fails now may work later
  std::vector<SeedName> dht_nodes;     // still to be asked
};
// A name with several addresses yields all of them. "file:PATH" holds one seed per line; "#" begins a comment. Errors: as
// parse_seed, for a text that is neither a seed nor a file by its form.
Result<Seeds> resolve_seeds(std::span<const std::string> seeds);
// Error: unavailable, with the reason why the host has no address.
Result<std::vector<TcpAddress>> look_up_host(const SeedName& seed);
// True if all seeds are addresses, so another look-up cannot find anything new.
bool seeds_stay(std::span<const std::string> seeds);

}  // namespace unisono

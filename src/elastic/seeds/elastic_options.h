// Checks ElasticOptions. Derives from them the timeouts, the addresses of seeds, and a digest of the settings that all peers
// share.
//
// resolve_seeds and look_up_host block, because they query name servers and read files. All other functions are pure.
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

// Returns a digest of those settings that must be equal at all peers: tensor sizes, codecs, group size, grid, rounds and commit
// rule.
uint64_t schema_hash(const ElasticOptions& options);
// Returns the timeouts of the chosen profile. If the options set a timeout, it replaces that of the profile.
ElasticTimes elastic_times(const ElasticOptions& options);
// Returns the number of elements of all tensors together. The options must have passed check_elastic_options.
uint64_t total_elements(const ElasticOptions& options);
// Returns ok, or one of two errors. invalid (bad_option): the text names the option and the values that are allowed.
// unsupported: a seed must be looked up in a way that this build does not have.
Status check_elastic_options(const ElasticOptions& options);

struct SeedName {
  std::string host;
  uint16_t port = 0;
  bool dht = false;  // true: the host is a node of a distributed hash table, in which peers can be found
  bool operator==(const SeedName&) const = default;
};
// Parses "host:port", "[::1]:port", "tcp://…", "dht:host" or "dht:host:port". Returns the error invalid if the text has another
// form. Returns the error unsupported for a "dht:" seed if this build has no distributed hash table.
Result<SeedName> parse_seed(std::string_view text);

struct Seeds {
  std::vector<std::string> addresses;  // addresses of peers, such as "tcp://10.0.0.1:4040", each once, in the order given
  // Says which look-ups failed, for example "host x: name or service not known". A later look-up may succeed.
  std::vector<std::string> failures;
  std::vector<SeedName> dht_nodes;  // nodes of a distributed hash table; the caller must query them
};
// Looks up all seeds. A name may give several addresses. The file of a seed "file:PATH" has one seed per line, and "#" begins a
// comment. If a text is neither a seed nor "file:PATH", returns the error of parse_seed.
Result<Seeds> resolve_seeds(std::span<const std::string> seeds);
// Returns the host's addresses, or the error unavailable with the reason why there are none.
Result<std::vector<TcpAddress>> look_up_host(const SeedName& seed);
// Returns true if all seeds are addresses. In this case, another look-up would give the same result.
bool all_seeds_are_addresses(std::span<const std::string> seeds);

}  // namespace unisono

#include "elastic/seeds/elastic_options.h"

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/bytes.h"
#include "base/concat.h"
#include "base/error_text.h"
#include "codecs/codec.h"
#include "elastic/seeds/seed_dht.h"
#include "wire/digest.h"

namespace unisono {

namespace {

constexpr uint64_t elements_max = uint64_t{1} << 36;
constexpr size_t tensors_max = 1 << 20, seeds_max = 1024, dht_nodes_max = 16, name_bytes_max = 200;
constexpr uint16_t dht_port = 4222;  // the default port of OpenDHT

Status bad(const std::string& option, const std::string& what) { return {Code::invalid, "bad_option: " + option + " " + what}; }

Status check_step(const char* option, const StepCodec& step) {
  const auto fault = why_invalid(step);
  return fault.empty() ? Status() : bad(option, "is invalid: " + fault);
}

void write_step(ByteWriter& writer, const StepCodec& step) {
  writer.write(static_cast<uint8_t>(step.kind))
      .write(step.bits)
      .write(step.group)
      .write(static_cast<uint8_t>(step.metadata))
      .write(static_cast<uint8_t>(step.spikes));
}

// Looks up a seed, and adds each of its addresses to `found`, unless it is there already. Addresses become endpoints:
// "10.0.0.1:4" becomes "tcp://10.0.0.1:4".
void look_up(const SeedName& seed, Seeds& found) {
  if (seed.dht) {
    if (std::ranges::find(found.dht_nodes, seed) == found.dht_nodes.end() && found.dht_nodes.size() < dht_nodes_max)
      found.dht_nodes.push_back(seed);
    return;
  }
  const auto addresses = look_up_host(seed);
  if (!addresses.ok()) {
    found.failures.push_back(addresses.status().message());
    return;
  }
  for (const auto& address : *addresses) {
    auto endpoint = address.endpoint();
    if (std::ranges::find(found.addresses, endpoint) == found.addresses.end() && found.addresses.size() < seeds_max)
      found.addresses.push_back(std::move(endpoint));
  }
}

Status bad_seed(const std::string& where, const Status& why) {
  return {why.code(), "bad_option: seeds " + where + ": " + why.message()};
}

std::string trimmed(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

Status add_file(const std::string& path, Seeds& found) {
  std::ifstream file(path);
  if (!file) {
    found.failures.push_back(path + ": " + std::strerror(errno) + descriptor_limit_text(errno));
    return {};
  }
  std::string line;
  for (size_t number = 1; std::getline(file, line) && number <= seeds_max; ++number) {
    line = trimmed(line);
    if (line.empty()) continue;
    const auto seed = parse_seed(line);
    if (!seed.ok()) return bad_seed(concat(path, ", line ", number), seed.status());
    look_up(*seed, found);
  }
  return {};
}

}  // namespace

uint64_t schema_hash(const ElasticOptions& options) {
  ByteWriter writer;
  for (const auto elements : options.tensor_elements) writer.write(elements);
  writer.write(options.max_group).write(options.rounds).write(options.min_chunks);
  writer.write(static_cast<uint8_t>(options.grid)).write(static_cast<uint8_t>(options.commit));
  write_step(writer, options.contribute);
  write_step(writer, options.result);
  return digest64(writer.view());
}

ElasticTimes elastic_times(const ElasticOptions& options) {
  auto times = options.profile == ElasticOptions::Profile::wan ? ElasticTimes::wan() : ElasticTimes::lan();
  if (options.gather_timeout.count() > 0) times.gather_timeout = options.gather_timeout.count() * millisecond;
  if (options.stall_timeout.count() > 0) {
    times.stall_timeout = options.stall_timeout.count() * millisecond;
    times.result_timeout = 2 * times.stall_timeout;
  }
  return times;
}

uint64_t total_elements(const ElasticOptions& options) {
  uint64_t total = 0;
  for (const auto elements : options.tensor_elements) total += elements;
  return total;
}

Status check_elastic_options(const ElasticOptions& options) {
  if (options.run_id.empty() || options.run_id.size() > name_bytes_max) return bad("run_id", "must have 1 to 200 bytes");
  if (options.name.size() > name_bytes_max) return bad("name", "may have up to 200 bytes");
  if (!options.found && options.seeds.empty())
    return bad("seeds", "are empty, and `found` is not set: there is no run to join");
  if (options.seeds.size() > seeds_max) return bad("seeds", "may be up to 1024");
  if (options.tensor_elements.empty() || options.tensor_elements.size() > tensors_max)
    return bad("tensor_elements", "must name 1 to 1048576 tensors");
  if (std::ranges::any_of(options.tensor_elements, [](uint64_t elements) { return elements > elements_max; }) ||
      total_elements(options) > elements_max)
    return bad("tensor_elements", "are more than 2^36 together");
  if (options.max_group < 4 || options.max_group > 128)
    return bad("max_group", concat("is ", options.max_group, ": 4 to 128 are possible"));
  if (options.rounds > 64) return bad("rounds", "may be up to 64");
  if (options.max_peers < 1 || options.max_peers > 4096) return bad("max_peers", "must be 1 to 4096");
  if (options.min_peers < 1 || options.min_peers > options.max_peers) return bad("min_peers", "must be 1 to max_peers");
  for (const auto& seed : options.seeds) {
    if (seed.starts_with("file:")) continue;
    if (const auto parsed = parse_seed(seed); !parsed.ok()) return bad_seed('"' + seed + '"', parsed.status());
  }
  for (const auto wait : {options.gather_timeout, options.stall_timeout}) {
    if (wait.count() < 0 || wait.count() > timeout_max / millisecond)
      return bad("gather_timeout or stall_timeout", "must be 0 to 30 days");
  }
  if (options.join_timeout.count() < 0 || options.join_timeout.count() > timeout_max / millisecond)
    return bad("join_timeout", "must be 0 to 30 days");
  if (auto status = check_step("contribute", options.contribute); !status.ok()) return status;
  if (auto status = check_step("result", options.result); !status.ok()) return status;
  return elastic_times(options).check();
}

Result<SeedName> parse_seed(std::string_view text) {
  SeedName seed;
  seed.dht = text.starts_with("dht:");
  if (seed.dht && !SeedDht::built_in())
    return Status(Code::unsupported, "this build has no OpenDHT; configure it with -DUNISONO_OPENDHT=ON");
  if (seed.dht) text.remove_prefix(4);
  else if (text.starts_with("tcp://")) text.remove_prefix(6);
  const auto colon = text.rfind(':');
  const bool has_port = colon != std::string_view::npos && !(seed.dht && text.ends_with(']'));
  if (!has_port && !seed.dht) return Status(Code::invalid, "is not host:port");
  auto host = has_port ? text.substr(0, colon) : text;
  const auto digits = has_port ? text.substr(colon + 1) : std::string_view();
  if (!has_port) seed.port = dht_port;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), seed.port);
  if (has_port && (parsed.ec != std::errc{} || parsed.ptr != digits.data() + digits.size() || seed.port == 0))
    return Status(Code::invalid, "has no port between 1 and 65535");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos) return Status(Code::invalid, "is an IPv6 address without brackets");
  if (host.empty() || host.size() > 255) return Status(Code::invalid, "names no host");
  seed.host = host;
  return seed;
}

Result<std::vector<TcpAddress>> look_up_host(const SeedName& seed) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(seed.host.c_str(), std::to_string(seed.port).c_str(), &hints, &list);
  if (error != 0) return Status(Code::unavailable, seed.host + ": " + gai_strerror(error));
  std::vector<TcpAddress> addresses;
  for (const auto* one = list; one != nullptr; one = one->ai_next) {
    TcpAddress address;
    if (one->ai_addrlen > sizeof(address.storage)) continue;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.bytes = one->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

bool all_seeds_are_addresses(std::span<const std::string> seeds) {
  return std::ranges::all_of(seeds, [](const std::string& text) {
    if (text.starts_with("file:")) return false;
    const auto seed = parse_seed(text);
    return seed.ok() && !seed->dht && parse_tcp_address(seed->host).ok();
  });
}

Result<Seeds> resolve_seeds(std::span<const std::string> seeds) {
  Seeds found;
  for (const auto& text : seeds) {
    if (text.starts_with("file:")) {
      if (auto status = add_file(text.substr(5), found); !status.ok()) return status;
      continue;
    }
    const auto seed = parse_seed(text);
    if (!seed.ok()) return bad_seed('"' + text + '"', seed.status());
    look_up(*seed, found);
  }
  return found;
}

}  // namespace unisono

#include "rendezvous/store_exchange.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/concat.h"
#include "net/socket_address.h"

namespace unisono {
namespace {

// Returns the addresses of this host; the best one comes first. Link-local addresses are left out, because they need the name
// of an interface, and hosts have different interface names.
Result<std::string> own_hosts(const std::string& interface) {
  auto all = list_interfaces();
  if (!all.ok()) return all.status();
  auto chosen = select_interface(std::move(*all), interface);
  if (!chosen.ok()) return chosen.status();
  std::erase_if(*chosen, [](const InterfaceAddress& entry) { return entry.address.is_link_local(); });
  std::string hosts;
  for (const auto& one : best_addresses(std::move(*chosen), offered_addresses_max)) {
    const auto text = one.address.to_string();  // address with port
    const auto host = text.substr(0, text.rfind(':'));
    hosts += (hosts.empty() ? "" : ",") + (host.starts_with('[') ? host.substr(1, host.size() - 2) : host);
  }
  if (hosts.empty()) return Status(Code::unavailable, "this host has no address that others could dial");
  return hosts;
}

// What rank 0 writes: the address, and behind a space one of: nothing (the job has no key), key_given (all ranks need the key
// that rank 0 was given), the digits of a key that rank 0 has drawn.
constexpr std::string_view key_given = "key";

// Draws a key for the job if it needs one. Returns what stands behind the address.
Result<std::string> key_text(ResolvedOptions& options) {
  if (options.key.given()) return " " + std::string(key_given);
  if (options.security == Security::off) return std::string();
  auto key = SecretKey::draw();
  if (!key.ok()) return key.status();
  auto text = " " + key->hex();
  options.key = {.key = std::move(*key), .name = "the store"};
  return text;
}

// Uses what rank 0 has written. A process that has no key where rank 0 was given one goes on without: the rendezvous refuses it
// at once, and names it to the others.
Status use_entry(std::string_view value, ResolvedOptions& options) {
  const auto space = std::min(value.find(' '), value.size());
  auto address = parse_rendezvous(value.substr(0, space));
  if (!address.ok()) return address.status();
  options.rendezvous = std::move(*address);
  const auto key_part = value.substr(std::min(space + 1, value.size()));
  if (key_part.empty() || key_part == key_given || options.key.given() || options.security == Security::off) return {};
  auto key = SecretKey::from_hex(key_part);
  if (!key.ok()) return {key.status().code(), "its key: " + key.status().message()};
  options.key = {.key = std::move(*key), .name = "the store"};
  return {};
}

}  // namespace

Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store) {
  if (options.security == Security::required && !options.key.given())
    return Status(Code::invalid,
                  "security is required, and a key from a store does not suffice, because it guards only against strangers on "
                  "the data ports: set UNISONO_KEY_FILE to a file that `unisono key` has written");
  if (options.join_running)
    return Status(Code::invalid,
                  "Options::store is for processes that start together; a process that joins a running group needs the address "
                  "of its rendezvous");
  if (options.world_size == 1) return std::optional<Listening>();
  const auto key = "unisono/" + options.job + "/rendezvous";
  const auto failed = [&](const char* what, const Status& why) {
    return Status(why.code(), std::string("the store: cannot ") + what + " " + key +
                                  (options.rank == 0 ? ""
                                                     : concat(", which rank 0 of these ", options.world_size,
                                                              " processes writes when it joins")) +
                                  ": " + why.message());
  };
  if (options.rank > 0) {
    const auto value = store.get(key, options.join_timeout);
    if (!value.ok()) return failed("read", value.status());
    if (const auto used = use_entry(*value, options); !used.ok()) return failed("use", used);
    return std::optional<Listening>();
  }
  const auto hosts = own_hosts(options.interface);
  if (!hosts.ok()) return hosts.status();
  RendezvousAddress address{.kind = RendezvousAddress::Kind::tcp, .host = *hosts, .port = 0, .path = {}};
  // One socket can listen at one address or at all. If an interface is chosen, it is the best address of this one.
  const bool only = !options.interface.empty();
  if (only) address.host.resize(std::min(address.host.find(','), address.host.size()));
  auto listening = only ? Listening::open_only(address) : Listening::open(address);
  if (!listening.ok()) return listening.status();
  options.rendezvous = listening->address();
  options.listen_fd = listening->socket();
  const auto protection = key_text(options);
  if (!protection.ok()) return protection.status();
  if (const auto written = store.set(key, options.rendezvous.to_string() + *protection); !written.ok())
    return failed("write", written);
  return std::optional(std::move(*listening));
}

}  // namespace unisono

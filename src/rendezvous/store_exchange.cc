#include "rendezvous/store_exchange.h"

#include <string>
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

}  // namespace

Result<std::optional<Listening>> meet_by_store(ResolvedOptions& options, KeyValueStore& store) {
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
    auto address = parse_rendezvous(*value);
    if (!address.ok()) return failed("use", address.status());
    options.rendezvous = std::move(*address);
    return std::optional<Listening>();
  }
  const auto hosts = own_hosts(options.interface);
  if (!hosts.ok()) return hosts.status();
  auto listening = Listening::open({.kind = RendezvousAddress::Kind::tcp, .host = *hosts, .port = 0, .path = {}});
  if (!listening.ok()) return listening.status();
  options.rendezvous = listening->address();
  options.listen_fd = listening->socket();
  if (const auto written = store.set(key, options.rendezvous.to_string()); !written.ok()) return failed("write", written);
  return std::optional(std::move(*listening));
}

}  // namespace unisono

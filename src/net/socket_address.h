// Addresses: how endpoints are written, which interfaces this host has, and in which order a peer should try them.
//
// An endpoint is "tcp://192.168.1.7:45001" or "tcp://[fe80::1%eth0]:45001": numbers only, so that nothing here waits for a
// name server.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "unisono/status.h"

namespace unisono {

// An IPv4 or IPv6 address with port, and scope if link-local.
struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  uint32_t scope() const;  // interface number; 0 where there is none
  void set_scope(uint32_t scope);
  bool is_loopback() const;
  bool is_link_local() const;
  // "10.0.0.1:4", "[::1]:4"; an IPv4 address in IPv6 clothes is shown as IPv4.
  std::string to_string() const;
  std::string endpoint() const { return "tcp://" + to_string(); }
  // Same family and address, whatever the port and scope.
  bool same_host(const TcpAddress& other) const;
};

// invalid: not of the form above. The address alone ("::1", "10.0.0.1") is parsed by the second one, port 0.
Result<TcpAddress> parse_tcp_endpoint(std::string_view text);
Result<TcpAddress> parse_tcp_address(std::string_view text);
// Of a connected or listening socket.
TcpAddress local_address(int socket);
TcpAddress remote_address(int socket);

struct InterfaceAddress {
  std::string interface;    // "eth0"
  TcpAddress address;       // port 0
  bool is_virtual = false;  // a bridge or pair that only containers of this host can reach
};

// Addresses of all interfaces that are up, as the kernel lists them.
Result<std::vector<InterfaceAddress>> list_interfaces();
// By its name: docker0, virbr0, veth…, br-… and the like.
bool is_virtual_interface(std::string_view name);
// Lower is better: global addresses, then link-local ones, then virtual interfaces, then loopback; IPv4 first in each.
int preference(const InterfaceAddress& address);
void sort_by_preference(std::vector<InterfaceAddress>& addresses);

// Those that `interface` means: the name of an interface, an address, or everything when empty. invalid: nothing has that name
// or address; the message lists what there is.
Result<std::vector<InterfaceAddress>> select_interface(std::vector<InterfaceAddress> all, std::string_view interface);

// Where to dial for one endpoint of a peer. A link-local address is meaningful on one interface only, and the peer's
// name for that interface says nothing here: it becomes one address per interface of ours that has link-local addresses.
std::vector<TcpAddress> dial_addresses(const TcpAddress& endpoint, const std::vector<InterfaceAddress>& own);

}  // namespace unisono

// Socket addresses: endpoints as text, the interfaces of this host, and the order in which a peer should try addresses.
//
// An endpoint is "tcp://192.168.1.7:45001" or "tcp://[fe80::1%eth0]:45001". Endpoints contain numeric addresses only, so no
// function here waits for a name server.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "unisono/status.h"

namespace unisono {

// An IPv4 or IPv6 address with a port. A link-local address also has a scope (the index of its interface).
struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  uint32_t scope() const;  // interface index of a link-local address; 0: none
  void set_scope(uint32_t scope);
  bool is_loopback() const;
  bool is_link_local() const;
  // Examples: "10.0.0.1:4", "[::1]:4". An IPv4-mapped IPv6 address is shown as IPv4.
  std::string to_string() const;
  std::string endpoint() const { return "tcp://" + to_string(); }
  // Returns whether family and address are equal; ignores port and scope.
  bool same_host(const TcpAddress& other) const;
};

// Parse an endpoint, or an address alone ("::1", "10.0.0.1"), whose port is then 0. Return the error invalid if the text does
// not have this form.
Result<TcpAddress> parse_tcp_endpoint(std::string_view text);
Result<TcpAddress> parse_tcp_address(std::string_view text);
// Return the local and the remote address of a socket.
TcpAddress local_address(int socket);
TcpAddress remote_address(int socket);

struct InterfaceAddress {
  std::string interface;    // name of the interface, such as "eth0"
  TcpAddress address;       // the port is 0
  bool is_virtual = false;  // true: a bridge or veth pair that only containers of this host can reach
};

// Returns the addresses of all interfaces that are up, in the kernel's order.
Result<std::vector<InterfaceAddress>> list_interfaces();
// Returns whether a virtual interface has this name: docker0, virbr0, veth…, br-…, cilium_host and the like.
bool is_virtual_interface(std::string_view name);
// Returns in which order an address should be dialled: addresses with a lower number come first. Global addresses come first,
// then link-local addresses, then virtual interfaces, then loopback. In each class, IPv4 comes before IPv6.
int preference(const InterfaceAddress& address);
void sort_by_preference(std::vector<InterfaceAddress>& addresses);

// A process offers at most this many addresses to its peers, however many its host has. Each container that runs on a host adds
// an address to it, and rosters have a limit.
inline constexpr size_t offered_addresses_max = 15;
// Returns at most `count_max` of the addresses, in the order in which they should be dialled. If there are more, the addresses
// of virtual interfaces are left out first, and link-local addresses next. Of the rest, every interface keeps one address of
// each family before any interface keeps two, so that no network is lost because another interface has many addresses.
std::vector<InterfaceAddress> best_addresses(std::vector<InterfaceAddress> addresses, size_t count_max);

// Returns the entries of `all` that `interface` selects: `interface` is the name of an interface, an address, or "" for all
// entries. Returns the error invalid if no entry matches; the message lists all entries.
Result<std::vector<InterfaceAddress>> select_interface(std::vector<InterfaceAddress> all, std::string_view interface);

// Returns the addresses to dial for a peer's endpoint. Usually there is one, the endpoint itself. But a link-local IPv6
// endpoint contains the peer's name of the interface, which means nothing on this host. For such an endpoint, the result has
// one address for each link-local address of this host.
std::vector<TcpAddress> dial_addresses(const TcpAddress& endpoint, const std::vector<InterfaceAddress>& own);

}  // namespace unisono

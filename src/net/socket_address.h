// Socket addresses: the text form of endpoints, the interfaces of this host, and the order in which a peer should try them.
//
// An endpoint is "tcp://192.168.1.7:45001" or "tcp://[fe80::1%eth0]:45001". It has numbers only, so that nothing here waits for
// a name server.
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
  uint32_t scope() const;  // number of the interface; 0 if there is none
  void set_scope(uint32_t scope);
  bool is_loopback() const;
  bool is_link_local() const;
  // "10.0.0.1:4", "[::1]:4". An IPv4-mapped IPv6 address is shown as IPv4.
  std::string to_string() const;
  std::string endpoint() const { return "tcp://" + to_string(); }
  // True for the same family and address, whatever the port and scope.
  bool same_host(const TcpAddress& other) const;
};

// Both return invalid if the text does not have this form. parse_tcp_address takes the address alone ("::1", "10.0.0.1"); its
// port is 0.
Result<TcpAddress> parse_tcp_endpoint(std::string_view text);
Result<TcpAddress> parse_tcp_address(std::string_view text);
// The addresses of a connected or listening socket.
TcpAddress local_address(int socket);
TcpAddress remote_address(int socket);

struct InterfaceAddress {
  std::string interface;    // "eth0"
  TcpAddress address;       // port 0
  bool is_virtual = false;  // a bridge or pair that only containers of this host can reach
};

// Addresses of all interfaces that are up, as the kernel lists them.
Result<std::vector<InterfaceAddress>> list_interfaces();
// Judged by the name: docker0, virbr0, veth…, br-… and the like.
bool is_virtual_interface(std::string_view name);
// Lower is better: global addresses, then link-local ones, then virtual interfaces, then loopback; IPv4 first in each class.
int preference(const InterfaceAddress& address);
void sort_by_preference(std::vector<InterfaceAddress>& addresses);

// The entries that `interface` selects: the name of an interface, an address, or everything when empty. Returns invalid if
// nothing has that name or address; the message lists all of them.
Result<std::vector<InterfaceAddress>> select_interface(std::vector<InterfaceAddress> all, std::string_view interface);

// The addresses to dial for one endpoint of a peer. A link-local address is meaningful on one interface only, and the peer's
// name for that interface means nothing here. So it becomes one address for each of our interfaces that has link-local
// addresses.
std::vector<TcpAddress> dial_addresses(const TcpAddress& endpoint, const std::vector<InterfaceAddress>& own);

}  // namespace unisono

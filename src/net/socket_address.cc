#include "net/socket_address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include "base/concat.h"
#include "net/tcp_socket.h"

namespace unisono {
namespace {

// Limits how many addresses are tried for one endpoint. A host with many bridges has many link-local addresses.
constexpr size_t link_local_interfaces_max = 4;

const sockaddr_in& v4(const TcpAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& v6(const TcpAddress& address) { return reinterpret_cast<const sockaddr_in6&>(address.storage); }

bool is_mapped(const TcpAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6(address).sin6_addr);
}

TcpAddress unmapped(const TcpAddress& address) {
  if (!is_mapped(address)) return address;
  TcpAddress plain;
  plain.storage.ss_family = AF_INET;
  plain.bytes = sizeof(sockaddr_in);
  std::memcpy(&reinterpret_cast<sockaddr_in&>(plain.storage).sin_addr, v6(address).sin6_addr.s6_addr + 12, 4);
  plain.set_port(address.port());
  return plain;
}

TcpAddress from_sockaddr(const sockaddr* source) {
  TcpAddress address;
  address.bytes = source->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, source, address.bytes);
  return address;
}

std::string list_names(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const auto& entry : all) {
    if (!text.empty()) text += ", ";
    auto address = entry.address.to_string();
    address.resize(address.rfind(':'));
    text += entry.interface + " " + address;
  }
  return text.empty() ? "no address at all" : text;
}

}  // namespace

uint16_t TcpAddress::port() const { return ntohs(family() == AF_INET ? v4(*this).sin_port : v6(*this).sin6_port); }

void TcpAddress::set_port(uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  else reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
}

uint32_t TcpAddress::scope() const { return family() == AF_INET6 ? v6(*this).sin6_scope_id : 0; }

void TcpAddress::set_scope(uint32_t scope) {
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_scope_id = scope;
}

bool TcpAddress::is_loopback() const {
  if (is_mapped(*this)) return unmapped(*this).is_loopback();
  if (family() == AF_INET) return (ntohl(v4(*this).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
}

bool TcpAddress::is_link_local() const {
  if (family() == AF_INET) return (ntohl(v4(*this).sin_addr.s_addr) >> 16) == 0xA9FE;  // 169.254/16
  return IN6_IS_ADDR_LINKLOCAL(&v6(*this).sin6_addr);
}

std::string TcpAddress::to_string() const {
  if (bytes == 0) return "(none)";
  const auto plain = unmapped(*this);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (plain.family() == AF_INET) {
    ::inet_ntop(AF_INET, &v4(plain).sin_addr, text.data(), text.size());
    return concat(text.data(), ":", plain.port());
  }
  ::inet_ntop(AF_INET6, &v6(plain).sin6_addr, text.data(), text.size());
  std::string result = "[" + std::string(text.data());
  if (plain.scope() != 0) {
    std::array<char, IF_NAMESIZE> interface {};
    result += "%";
    result += ::if_indextoname(plain.scope(), interface.data()) != nullptr ? std::string(interface.data())
                                                                           : std::to_string(plain.scope());
  }
  return concat(result, "]:", plain.port());
}

bool TcpAddress::same_host(const TcpAddress& other) const {
  const auto a = unmapped(*this), b = unmapped(other);
  if (a.family() != b.family()) return false;
  if (a.family() == AF_INET) return v4(a).sin_addr.s_addr == v4(b).sin_addr.s_addr;
  return std::memcmp(&v6(a).sin6_addr, &v6(b).sin6_addr, sizeof(in6_addr)) == 0;
}

Result<TcpAddress> parse_tcp_address(std::string_view text) {
  TcpAddress address;
  const std::string copy(text);
  if (in_addr plain{}; ::inet_pton(AF_INET, copy.c_str(), &plain) == 1) {
    address.storage.ss_family = AF_INET;
    address.bytes = sizeof(sockaddr_in);
    reinterpret_cast<sockaddr_in&>(address.storage).sin_addr = plain;
    return address;
  }
  const auto percent = copy.find('%');
  if (in6_addr wide{}; ::inet_pton(AF_INET6, copy.substr(0, percent).c_str(), &wide) == 1) {
    address.storage.ss_family = AF_INET6;
    address.bytes = sizeof(sockaddr_in6);
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr = wide;
    // If the interface name is unknown, the scope is 0; dial_addresses() then replaces the scope.
    if (percent != std::string::npos) address.set_scope(::if_nametoindex(copy.c_str() + percent + 1));
    return address;
  }
  return Status(Code::invalid, "\"" + copy + "\" is not an IPv4 or IPv6 address");
}

Result<TcpAddress> parse_tcp_endpoint(std::string_view text) {
  const auto bad = [&](const char* why) { return Status(Code::invalid, "endpoint \"" + std::string(text) + "\": " + why); };
  constexpr std::string_view prefix = "tcp://";
  if (!text.starts_with(prefix)) return bad("does not begin with tcp://");
  auto host = text.substr(prefix.size());
  const auto colon = host.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port");
  const auto digits = host.substr(colon + 1);
  host = host.substr(0, colon);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || port == 0) return bad("has no port from 1 to 65535");
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  auto address = parse_tcp_address(host);
  if (!address.ok()) return bad("has no numeric address");
  if (bracketed != (address->family() == AF_INET6)) return bad("an IPv6 address, and nothing else, stands in brackets");
  address->set_port(port);
  return address;
}

TcpAddress local_address(int socket) {
  TcpAddress address;
  address.bytes = sizeof address.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) address.bytes = 0;
  return address;
}

TcpAddress remote_address(int socket) {
  TcpAddress address;
  address.bytes = sizeof address.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) address.bytes = 0;
  return address;
}

Result<std::vector<InterfaceAddress>> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return Status(Code::unavailable, "cannot list the network interfaces: " + error_text(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const auto* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    all.push_back({entry->ifa_name, from_sockaddr(entry->ifa_addr), is_virtual_interface(entry->ifa_name)});
  }
  return all;
}

bool is_virtual_interface(std::string_view name) {
  constexpr std::string_view prefixes[] = {"docker", "virbr",  "veth", "br-", "lxc",    "lxdbr", "incusbr", "cni",   "flannel",
                                           "cali",   "podman", "vnet", "tap", "cilium", "kube",  "weave",   "vxlan", "nerdctl"};
  return std::any_of(std::begin(prefixes), std::end(prefixes), [&](auto prefix) { return name.starts_with(prefix); });
}

int preference(const InterfaceAddress& entry) {
  const int family = entry.address.family() == AF_INET ? 0 : 1;
  if (entry.address.is_loopback()) return 6 + family;
  if (entry.is_virtual) return 4 + family;
  if (entry.address.is_link_local()) return 2 + family;
  return family;
}

void sort_by_preference(std::vector<InterfaceAddress>& addresses) {
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const auto& a, const auto& b) { return preference(a) < preference(b); });
}

std::vector<InterfaceAddress> best_addresses(std::vector<InterfaceAddress> addresses, size_t count_max) {
  sort_by_preference(addresses);
  if (addresses.size() <= count_max) return addresses;
  struct Candidate {
    int kind = 0;         // 0: global and loopback addresses; 1: link-local ones; 2: those of virtual interfaces
    size_t number = 0;    // how many addresses of the same kind, family and interface come before this one
    size_t position = 0;  // position in `addresses`
    auto operator<=>(const Candidate&) const = default;
  };
  std::vector<Candidate> candidates;
  std::map<std::tuple<std::string, int, int>, size_t> seen;
  for (const auto& entry : addresses) {
    const int kind = entry.is_virtual ? 2 : entry.address.is_link_local() ? 1 : 0;
    const auto number = seen[{entry.interface, entry.address.family(), kind}]++;
    candidates.push_back({.kind = kind, .number = number, .position = candidates.size()});
  }
  std::ranges::sort(candidates);
  candidates.resize(count_max);
  std::ranges::sort(candidates, {}, &Candidate::position);
  std::vector<InterfaceAddress> best;
  for (const auto& candidate : candidates) best.push_back(addresses[candidate.position]);
  return best;
}

Result<std::vector<InterfaceAddress>> select_interface(std::vector<InterfaceAddress> all, std::string_view interface) {
  if (interface.empty()) return all;
  const auto wanted = parse_tcp_address(interface);
  std::vector<InterfaceAddress> chosen;
  for (const auto& entry : all) {
    const bool same_address =
        wanted.ok() && entry.address.same_host(*wanted) && (wanted->scope() == 0 || wanted->scope() == entry.address.scope());
    if (same_address || entry.interface == interface) chosen.push_back(entry);
  }
  // Accept every address in 127/8. The kernel answers on all of them, although the list of interfaces contains 127.0.0.1 only.
  if (chosen.empty() && wanted.ok() && wanted->family() == AF_INET && wanted->is_loopback())
    chosen.push_back({"lo", *wanted, false});
  if (!chosen.empty()) return chosen;
  sort_by_preference(all);
  return Status(Code::invalid,
                "no interface has the name or address \"" + std::string(interface) + "\"; this host has " + list_names(all));
}

std::vector<TcpAddress> dial_addresses(const TcpAddress& endpoint, const std::vector<InterfaceAddress>& own) {
  if (endpoint.family() != AF_INET6 || !endpoint.is_link_local()) return {endpoint};
  std::vector<TcpAddress> result;
  for (const auto& entry : own) {
    if (entry.address.family() != AF_INET6 || !entry.address.is_link_local()) continue;
    if (result.size() == link_local_interfaces_max) break;
    auto address = endpoint;
    address.set_scope(entry.address.scope());
    // Try first the local interface with the same name as the peer's: it is the best guess.
    if (entry.address.scope() == endpoint.scope()) result.insert(result.begin(), address);
    else result.push_back(address);
  }
  return result;
}

}  // namespace unisono

#include "elastic/seeds/seed_record.h"

#include <netinet/in.h>

#include <algorithm>

#include "net/socket_address.h"

namespace unisono {

namespace {

constexpr std::string_view opening = "unisono-elastic 1\n";
constexpr size_t address_bytes_max = 96;  // no IPv6 address with interface and port is longer

bool can_listen(const TcpAddress& address) {
  if (address.port() == 0) return false;
  if (address.family() == AF_INET) {
    const auto host = ntohl(reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr);
    return host >> 24 != 0 && !IN_MULTICAST(host) && host != INADDR_BROADCAST;
  }
  const auto& host = reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
  return !IN6_IS_ADDR_UNSPECIFIED(&host) && !IN6_IS_ADDR_MULTICAST(&host) &&
         !IN6_IS_ADDR_V4MAPPED(&host);  // IPv4-mapped addresses are accepted only in their IPv4 form
}

}  // namespace

std::string write_seed_record(std::span<const std::string> addresses) {
  std::string text(opening);
  size_t count = 0;
  for (const auto& address : addresses) {
    if (address.size() > address_bytes_max) continue;
    if (++count > seed_record_addresses_max) break;
    text += address + '\n';
  }
  return text;
}

std::vector<std::string> read_seed_record(std::string_view text) {
  std::vector<std::string> addresses;
  if (text.size() > seed_record_bytes_max || !text.starts_with(opening)) return addresses;
  text.remove_prefix(opening.size());
  while (!text.empty() && addresses.size() < seed_record_addresses_max) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.size() > address_bytes_max) continue;
    const auto address = parse_tcp_endpoint(line);
    if (!address.ok() || !can_listen(*address)) continue;
    auto endpoint = address->endpoint();
    if (std::ranges::find(addresses, endpoint) == addresses.end()) addresses.push_back(std::move(endpoint));
  }
  return addresses;
}

}  // namespace unisono

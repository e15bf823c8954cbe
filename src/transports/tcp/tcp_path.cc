#include "transports/tcp/tcp_path.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono {
namespace {

// The bytes that `ping -s` does not count: the headers of IP and ICMP.
constexpr uint32_t ping_headers_ipv4 = 28, ping_headers_ipv6 = 48;

}  // namespace

std::string describe_unacknowledged(const Unacknowledged& data, const TcpAddress& to) {
  if (data.repeats == 0) return {};
  if (!data.has_long_segments())
    return concat(data.bytes, " bytes to it get no acknowledgement, although TCP has sent them again ", data.repeats, " times");
  auto address = to.to_string();  // an IPv4 address that is mapped into IPv6 is shown as IPv4
  address.resize(address.rfind(':'));
  std::erase_if(address, [](char letter) { return letter == '[' || letter == ']'; });
  const auto headers = address.find(':') == std::string::npos ? ping_headers_ipv4 : ping_headers_ipv6;
  return concat("large segments to it get no acknowledgement: TCP has sent ", data.segments, " of up to ", data.segment_bytes,
                " bytes, and the first one again ", data.repeats,
                " times. Either the network carries nothing to it, or no packets of ", data.packet_bytes,
                " bytes; \"ping -M do -s ", data.packet_bytes - std::min(headers, data.packet_bytes), " ", address,
                "\" tells which");
}

std::string seconds_text(Nanos time) {
  const auto tenths = (time + 50 * millisecond) / (100 * millisecond);
  return concat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace unisono

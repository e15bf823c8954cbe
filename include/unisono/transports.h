// The table of transports, with their names and properties. All other lists of transports are derived from it.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace unisono {

struct TransportFacts {
  const char* name = "";
  const char* meaning = "";
  bool between_hosts = false;  // false: it connects only processes of the same host
  bool is_lossy = false;       // true: it may drop messages, for Delivery::lossy
};

// The first entry, "auto", lets the library choose the transport.
inline constexpr auto transport_table = std::to_array<TransportFacts>({
    {.name = "auto", .meaning = "shared memory within a host, TCP between hosts", .between_hosts = true},
    {.name = "shm", .meaning = "shared memory"},
    {.name = "tcp", .meaning = "TCP", .between_hosts = true},
    {.name = "udp", .meaning = "datagrams", .between_hosts = true, .is_lossy = true},
});

inline constexpr auto transport_names = [] {
  std::array<const char*, transport_table.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = transport_table[i].name;
  return names;
}();

constexpr const TransportFacts* find_transport(std::string_view name) {
  for (const auto& facts : transport_table) {
    if (name == facts.name) return &facts;
  }
  return nullptr;
}

// Returns "auto, shm, tcp or udp", the possible values, for error messages.
inline std::string transport_list() {
  std::string list;
  for (size_t i = 0; i < transport_names.size(); ++i) {
    if (i > 0) list += i + 1 == transport_names.size() ? " or " : ", ";
    list += transport_names[i];
  }
  return list;
}

}  // namespace unisono

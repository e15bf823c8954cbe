// The messages between the emulator and its ranks: one struct each, over a SOCK_SEQPACKET socket. Both ends are the same
// program.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "cli/launch/link_emulator.h"

namespace unisono::cli {

enum class EmulatorMessageType : uint32_t {
  connected = 1,  // from a rank: with its packets' descriptor, if it has a network of its own
  begin = 2,      // from the emulator: all ranks are connected
  formed = 3,     // from a rank: its group has formed
  clock = 4,      // from the emulator: the groups of all ranks have formed, at `at`
  fault = 5,      // from the emulator: `fault` is injected now, at `at`
  tally = 6,      // from a rank: a question; from the emulator: the answer
};

struct EmulatorMessage {
  EmulatorMessageType type = EmulatorMessageType::connected;
  uint32_t rank = 0;
  Nanos at = 0;
  Fault fault = {};
  LinkTally tally = {};
};

// In the abstract name space of sockets: a name that begins with a zero byte and goes with its last descriptor.
struct EmulatorAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
  explicit EmulatorAddress(const std::string& job) {
    const auto name = "unisono-bench-" + job;
    address.sun_family = AF_UNIX;
    const auto length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace unisono::cli

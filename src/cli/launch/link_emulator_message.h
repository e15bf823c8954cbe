// The messages between the emulator and the ranks. Each message is one struct, which is sent over a SOCK_SEQPACKET socket. Both
// ends are the same program, so the layout of the struct is the layout of the message.
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
  // From a rank: it has connected. If it is in a private network, the message carries the descriptor of its packets.
  connected = 1,
  begin = 2,   // from the emulator: all ranks have connected
  formed = 3,  // from a rank: its group has formed
  clock = 4,   // from the emulator: at the time `at`, all ranks had formed their groups
  fault = 5,   // from the emulator: `fault` is injected now, at the time `at`
  tally = 6,   // from a rank: it asks for the counts; from the emulator: the counts
};

struct EmulatorMessage {
  EmulatorMessageType type = EmulatorMessageType::connected;
  uint32_t rank = 0;
  Nanos at = 0;
  Fault fault = {};
  LinkTally tally = {};
};

// An address in the abstract name space of sockets. The name begins with a zero byte. It disappears when its last descriptor is
// closed.
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

// How a UDP link is made: three hello datagrams and the keys derived from them. This class is one side of one link. It has no
// socket, no clock and no random device.
//
// The dialling side sends an ask to every address of the peer repeatedly, the waiting side answers, and the dialling side
// confirms. Each hello proves that its sender knows the job's key, and names both processes; other hellos get no answer. A
// confirmation repeats the nonce of the answer, so a recorded confirmation opens nothing. Nonces are derived from the PeerId,
// which is random and new for each process, and from the number of the attempt. They never repeat, and they need not be secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "transports/connector.h"
#include "wire/datagram.h"

namespace unisono {

using UdpNonce = std::array<std::byte, 16>;

enum class UdpHelloStep : uint8_t { ask = 1, answer = 2, confirm = 3 };

// Payload of a hello. Little-endian; the struct is the layout.
struct UdpHello {
  UdpHelloStep step = UdpHelloStep::ask;
  uint8_t version = 1;
  uint16_t auth = 0;          // the DatagramAuth that the sender accepts
  uint32_t window_bytes = 0;  // how much the sender can buffer while it does not poll
  PeerId from, to;
  UdpNonce nonce{};        // of the sender
  UdpNonce other_nonce{};  // of the receiver, as the sender knows it; 0 in an ask
};
static_assert(sizeof(UdpHello) == 72);
inline constexpr uint32_t hello_datagram_bytes = datagram_header_bytes + sizeof(UdpHello);

// A sealed hello, ready to send.
struct UdpHelloDatagram {
  DatagramHeader header;
  UdpHello hello;
};
UdpHelloDatagram sealed_hello(const JobKey& job, const UdpHello& hello);
// Checks a datagram of kind hello whose shape is good. True if its sender knows the job's key; then `hello` is a copy.
bool read_hello(const JobKey& job, const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello);

// The group that both ends derive from a finished handshake. Ranks: 0 = the dialling side, 1 = the waiting side.
DatagramGroup link_group(const JobKey& job, const UdpHello& confirm, Rank self, DatagramAuth auth);

struct UdpHandshakeOptions {
  PeerId self{}, peer{};
  bool dial = false;
  uint64_t attempt = 0;                   // number of this link in this process; the nonce is derived from it
  uint32_t window_bytes = 0;              // announced to the peer
  DatagramAuth auth = DatagramAuth::mac;  // announced to the peer; checksums only if both sides announce them
  Nanos deadline = 0;
  Nanos retry_first = 20 * millisecond, retry_max = 500 * millisecond;  // each interval is 1.5 times the one before
};

class UdpHandshake {
 public:
  UdpHandshake(const JobKey& job, const UdpHandshakeOptions& options);

  // Handles a hello for this link that read_hello accepted. True: send message() to its source now.
  bool heard(const UdpHello& hello, Nanos now);
  // Whether message() must be repeated: by the dialling side to all addresses until one has answered, then to that one.
  bool due(Nanos now);
  Nanos next_deadline() const { return settled_ ? never : next_; }
  // The hello to send now; nothing while the waiting side has not been asked.
  std::optional<UdpHelloDatagram> message() const;

  // Both nonces are known, so the link can be used. The dialling side reaches this first.
  bool done() const { return done_; }
  // A datagram with the link's own key has arrived, so no hello needs to be repeated. The waiting side calls it as soon as it
  // is done.
  void settle() { settled_ = true; }
  bool answered() const { return answered_; }
  const DatagramGroup& group() const { return group_; }
  uint32_t peer_window_bytes() const { return peer_window_; }

 private:
  UdpHello hello(UdpHelloStep step) const;
  void remember(const UdpHello& hello);
  void finish(const UdpNonce& dialler, const UdpNonce& waiter);

  JobKey job_;
  UdpHandshakeOptions options_;
  UdpNonce nonce_{}, other_nonce_{};
  DatagramGroup group_;
  uint32_t peer_window_ = 0;
  DatagramAuth peer_auth_ = DatagramAuth::mac;
  Nanos next_ = 0, interval_ = 0;
  bool answered_ = false;  // by the other side, or asked by it
  bool done_ = false, settled_ = false;
};

}  // namespace unisono

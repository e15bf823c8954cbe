// How a UDP link is made: three hello datagrams, and the keys that follow from them. One side of one link; no socket, no clock,
// no random device.
//
// The dialling side asks every address of the peer again and again, the waiting side answers, the dialling side confirms. All
// three show that they know the job's key and name both processes; who does not is no business of ours and gets no answer. A
// confirmation repeats the nonce of the answer, so that a recorded one opens nothing. Nonces follow from the PeerId, which is
// random and new for each process, and the number of the attempt: they never repeat, and nothing depends on their being secret.
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
  uint16_t auth = 0;          // the DatagramAuth that is enough for the sender of this
  uint32_t window_bytes = 0;  // what the sender of this can buffer while it is not looking
  PeerId from, to;
  UdpNonce nonce{};        // of the sender of this
  UdpNonce other_nonce{};  // of the receiver, as the sender knows it; 0 in an ask
};
static_assert(sizeof(UdpHello) == 72);
inline constexpr uint32_t hello_datagram_bytes = datagram_header_bytes + sizeof(UdpHello);

// A sealed hello, as it goes out.
struct UdpHelloDatagram {
  DatagramHeader header;
  UdpHello hello;
};
UdpHelloDatagram sealed_hello(const JobKey& job, const UdpHello& hello);
// Whether the datagram, whose shape is good and whose kind is hello, comes from somebody who knows the job's key. Then `hello`
// is a copy.
bool read_hello(const JobKey& job, const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello);

// What both ends make of a finished handshake. Ranks: 0 = the side that dialled, 1 = the side that waited.
DatagramGroup link_group(const JobKey& job, const UdpHello& confirm, Rank self, DatagramAuth auth);

struct UdpHandshakeOptions {
  PeerId self{}, peer{};
  bool dial = false;
  uint64_t attempt = 0;                   // number of this link in this process: nonces follow from it
  uint32_t window_bytes = 0;              // announced
  DatagramAuth auth = DatagramAuth::mac;  // likewise: checksums if both sides do
  Nanos deadline = 0;
  Nanos retry_first = 20 * millisecond, retry_max = 500 * millisecond;  // apart by a factor of 1.5
};

class UdpHandshake {
 public:
  UdpHandshake(const JobKey& job, const UdpHandshakeOptions& options);

  // A hello for this link that read_hello accepted. True: something is to be sent to where it came from now (message()).
  bool heard(const UdpHello& hello, Nanos now);
  // Whether the last message must be said again, by the dialling side to all addresses until one answered: to that one then.
  bool due(Nanos now);
  Nanos next_deadline() const { return settled_ ? never : next_; }
  // What is to be said now; nothing while the waiting side was asked nothing.
  std::optional<UdpHelloDatagram> message() const;

  // Both nonces are known: the link can be used. The dialling side is there first.
  bool done() const { return done_; }
  // Heard something with the link's own key: nothing needs to be said again. Call on the waiting side as soon as it is done.
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

// How a UDP link is made: with three hello datagrams, from which both processes derive keys. UdpHandshake is one process's side
// of one link. It has no socket, no clock and no source of random numbers.
//
// The dialling process sends an ask to the peer's best address, and repeats it. The repetitions go to more and more of the
// peer's addresses. The waiting process answers, and the dialling process confirms. Each hello contains the ids of both
// processes, and proves that its sender knows the job's key. Other hellos are not answered. A confirmation repeats the nonce (a
// number that is used once) of the answer, so an attacker cannot use a recorded confirmation. A nonce is derived from the
// PeerId, which is random and new for each process, and from the number of the attempt. Nonces never repeat, and they need not
// be secret.
//
// With TLS, the hellos carry its three flights, and the link's keys come from it. The job's key is then derived from the secret
// key (hello_keys), so a hello that causes TLS state has been proven to come from a member of the job.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "tls/datagram_seal.h"
#include "tls/tls_flights.h"
#include "transports/connector.h"
#include "wire/datagram.h"

namespace unisono {

using UdpNonce = std::array<std::byte, 16>;

enum class UdpHelloStep : uint8_t { ask = 1, answer = 2, confirm = 3 };

// The payload of a hello datagram. All numbers are little-endian, and the struct is the layout.
struct UdpHello {
  UdpHelloStep step = UdpHelloStep::ask;
  uint8_t version = 1;
  uint16_t auth = 0;          // the DatagramAuth that the sender of the hello accepts
  uint32_t window_bytes = 0;  // The sender of the hello can buffer this many bytes while it does not poll.
  PeerId from, to;
  UdpNonce nonce{};        // the nonce of the process that sends the hello
  UdpNonce other_nonce{};  // the nonce that the sender got from the other process; 0 in an ask
};
static_assert(sizeof(UdpHello) == 72);
inline constexpr uint32_t hello_datagram_bytes = datagram_header_bytes + sizeof(UdpHello);

// With TLS (UdpHello::version is 2), this follows UdpHello. The number of the attempt orders the asks of one process, so that a
// recorded ask cannot take the place of a newer one.
struct UdpHelloTls {
  uint64_t attempt = 0;
  std::span<const std::byte> flight{};  // of TLS; it fills the rest of the datagram
  JobKey key{};                         // not in the datagram: read_hello() sets the key with which the hello is sealed
};
static_assert(hello_datagram_bytes + sizeof(uint64_t) + TlsFlights::flight_bytes_max <= base_datagram_bytes);

// The keys with which hellos are sealed: one for each key of the context, derived from it and from the job's key. Without a
// context, this is the job's key.
std::vector<JobKey> hello_keys(const JobKey& job, const TlsContext* tls);

// A sealed hello that is ready to be sent: the header, the hello, and with TLS the bytes of UdpHelloTls.
struct UdpHelloDatagram {
  DatagramHeader header;
  UdpHello hello;
  std::vector<std::byte> rest{};
};
UdpHelloDatagram sealed_hello(const JobKey& job, const UdpHello& hello, const UdpHelloTls* tls = nullptr);
// Checks a datagram of the kind hello that has already passed check_shape. If its sender knows the job's key, returns true, and
// `hello` is then a copy of the payload. With `tls`, only a hello with TLS is read; without it, only one without.
bool read_hello(const JobKey& job, const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello,
                UdpHelloTls* tls = nullptr);

// The secret of one link that both processes share, and how its datagrams are encrypted.
struct UdpLinkSecret {
  SealCipher cipher = SealCipher::aes_128_gcm;
  SealSecret secret;
};

// Returns the group that both processes derive when the handshake is finished. Rank 0 is the dialling process, and rank 1 is
// the waiting process.
DatagramGroup link_group(const JobKey& job, const UdpHello& confirm, Rank self, DatagramAuth auth);

struct UdpHandshakeOptions {
  PeerId self{}, peer{};
  bool dial = false;
  uint64_t attempt = 0;       // The number of this handshake in this process. The nonce depends on it.
  uint32_t window_bytes = 0;  // This process can buffer this many bytes; its hellos say so.
  // The kind of proof that our hellos announce. Checksums replace tags only if both processes announce `checksum`.
  DatagramAuth auth = DatagramAuth::mac;
  std::shared_ptr<const TlsContext> tls{};      // null: no encryption
  SealCipher cipher = SealCipher::aes_128_gcm;  // with TLS, the wish of this process; both must wish for AES
  Nanos deadline = 0;
  // The first and the longest interval between repetitions. Each interval is 1.5 times as long as the one before.
  Nanos retry_first = 20 * millisecond, retry_max = 500 * millisecond;
};

class UdpHandshake {
 public:
  UdpHandshake(const JobKey& job, const UdpHandshakeOptions& options);

  // Handles a hello that read_hello has accepted. Returns true if message() must be sent now to the address from which the
  // hello came. The waiting process answers with the key of the ask.
  bool on_hello(const UdpHello& hello, Nanos now, const UdpHelloTls& tls = {});
  // Returns true if message() must be repeated now. The dialling process sends it to the first addresses_to_ask() addresses
  // until one of them has answered, and after that only to the address that has answered.
  bool due(Nanos now);
  // The first two asks go to one address only, because it nearly always answers. Every ask after them goes to twice as many.
  size_t addresses_to_ask() const { return size_t{1} << std::clamp(asks_ - 2, 0, 16); }
  // Returns true if the waiting process has answered this ask less than options.retry_first ago. If the dialling process began
  // earlier, its ask and all repetitions arrive together; one answer is enough for those from one address.
  bool answered_just_now(const UdpHello& ask, Nanos now) const;
  Nanos next_deadline() const { return next_; }
  // Returns the hello to send now. Before an ask has come, the waiting process has none.
  std::optional<UdpHelloDatagram> message() const;

  // Returns true if both nonces are known. The link can then be used. The dialling process reaches this state first.
  bool done() const { return done_; }
  bool answered() const { return answered_; }
  const DatagramGroup& group() const { return group_; }
  uint32_t peer_window_bytes() const { return peer_window_; }
  // With TLS, when done(): the secret of the link.
  const std::optional<UdpLinkSecret>& secret() const { return secret_; }

 private:
  UdpHello hello(UdpHelloStep step) const;
  bool on_ask(const UdpHello& hello, Nanos now, const UdpHelloTls& tls);
  bool step_tls(std::span<const std::byte> flight);
  void remember(const UdpHello& hello);
  bool finish(const UdpNonce& dialler, const UdpNonce& waiter);

  JobKey job_;  // the key of our hellos
  UdpHandshakeOptions options_;
  UdpNonce nonce_{}, other_nonce_{};
  DatagramGroup group_;
  uint32_t peer_window_ = 0;
  uint16_t peer_auth_ = 0;
  std::unique_ptr<TlsFlights> flights_;
  uint64_t peer_attempt_ = 0;  // in the waiting process: the attempt of the ask that it answers
  std::optional<UdpLinkSecret> secret_;
  Nanos next_ = 0, interval_ = 0;
  Nanos answered_at_ = 0;  // in the waiting process: the time when it last answered an ask
  int asks_ = 0;           // in the dialling process: how many times due() has returned true before an answer came
  bool answered_ = false;  // In the dialling process: an answer has come. In the waiting process: an ask has come.
  bool done_ = false;
};

}  // namespace unisono

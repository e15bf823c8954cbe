// One connection of the rendezvous: a connected socket, with TLS in front of it if the process has a key. No call blocks.
//
// The first byte on the wire says whether the dialing process speaks TLS: nothing in clear comes before the ClientHello.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "net/tcp_socket.h"
#include "tls/tls_connection.h"

namespace unisono {

// The first byte of each TLS handshake: the type of the record that carries the ClientHello (RFC 8446, 5.1).
inline constexpr std::byte tls_first_byte{0x16};

class RendezvousChannel final : private TlsCarrier {
 public:
  explicit RendezvousChannel(Descriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }
  // From now on, all bytes go through TLS. Call it before the first read() or write(). Throws std::bad_alloc if there is no
  // memory.
  void encrypt(std::shared_ptr<const TlsContext> context, TlsConnection::Role role);
  bool is_encrypted() const { return tls_ != nullptr; }
  // Goes on with the handshake. Returns nothing while it is not done, 0 if bytes can be exchanged, and an errno value if it has
  // failed. EKEYREJECTED: the other side has another key, or none.
  std::optional<int> handshake();
  // After the handshake of a server: the number of the key that the other side used.
  size_t key_number() const { return tls_->key_number(); }

  // The results are those of send_some() and receive_some(). Nothing is written or read before the handshake is done.
  ptrdiff_t write(ByteView bytes);
  ptrdiff_t read(std::span<std::byte> bytes, bool& ended);
  // Returns true if the last read() has left bytes here, of which epoll does not know.
  bool has_buffered() const { return tls_ != nullptr && tls_->has_buffered(); }
  // Encrypted bytes that the kernel has not taken. write() tries them again, also with no bytes.
  bool has_unflushed() const { return tls_ != nullptr && tls_->has_unflushed(); }

  // The handshake has failed. From now on read() returns what arrives as it is, so that the owner can discard it.
  void abandon_tls() { tls_.reset(); }
  // The first bytes that have arrived for TLS. They help to identify the program at the other end.
  ByteView start() const { return ByteView(start_).first(start_bytes_); }

 private:
  ptrdiff_t write_encrypted(std::span<const std::byte> bytes) override { return send_some(socket_.get(), bytes); }
  ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) override;

  Descriptor socket_;
  std::unique_ptr<TlsConnection> tls_;
  std::array<std::byte, 16> start_{};
  size_t start_bytes_ = 0;
};

}  // namespace unisono

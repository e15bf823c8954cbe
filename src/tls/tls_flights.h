// One side of a TLS handshake whose flights are carried in datagrams, as QUIC does it: the client's first flight, the server's
// answer, and the client's confirmation. Each fits into one datagram. The caller repeats flights that get lost; it must not
// pass the same flight twice.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tls/tls_connection.h"

namespace unisono {

class TlsFlights final : private TlsCarrier {
 public:
  // What is left of a datagram of 1200 bytes beside the header and the rest of a hello.
  static constexpr size_t flight_bytes_max = 1000;

  // A client's first flight is there at once. Throws std::bad_alloc if there is no memory.
  TlsFlights(std::shared_ptr<const TlsContext> context, TlsConnection::Role role);
  // Takes the flight of the other side, and makes the next one. Returns false if the handshake has failed: the other side has
  // another key, or the flight was altered. It cannot go on then.
  bool step(std::span<const std::byte> flight);
  // Returns the last flight that this side has made.
  std::span<const std::byte> flight() const { return flight_; }
  bool done() const { return done_; }
  // After the handshake: see TlsConnection.
  bool export_key(std::string_view label, std::span<std::byte> out) const;
  // Frees everything but the flight.
  void end() { connection_.reset(); }

 private:
  ptrdiff_t write_encrypted(std::span<const std::byte> bytes) override;
  ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) override;

  std::unique_ptr<TlsConnection> connection_;
  std::vector<std::byte> flight_;
  std::span<const std::byte> unread_;
  bool done_ = false;
};

}  // namespace unisono

// A TCP connection of the doctor. It sends and receives either a fixed number of bytes or a line. Each call has a deadline and
// never waits longer.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "cli/doctor/doctor_facts.h"
#include "net/socket_address.h"
#include "net/tcp_socket.h"
#include "unisono/status.h"

namespace unisono::cli {

class ByteStream {
 public:
  ByteStream() = default;
  // `socket` must be connected and non-blocking.
  explicit ByteStream(unisono::Descriptor socket) : socket_(std::move(socket)) {}

  int get() const { return socket_.get(); }
  bool open() const { return socket_.open(); }
  // Resets the connection. Data in flight is dropped, so neither side waits for it.
  void abort();

  // Return Code::late if the deadline has passed. Return Code::peer_lost if the other side or the kernel has ended the
  // connection; the message comes from the kernel.
  Status send(std::span<const std::byte> bytes, Nanos deadline);
  Status receive(std::span<std::byte> bytes, Nanos deadline);
  // Returns how many bytes the last receive() got, even if it failed.
  size_t received() const { return received_; }

  // A line ends with \n and has at most line_bytes_max bytes. If the line is longer, receive_line() returns Code::corrupt.
  static constexpr size_t line_bytes_max = 4 << 20;
  Status send_line(const std::string& line, Nanos deadline);
  Result<std::string> receive_line(Nanos deadline);
  // Reads the bytes that have arrived, without waiting. Returns a line if one is complete. Afterwards, ended() says whether the
  // other side has closed the connection.
  std::optional<std::string> poll_line();
  bool ended() const { return ended_; }

 private:
  std::optional<std::string> take_line();

  unisono::Descriptor socket_;
  std::string buffer_;
  size_t received_ = 0;
  bool ended_ = false;
};

struct Dialled {
  AddressTry attempt;
  ByteStream stream;  // open if the process at this address has answered
};

struct DialRequest {
  TcpAddress to;
  std::optional<TcpAddress> source;  // the connection uses this local address; nullopt: the kernel chooses one
  uint32_t segment_bytes_max = 0;    // 0: the kernel's choice
};

// Dials all addresses at the same time, and returns at the deadline at the latest. Each outcome is one of reached, no_answer,
// refused, no_route and failed.
std::vector<Dialled> dial_all(std::span<const DialRequest> requests, Nanos deadline);

}  // namespace unisono::cli

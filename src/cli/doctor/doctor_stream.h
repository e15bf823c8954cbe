// A connection of the doctor's own: sends and receives whole pieces, or whole lines, each with a deadline. Nothing waits
// longer.
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
  // A connected, non-blocking socket.
  explicit ByteStream(unisono::Descriptor socket) : socket_(std::move(socket)) {}

  int get() const { return socket_.get(); }
  bool open() const { return socket_.open(); }
  // Resets the connection: data under way is dropped, so that no one waits for it.
  void abort();

  // late: the deadline passed. peer_lost: the other side ended it, or the kernel did; the message is the kernel's.
  Status send(std::span<const std::byte> bytes, Nanos deadline);
  Status receive(std::span<std::byte> bytes, Nanos deadline);
  // Bytes of the last receive() that came, whatever became of it.
  size_t received() const { return received_; }

  // Lines end in \n, and hold at most line_bytes_max. corrupt: longer.
  static constexpr size_t line_bytes_max = 4 << 20;
  Status send_line(const std::string& line, Nanos deadline);
  Result<std::string> receive_line(Nanos deadline);
  // Reads what is there without waiting; a whole line if there is one now. ended() afterwards says whether more can come.
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
  ByteStream stream;  // open if a process answered
};

struct DialRequest {
  TcpAddress to;
  std::optional<TcpAddress> source;  // to dial from
  uint32_t segment_bytes_max = 0;    // 0: as the kernel finds
};

// Dials all at once; each has its end at the deadline at the latest. Sets outcome reached, no_answer, refused, no_route or
// failed.
std::vector<Dialled> dial_all(std::span<const DialRequest> requests, Nanos deadline);

}  // namespace unisono::cli

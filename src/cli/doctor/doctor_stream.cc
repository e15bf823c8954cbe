#include "cli/doctor/doctor_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.h"
#include "cli/common/monotonic.h"

namespace unisono::cli {
namespace {

// Waits until the socket is ready. Returns false at the deadline.
bool wait_for(int socket, short events, Nanos deadline) {
  for (;;) {
    pollfd ready{socket, events, 0};
    const int count = ::poll(&ready, 1, poll_milliseconds(deadline, monotonic_now()));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

Outcome outcome_of(int error) {
  switch (error) {
    case ECONNREFUSED: return Outcome::refused;
    case ETIMEDOUT: return Outcome::no_answer;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL: return Outcome::no_route;
    default: return Outcome::failed;
  }
}

int start_dialling(const DialRequest& request, unisono::Descriptor& socket) {
  socket = unisono::Descriptor(::socket(request.to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return errno;
  set_stream_options(socket.get());
  const int segment = static_cast<int>(request.segment_bytes_max);
  if (segment > 0 && ::setsockopt(socket.get(), IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment) != 0) return errno;
  if (request.source && ::bind(socket.get(), request.source->get(), request.source->bytes) != 0) return errno;
  if (::connect(socket.get(), request.to.get(), request.to.bytes) != 0 && errno != EINPROGRESS) return errno;
  return 0;
}

void finish_dialling(Dialled& dialled, unisono::Descriptor socket, int error, Nanos took) {
  dialled.attempt.seconds = seconds_of(took);
  dialled.attempt.outcome = error == 0 ? Outcome::reached : outcome_of(error);
  if (error != 0) {
    dialled.attempt.error = error_text(error);
    return;
  }
  dialled.attempt.source = local_address(socket.get()).to_string();
  dialled.stream = ByteStream(std::move(socket));
}

}  // namespace

void ByteStream::abort() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  if (socket_.open()) (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket_.reset();
}

Status ByteStream::send(std::span<const std::byte> bytes, Nanos deadline) {
  while (!bytes.empty()) {
    const auto count = send_some(socket_.get(), bytes);
    if (count < 0) return {Code::peer_lost, error_text(static_cast<int>(-count))};
    bytes = bytes.subspan(static_cast<size_t>(count));
    if (count == 0 && !wait_for(socket_.get(), POLLOUT, deadline)) return {Code::late, "not sent in time"};
    if (monotonic_now() > deadline) return {Code::late, "not sent in time"};
  }
  return {};
}

Status ByteStream::receive(std::span<std::byte> bytes, Nanos deadline) {
  received_ = 0;
  while (received_ < bytes.size()) {
    bool ended = false;
    const auto count = receive_some(socket_.get(), bytes.subspan(received_), ended);
    if (count < 0) return {Code::peer_lost, error_text(static_cast<int>(-count))};
    if (ended) return {Code::peer_lost, "the other side closed the connection"};
    received_ += static_cast<size_t>(count);
    if (count == 0 && !wait_for(socket_.get(), POLLIN, deadline)) return {Code::late, "no answer in time"};
  }
  return {};
}

Status ByteStream::send_line(const std::string& line, Nanos deadline) {
  const auto text = line + "\n";
  return send(std::as_bytes(std::span(text)), deadline);
}

std::optional<std::string> ByteStream::take_line() {
  const auto end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  auto line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::optional<std::string> ByteStream::poll_line() {
  std::array<std::byte, 64 << 10> piece;
  while (!ended_ && buffer_.find('\n') == std::string::npos) {
    const auto count = receive_some(socket_.get(), piece, ended_);
    if (count < 0) ended_ = true;
    if (count <= 0) break;
    buffer_.append(reinterpret_cast<const char*>(piece.data()), static_cast<size_t>(count));
    if (buffer_.size() > line_bytes_max) ended_ = true;
  }
  return take_line();
}

Result<std::string> ByteStream::receive_line(Nanos deadline) {
  for (;;) {
    if (auto line = poll_line()) return *std::move(line);
    if (buffer_.size() > line_bytes_max) return Status(Code::corrupt, "a line without end");
    if (ended_) return Status(Code::peer_lost, "the other side closed the connection");
    if (!wait_for(socket_.get(), POLLIN, deadline)) return Status(Code::late, "no answer in time");
  }
}

std::vector<Dialled> dial_all(std::span<const DialRequest> requests, Nanos deadline) {
  const auto began = monotonic_now();
  std::vector<Dialled> dialled(requests.size());
  std::vector<unisono::Descriptor> sockets(requests.size());
  std::vector<pollfd> waiting(requests.size(), pollfd{-1, POLLOUT, 0});
  size_t open_count = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    dialled[i].attempt.address = requests[i].to.to_string();
    if (requests[i].source) dialled[i].attempt.source = requests[i].source->to_string();
    if (const int error = start_dialling(requests[i], sockets[i]); error != 0) {
      finish_dialling(dialled[i], {}, error, monotonic_now() - began);
      continue;
    }
    waiting[i].fd = sockets[i].get();
    ++open_count;
  }
  while (open_count > 0) {
    const auto now = monotonic_now();
    if (::poll(waiting.data(), waiting.size(), poll_milliseconds(deadline, now)) == 0) break;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      int error = 0;
      socklen_t bytes = sizeof error;
      if (::getsockopt(waiting[i].fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
      finish_dialling(dialled[i], std::move(sockets[i]), error, monotonic_now() - began);
      waiting[i].fd = -1;
      --open_count;
    }
  }
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].fd < 0) continue;
    dialled[i].attempt.outcome = Outcome::no_answer;
    dialled[i].attempt.error = "no answer";
    dialled[i].attempt.seconds = seconds_of(monotonic_now() - began);
  }
  return dialled;
}

}  // namespace unisono::cli

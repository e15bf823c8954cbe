#include "cli/doctor/doctor_responder.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "cli/common/monotonic.h"

namespace unisono::cli {
namespace {

constexpr Nanos hello_timeout = 3 * second;
// The prober may pause this long between two requests, because it may be busy with another address.
constexpr Nanos request_timeout = 15 * second;
constexpr Nanos bytes_timeout = 6 * second;  // the bytes that a request announces must arrive within this time

// Listens for IPv6 and IPv4 connections at one port. If the kernel has no IPv6, listens for IPv4 connections only.
unisono::Descriptor listen_everywhere(int& error) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  for (const int family : {AF_INET6, AF_INET}) {
    unisono::Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int off = 0;
    if (socket.open() && family == AF_INET6) (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const auto* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
    const socklen_t size = family == AF_INET6 ? sizeof v6 : sizeof v4;
    if (socket.open() && ::bind(socket.get(), address, size) == 0 && ::listen(socket.get(), 1024) == 0) return socket;
    error = errno;
  }
  return {};
}

}  // namespace

int64_t realtime_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * second + time.tv_nsec;
}

Result<Count> count_incoming(ByteStream& stream, uint32_t span_ms, Nanos timeout) {
  std::vector<std::byte> piece(256 << 10);
  if (auto status = stream.receive(std::span(piece).first(1), monotonic_now() + timeout); !status.ok()) return status;
  const auto begin = monotonic_now();
  const auto counted_from = begin + span_ms * millisecond / 2;
  const auto end = begin + span_ms * millisecond;
  Count count;
  auto first = counted_from;
  for (auto now = begin; now < end;) {
    const auto status = stream.receive(piece, now < counted_from ? counted_from : end);
    const auto after = monotonic_now();
    if (!status.ok() && status.code() != Code::late) return status;
    if (now >= counted_from) count.bytes += stream.received();
    else first = std::max(after, counted_from);
    now = after;
    count.took_ns = std::max<int64_t>(1, now - first);
  }
  return count;
}

Result<std::unique_ptr<Responder>> Responder::make(std::string key) {
  int error = 0;
  auto socket = listen_everywhere(error);
  if (!socket.open()) return Status(Code::unavailable, "cannot listen for probes: " + error_text(error));
  unisono::Descriptor stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.open()) return Status(Code::unavailable, "cannot make an event descriptor: " + error_text(errno));
  return std::unique_ptr<Responder>(new Responder(std::move(key), std::move(socket), std::move(stop)));
}

Responder::Responder(std::string key, unisono::Descriptor socket, unisono::Descriptor stop)
    : key_(std::move(key)), socket_(std::move(socket)), stop_(std::move(stop)), port_(local_address(socket_.get()).port()) {
  acceptor_ = std::thread([this] { accept_all(); });
}

Responder::~Responder() {
  stopping_ = true;
  (void)::eventfd_write(stop_.get(), 1);
  acceptor_.join();
}

void Responder::accept_all() {
  while (!stopping_) {
    pollfd ready[2] = {{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(ready, 2, 1000) < 0 && errno != EINTR) break;
    reap(false);
    if ((ready[0].revents & POLLIN) == 0 || visits_.size() >= connections_max) continue;
    unisono::Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) continue;
    set_stream_options(socket.get());
    auto done = std::make_shared<std::atomic<bool>>(false);
    visits_.push_back({std::thread([this, done, stream = ByteStream(std::move(socket))]() mutable {
                         serve(std::move(stream));
                         *done = true;
                       }),
                       done});
  }
  reap(true);
}

void Responder::reap(bool all) {
  std::erase_if(visits_, [&](Visit& visit) {
    if (!all && !*visit.done) return false;
    visit.thread.join();
    return true;
  });
}

void Responder::serve(ByteStream stream) const {
  ProbeHello hello;
  if (!stream.receive(object_bytes(hello), monotonic_now() + hello_timeout).ok()) return;
  const bool meant = hello.greeting == probe_greeting && std::memcmp(hello.key.data(), key_.data(), probe_key_bytes) == 0;
  if (!meant) return;
  auto greeting = probe_greeting;
  if (!stream.send(object_bytes(greeting), monotonic_now() + hello_timeout).ok()) return;
  // poll() also watches stop_. So the program can end at once, even if some probers have disappeared.
  for (auto until = monotonic_now() + request_timeout; monotonic_now() < until && !stopping_;) {
    pollfd ready[2] = {{stream.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(ready, 2, poll_milliseconds(until, monotonic_now())) <= 0 || ready[1].revents != 0) continue;
    ProbeRequest request;
    if (!stream.receive(object_bytes(request), monotonic_now() + hello_timeout).ok()) return;
    if (!answer(stream, request)) break;
    until = monotonic_now() + request_timeout;
  }
  stream.abort();
}

bool Responder::answer(ByteStream& stream, const ProbeRequest& request) const {
  if (request.bytes > probe_bytes_max || request.ms > probe_ms_max) return false;
  const auto deadline = monotonic_now() + bytes_timeout;
  std::vector<std::byte> payload(request.bytes);
  switch (request.kind) {
    case ProbeRequest::Kind::echo: {
      if (!stream.receive(payload, deadline).ok()) return false;
      Stamp stamp;
      stamp.received_ns = stamp.answered_ns = realtime_ns();
      return stream.send(object_bytes(stamp), deadline).ok();
    }
    case ProbeRequest::Kind::burst: return stream.send(payload, deadline).ok();
    case ProbeRequest::Kind::source: {
      payload.resize(256 << 10);
      for (const auto end = monotonic_now() + request.ms * millisecond; monotonic_now() < end && !stopping_;) {
        if (!stream.send(payload, end).ok()) break;
      }
      return false;
    }
    case ProbeRequest::Kind::sink: {
      auto count = count_incoming(stream, request.ms, bytes_timeout);
      if (!count.ok() || !stream.send(object_bytes(*count), deadline).ok()) return false;
      payload.resize(256 << 10);  // reads and drops bytes until the prober has received the count and closes the connection
      while (monotonic_now() < deadline && !stopping_ && stream.receive(payload, monotonic_now() + second / 2).ok()) {}
      return false;
    }
  }
  return false;
}

}  // namespace unisono::cli

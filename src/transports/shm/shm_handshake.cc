#include "transports/shm/shm_handshake.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/concat.h"
#include "base/error_text.h"
#include "net/this_host.h"
#include "wire/checksum.h"

namespace unisono::shm {
namespace {

constexpr int accepts_per_step = 16;
constexpr uint32_t names_max = 16;
constexpr Nanos accept_pause = 100 * millisecond;  // After no descriptor was free, accepting is tried again after this time.
// A control message can carry at most this many descriptors; the kernel closes all further ones.
constexpr size_t descriptors_max = 8;

Status system_error(Code code, const std::string& what, int error) { return {code, what + ": " + error_text(error)}; }

// Makes an address in the abstract name space: a zero byte, followed by the name without a terminator.
socklen_t make_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

UniqueFd make_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Takes ownership of every descriptor in the message: keeps the first one and closes the others.
void take_descriptors(msghdr& message, Arrival& arrival) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      UniqueFd fd(number);
      if (!arrival.memory) arrival.memory = std::move(fd);
    }
  }
}

Refusal check_hello(const Hello& hello, const Arrival& arrival) {
  if (hello.magic != hello_magic) return Refusal::malformed;
  if (hello.version != hello_version) return Refusal::version;
  if (hello.checksum != crc32c(&hello, offsetof(Hello, checksum))) return Refusal::malformed;
  if (hello.refusal != Refusal::none) return Refusal::none;
  if (!hello.geometry.valid() || hello.region >= hello.geometry.regions) return Refusal::malformed;
  return arrival.memory ? Refusal::none : Refusal::malformed;
}

}  // namespace

const char* name(Refusal refusal) {
  switch (refusal) {
    case Refusal::none: return "none";
    case Refusal::malformed: return "malformed hello";
    case Refusal::version: return "another version of Unisono";
    case Refusal::other_job: return "another job";
    case Refusal::other_process: return "meant for another process";
    case Refusal::unknown_peer: return "not known as a peer";
    case Refusal::duplicate: return "a link to this process exists";
    case Refusal::memory: return "unusable shared memory";
    case Refusal::busy: return "too many connections waiting";
    case Refusal::descriptors: return "too many open files in its process; raise its limit with ulimit -n";
  }
  return "unknown reason";
}

Status no_descriptors(const std::string& what, int error) { return {Code::unavailable, what + ": " + error_text(error)}; }

Status truncated_hello() { return no_descriptors("the memory that came with its hello could not be taken", EMFILE); }

Result<std::string> host_id() {
  const auto host = host_identity();
  if (!host) return Status(host.status().code(), "shm: " + host.status().message());
  return concat(host->boot, "-", host->network);
}

std::string socket_name(const PeerId& id, uint32_t attempt) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "unisono-";
  for (const uint64_t word : {id.high, id.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[word >> shift & 15];
  }
  return attempt == 0 ? text : concat(text, "-", attempt);
}

void seal_hello(Hello& hello) { hello.checksum = crc32c(&hello, offsetof(Hello, checksum)); }

Result<UniqueFd> listen_at(const std::string& name) {
  UniqueFd fd = make_socket();
  if (!fd) return system_error(Code::unavailable, "shm: unix socket", errno);
  sockaddr_un address;
  const socklen_t length = make_address(name, address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return system_error(Code::unavailable, "shm: listening at @" + name, errno);
  }
  return fd;
}

Result<UniqueFd> dial(const std::string& name) {
  UniqueFd fd = make_socket();
  if (!fd) return system_error(Code::unavailable, "shm: unix socket", errno);
  sockaddr_un address;
  const socklen_t length = make_address(name, address);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  if (errno == EAGAIN || errno == EINTR) return UniqueFd();
  return system_error(Code::unavailable, "connecting to @" + name, errno);
}

bool is_of_this_user(int socket) {
  ucred listener{};
  socklen_t bytes = sizeof listener;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &bytes) == 0 && listener.uid == ::geteuid();
}

Status send_hello(int socket, const Hello& hello, int memory) {
  Hello copy = hello;
  iovec bytes{&copy, sizeof(copy)};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(memory))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(memory));
  std::memcpy(CMSG_DATA(header), &memory, sizeof(memory));
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(sizeof(copy))) return {};
  return system_error(Code::unavailable, "shm: sending the hello", errno);
}

void send_refusal(int socket, Refusal refusal) {
  Hello hello;
  hello.refusal = refusal;
  seal_hello(hello);
  (void)::send(socket, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
}

HelloState receive_hello(Arrival& arrival, Refusal& refusal) {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(descriptors_max * sizeof(int))];
  iovec bytes{&arrival.hello, sizeof(arrival.hello)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = ::recvmsg(arrival.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return HelloState::waiting;
  if (size <= 0) return HelloState::ended;
  take_descriptors(message, arrival);
  // In every version, a hello begins with the magic and the version. In another version the message may have another size.
  const bool readable = size >= static_cast<ssize_t>(offsetof(Hello, refusal)) && arrival.hello.magic == hello_magic;
  if (readable && arrival.hello.version != hello_version) {
    refusal = Refusal::version;
  } else if (size != static_cast<ssize_t>(sizeof(Hello)) || (message.msg_flags & MSG_TRUNC) != 0) {
    refusal = Refusal::malformed;
  } else {
    refusal = check_hello(arrival.hello, arrival);
    // The kernel cuts the list of descriptors if this process has no number left for them. A peer that sends too many
    // descriptors also causes MSG_CTRUNC, but then the first one has arrived.
    if (refusal == Refusal::malformed && !arrival.memory && (message.msg_flags & MSG_CTRUNC) != 0)
      refusal = Refusal::descriptors;
  }
  if (refusal != Refusal::none) return HelloState::malformed;
  return arrival.hello.refusal == Refusal::none ? HelloState::complete : HelloState::refused;
}

Result<Acceptor> Acceptor::make(const PeerId& self) {
  Acceptor acceptor;
  acceptor.self_ = self;
  acceptor.epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  Result<UniqueFd> listener = Status(Code::unavailable, "");
  for (uint32_t attempt = 0; !listener && attempt < names_max; ++attempt) {
    acceptor.name_ = socket_name(self, attempt);
    listener = listen_at(acceptor.name_);
  }
  if (!listener) return listener.status();
  acceptor.listener_ = std::move(*listener);
  if (!acceptor.epoll_ || !acceptor.watch(acceptor.listener_.get(), 0)) {
    return system_error(Code::unavailable, "shm: epoll", errno);
  }
  acceptor.pending_.reserve(unauthenticated_max);
  return acceptor;
}

bool Acceptor::watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Tells epoll for which events of the listening socket handle() becomes readable.
void Acceptor::listen_for(uint32_t events) {
  epoll_event event{};
  event.events = events;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

void Acceptor::close() {
  pending_.clear();
  listener_.reset();
  epoll_.reset();
  accept_again_ = never;
}

Status Acceptor::accept_some(Nanos now) {
  if (!listener_) return {};
  if (accept_again_ != never && now < accept_again_) return {};
  if (std::exchange(accept_again_, never) != never) listen_for(EPOLLIN);
  for (int i = 0; i < accepts_per_step; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (!is_out_of_descriptors(errno)) return {};
      auto why = no_descriptors("its connection could not be accepted", errno);
      // The connection stays in the kernel's queue. Without this pause, epoll would report it again and again.
      accept_again_ = now + accept_pause;
      listen_for(0);
      return why;
    }
    PendingConnection pending;
    pending.arrival.socket = std::move(fd);
    pending.deadline = now + hello_wait;
    if (pending_.size() >= unauthenticated_max || !watch(pending.arrival.socket.get(), 1)) {
      refuse(pending, Refusal::busy);
      continue;
    }
    pending_.push_back(std::move(pending));
  }
  return {};
}

void Acceptor::refuse(PendingConnection& pending, Refusal why) {
  send_refusal(pending.arrival.socket.get(), why);
  pending.gone = true;
  ++refused_;
}

Status Acceptor::step_pending(PendingConnection& pending, Nanos now, const JobKey* key) {
  Refusal refusal = Refusal::none;
  if (!pending.hello_received) {
    const HelloState state = receive_hello(pending.arrival, refusal);
    if (state == HelloState::waiting) {
      if (now >= pending.deadline) refuse(pending, Refusal::malformed);
      return {};
    }
    if (state != HelloState::complete) {
      refuse(pending, state == HelloState::malformed ? refusal : Refusal::malformed);
      return refusal == Refusal::descriptors ? truncated_hello() : Status();
    }
    pending.hello_received = true;
    pending.deadline = now + arrival_wait;
    // Stop polling the socket. Until we answer, the peer sends nothing more. If the peer closed the socket, epoll would report
    // that again and again. We notice an early end when the hello is used.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pending.arrival.socket.get(), nullptr);
  }
  if (key != nullptr && pending.arrival.hello.key != *key) refuse(pending, Refusal::other_job);
  else if (pending.arrival.hello.to != self_) refuse(pending, Refusal::other_process);
  else if (now >= pending.deadline) refuse(pending, Refusal::unknown_peer);
  return {};
}

Status Acceptor::step(Nanos now, const JobKey* key) {
  Status first = accept_some(now);
  for (auto& pending : pending_) {
    auto status = step_pending(pending, now, key);
    if (first.ok()) first = std::move(status);
  }
  std::erase_if(pending_, [](const PendingConnection& pending) { return pending.gone; });
  return first;
}

std::optional<Arrival> Acceptor::take(const PeerId& from, const JobKey& key) {
  std::optional<Arrival> arrival;
  for (auto& pending : pending_) {
    const Hello& hello = pending.arrival.hello;
    if (!pending.hello_received || hello.from != from || hello.key != key || hello.to != self_) continue;
    // The last hello wins, because a process that dials again has abandoned its earlier connection.
    arrival = std::move(pending.arrival);
    pending.gone = true;
  }
  std::erase_if(pending_, [](const PendingConnection& pending) { return pending.gone; });
  return arrival;
}

void Acceptor::refuse_duplicates(const PeerId& from) {
  for (auto& pending : pending_) {
    if (pending.hello_received && pending.arrival.hello.from == from) refuse(pending, Refusal::duplicate);
  }
  std::erase_if(pending_, [](const PendingConnection& pending) { return pending.gone; });
}

Nanos Acceptor::next_deadline() const {
  Nanos first = accept_again_;
  for (const auto& pending : pending_) first = std::min(first, pending.deadline);
  return first;
}

}  // namespace unisono::shm

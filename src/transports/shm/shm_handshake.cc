#include "transports/shm/shm_handshake.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "wire/checksum.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace unisono::shm {
namespace {

constexpr int accepts_per_step = 16;
constexpr uint32_t names_max = 16;
constexpr size_t descriptors_max = 8;  // descriptors in one control message; the kernel closes the rest

Status system_error(Code code, const std::string& what, int error) { return {code, what + ": " + std::strerror(error)}; }

// An abstract address: a zero byte, then the name without terminator.
socklen_t make_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

UniqueFd make_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Takes ownership of every descriptor in the message; keeps the first two.
void take_descriptors(msghdr& message, Arrival& arrival) {
  size_t taken = 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++taken) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      UniqueFd fd(number);
      if (taken == 0) arrival.memory = std::move(fd);
      if (taken == 1) arrival.bell = std::move(fd);
    }
  }
}

Refusal check_hello(const Hello& hello, const Arrival& arrival) {
  if (hello.magic != hello_magic) return Refusal::malformed;
  if (hello.version != hello_version) return Refusal::version;
  if (hello.checksum != crc32c(&hello, offsetof(Hello, checksum))) return Refusal::malformed;
  if (hello.refusal != Refusal::none) return Refusal::none;
  if (!hello.geometry.valid() || hello.region >= hello.geometry.regions) return Refusal::malformed;
  return arrival.memory && arrival.bell ? Refusal::none : Refusal::malformed;
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
  }
  return "unknown reason";
}

Result<std::string> host_id() {
  std::array<char, 64> boot{};
  UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t size = file ? ::read(file.get(), boot.data(), boot.size()) : -1;
  struct stat space {};
  if (size < 36 || ::stat("/proc/self/ns/net", &space) != 0) {
    return Status(Code::unsupported, "shm: cannot read the boot id and the network name space from /proc");
  }
  return std::string(boot.data(), 36) + "-" + std::to_string(space.st_ino);
}

std::string socket_name(const PeerId& id, uint32_t attempt) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = "unisono-";
  for (const uint64_t word : {id.high, id.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[word >> shift & 15];
  }
  return attempt == 0 ? text : text + "-" + std::to_string(attempt);
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

Status send_hello(int socket, const Hello& hello, int memory, int bell) {
  Hello copy = hello;
  iovec bytes{&copy, sizeof(copy)};
  const int descriptors[2] = {memory, bell};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(descriptors))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(descriptors));
  std::memcpy(CMSG_DATA(header), descriptors, sizeof(descriptors));
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

Incoming receive_hello(Arrival& arrival, Refusal& refusal) {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(descriptors_max * sizeof(int))];
  iovec bytes{&arrival.hello, sizeof(arrival.hello)};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = ::recvmsg(arrival.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Incoming::waiting;
  if (size <= 0) return Incoming::ended;
  take_descriptors(message, arrival);
  // Magic and version stay first in every version; the size of the message may differ.
  const bool readable = size >= static_cast<ssize_t>(offsetof(Hello, refusal)) && arrival.hello.magic == hello_magic;
  if (readable && arrival.hello.version != hello_version) {
    refusal = Refusal::version;
  } else if (size != static_cast<ssize_t>(sizeof(Hello)) || (message.msg_flags & MSG_TRUNC) != 0) {
    refusal = Refusal::malformed;
  } else {
    refusal = check_hello(arrival.hello, arrival);
  }
  if (refusal != Refusal::none) return Incoming::malformed;
  return arrival.hello.refusal == Refusal::none ? Incoming::complete : Incoming::refused;
}

int process_number(int socket) {
  ucred who{};
  socklen_t size = sizeof(who);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
}

UniqueFd process_handle(int socket) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  const int number = process_number(socket);
  if (number <= 0) return {};
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, number, 0)));
}

Result<Reception> Reception::make(const PeerId& self) {
  Reception reception;
  reception.self_ = self;
  reception.epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  Result<UniqueFd> listener = Status(Code::unavailable, "");
  for (uint32_t attempt = 0; !listener && attempt < names_max; ++attempt) {
    reception.name_ = socket_name(self, attempt);
    listener = listen_at(reception.name_);
  }
  if (!listener) return listener.status();
  reception.listener_ = std::move(*listener);
  if (!reception.epoll_ || !reception.watch(reception.listener_.get(), 0)) {
    return system_error(Code::unavailable, "shm: epoll", errno);
  }
  reception.unauthenticated_.reserve(unauthenticated_max);
  return reception;
}

bool Reception::watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Reception::accept_some(Nanos now) {
  for (int i = 0; i < accepts_per_step; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    Unauthenticated unauthenticated;
    unauthenticated.arrival.socket = std::move(fd);
    unauthenticated.deadline = now + hello_wait;
    if (unauthenticated_.size() >= unauthenticated_max || !watch(unauthenticated.arrival.socket.get(), 1)) {
      refuse(unauthenticated, Refusal::busy);
      continue;
    }
    unauthenticated_.push_back(std::move(unauthenticated));
  }
}

void Reception::refuse(Unauthenticated& unauthenticated, Refusal why) {
  send_refusal(unauthenticated.arrival.socket.get(), why);
  unauthenticated.gone = true;
  ++refused_;
}

void Reception::step_unauthenticated(Unauthenticated& unauthenticated, Nanos now, const JobKey* key) {
  Refusal refusal = Refusal::none;
  if (!unauthenticated.greeted) {
    const Incoming state = receive_hello(unauthenticated.arrival, refusal);
    if (state == Incoming::waiting) {
      if (now >= unauthenticated.deadline) refuse(unauthenticated, Refusal::malformed);
      return;
    }
    if (state != Incoming::complete)
      return refuse(unauthenticated, state == Incoming::malformed ? refusal : Refusal::malformed);
    unauthenticated.greeted = true;
    unauthenticated.deadline = now + arrival_wait;
    // The peer sends nothing more now, and an early end is found when the hello is used. A watch would wake us for ever.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, unauthenticated.arrival.socket.get(), nullptr);
  }
  if (key != nullptr && unauthenticated.arrival.hello.key != *key) return refuse(unauthenticated, Refusal::other_job);
  if (unauthenticated.arrival.hello.to != self_) return refuse(unauthenticated, Refusal::other_process);
  if (now >= unauthenticated.deadline) refuse(unauthenticated, Refusal::unknown_peer);
}

void Reception::step(Nanos now, const JobKey* key) {
  accept_some(now);
  for (auto& unauthenticated : unauthenticated_) step_unauthenticated(unauthenticated, now, key);
  std::erase_if(unauthenticated_, [](const Unauthenticated& unauthenticated) { return unauthenticated.gone; });
}

std::optional<Arrival> Reception::take(const PeerId& from, const JobKey& key) {
  std::optional<Arrival> arrival;
  for (auto& unauthenticated : unauthenticated_) {
    const Hello& hello = unauthenticated.arrival.hello;
    if (!unauthenticated.greeted || hello.from != from || hello.key != key || hello.to != self_) continue;
    arrival = std::move(unauthenticated.arrival);  // the last one counts: a process that dials again has abandoned the first
    unauthenticated.gone = true;
  }
  std::erase_if(unauthenticated_, [](const Unauthenticated& unauthenticated) { return unauthenticated.gone; });
  return arrival;
}

void Reception::refuse_duplicates(const PeerId& from) {
  for (auto& unauthenticated : unauthenticated_) {
    if (unauthenticated.greeted && unauthenticated.arrival.hello.from == from) refuse(unauthenticated, Refusal::duplicate);
  }
  std::erase_if(unauthenticated_, [](const Unauthenticated& unauthenticated) { return unauthenticated.gone; });
}

Nanos Reception::next_deadline() const {
  Nanos first = never;
  for (const auto& unauthenticated : unauthenticated_) first = std::min(first, unauthenticated.deadline);
  return first;
}

}  // namespace unisono::shm

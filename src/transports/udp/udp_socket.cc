#include "transports/udp/udp_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include <linux/errqueue.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

namespace unisono {
namespace {

constexpr size_t datagrams_per_call = 256;  // for sending
constexpr size_t messages_per_call = 32;    // for receiving; with a run in each they are 2 MiB
constexpr size_t run_datagrams_max = 64;    // UDP_MAX_SEGMENTS of every kernel that has UDP_SEGMENT
constexpr size_t run_bytes_max = 65507;     // a run is one IP packet until the kernel cuts it
constexpr size_t run_buffer_bytes = 65536;
constexpr int tries_max = 3;         // an error that comes this often in a row is about the datagram itself
constexpr int errors_per_call = 64;  // many errors must not delay the datagrams
constexpr size_t cache_line = 64;
constexpr Nanos wait_max = 10 * second;  // a longer wait means that the wall clock was set meanwhile

bool set_option(int socket, int level, int name, int value) {
  return ::setsockopt(socket, level, name, &value, sizeof value) == 0;
}

int get_option(int socket, int level, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return ::getsockopt(socket, level, name, &value, &bytes) == 0 ? value : -1;
}

Nanos clock_now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return Nanos{time.tv_sec} * second + time.tv_nsec;
}

// The time since the arrival of the datagram with this time stamp.
Nanos waited(const cmsghdr* note, Nanos wall) {
  timespec stamp{};
  if (note->cmsg_len < CMSG_LEN(sizeof stamp)) return 0;
  std::memcpy(&stamp, CMSG_DATA(note), sizeof stamp);
  const Nanos time = wall - (Nanos{stamp.tv_sec} * second + stamp.tv_nsec);
  return time < 0 || time > wait_max ? 0 : time;
}

size_t bytes_of(const OutDatagram& datagram) { return datagram_header_bytes + datagram.payload.size(); }

int flags_for(const OutDatagram& datagram) { return MSG_DONTWAIT | MSG_NOSIGNAL | (datagram.confirms ? MSG_CONFIRM : 0); }

bool one_address(const TcpAddress* a, const TcpAddress* b) {
  return a == b || (a->bytes == b->bytes && std::memcmp(&a->storage, &b->storage, a->bytes) == 0);
}

// How many of the first datagrams can go as one run: to one address and of one size; the last may be shorter.
size_t run_of(std::span<const OutDatagram> batch) {
  const size_t size = bytes_of(batch[0]);
  size_t count = 1, total = size;
  while (count < std::min(batch.size(), run_datagrams_max)) {
    const auto& next = batch[count];
    const size_t more = bytes_of(next);
    if (more > size || total + more > run_bytes_max || !one_address(next.to, batch[0].to)) break;
    ++count, total += more;
    if (more < size) break;
  }
  return count;
}

// True for an error that may be about an earlier datagram of any call: the network answers late, and the kernel reports it
// once, at the next call.
bool may_be_about_the_past(int error) {
  switch (error) {
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENONET:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case EPROTO:
    case EACCES:
    case EMSGSIZE: return true;
    default: return false;
  }
}

SendStop stop_of(int error) {
  switch (error) {
    case EAGAIN: return SendStop::would_block;
    case ENOBUFS:
    case ENOMEM: return SendStop::no_buffers;
    case EMSGSIZE: return SendStop::too_long;
    case EPERM: return SendStop::firewalled;
    default: return SendStop::other;
  }
}

}  // namespace

// Messages for the kernel: each is a datagram or a run, made of the pieces header, payload, header, payload, …
struct UdpSocket::Outbox {
  union Control {
    cmsghdr align;
    std::array<std::byte, CMSG_SPACE(sizeof(uint16_t))> bytes;
  };
  std::array<mmsghdr, datagrams_per_call> messages;
  std::array<size_t, datagrams_per_call> counts;  // datagrams in each message
  std::array<iovec, 2 * datagrams_per_call> pieces;
  std::array<Control, datagrams_per_call> control;

  void set(size_t index, std::span<const OutDatagram> run, size_t first_piece) {
    auto& message = messages[index].msg_hdr;
    message = {};
    // The kernel's interface has no const; the kernel does not write there.
    message.msg_name = const_cast<sockaddr_storage*>(&run[0].to->storage);
    message.msg_namelen = run[0].to->bytes;
    message.msg_iov = &pieces[first_piece];
    for (const auto& datagram : run) {
      message.msg_iov[message.msg_iovlen++] = {const_cast<DatagramHeader*>(&datagram.header), datagram_header_bytes};
      if (datagram.payload.empty()) continue;
      message.msg_iov[message.msg_iovlen++] = {const_cast<std::byte*>(datagram.payload.data()), datagram.payload.size()};
    }
    counts[index] = run.size();
    if (run.size() == 1) return;
    message.msg_control = control[index].bytes.data();
    message.msg_controllen = control[index].bytes.size();
    auto* note = CMSG_FIRSTHDR(&message);
    note->cmsg_level = SOL_UDP;
    note->cmsg_type = UDP_SEGMENT;
    note->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto size = static_cast<uint16_t>(bytes_of(run[0]));
    std::memcpy(CMSG_DATA(note), &size, sizeof size);
  }
};

// Received datagrams land here, and the inbox gets them from here.
struct UdpSocket::Ring {
  union Control {
    cmsghdr align;
    std::array<std::byte, CMSG_SPACE(sizeof(uint32_t)) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(timespec))> bytes;
  };
  std::array<mmsghdr, messages_per_call> messages{};
  std::array<iovec, messages_per_call> pieces{};
  std::array<TcpAddress, messages_per_call> from{};
  std::array<Control, messages_per_call> control;
  std::unique_ptr<std::byte[]> memory;

  // One byte more than a whole datagram, so that a longer one is recognised.
  explicit Ring(size_t datagram_bytes) {
    const size_t stride = (datagram_bytes + 1 + cache_line - 1) / cache_line * cache_line;
    memory = std::make_unique_for_overwrite<std::byte[]>(stride * messages_per_call);
    for (size_t i = 0; i < messages_per_call; ++i) {
      pieces[i] = {memory.get() + i * stride, datagram_bytes + 1};
      auto& message = messages[i].msg_hdr;
      message.msg_name = &from[i].storage;
      message.msg_iov = &pieces[i];
      message.msg_iovlen = 1;
      message.msg_control = control[i].bytes.data();
      arm(i);
    }
  }
  // The kernel overwrites the available sizes with the used sizes, so they are set again.
  void arm(size_t index) {
    messages[index].msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    messages[index].msg_hdr.msg_controllen = control[index].bytes.size();
  }
};

UdpSocket::UdpSocket(Descriptor socket) : socket_(std::move(socket)) {}
UdpSocket::~UdpSocket() = default;

Result<std::unique_ptr<UdpSocket>> UdpSocket::make(const UdpSocketOptions& options) {
  const int family = options.address.family();
  if (family != AF_INET && family != AF_INET6)
    return Status(Code::invalid, "udp: a socket needs an IPv4 or IPv6 address of this host");
  if (options.datagram_bytes_max < datagram_header_bytes || options.datagram_bytes_max > run_bytes_max) {
    return Status(Code::invalid,
                  "udp: datagrams of " + std::to_string(options.datagram_bytes_max) + " bytes: from 56 to 65507 are possible");
  }
  Descriptor socket(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open())
    return Status(Code::unsupported, "udp: no socket for " + options.address.to_string() + ": " + error_text(errno));
  std::unique_ptr<UdpSocket> made(new UdpSocket(std::move(socket)));
  if (auto status = made->set_up(options); !status.ok()) return status;
  return made;
}

Status UdpSocket::set_up(const UdpSocketOptions& options) {
  const int socket = socket_.get();
  const bool wide = options.address.family() == AF_INET6;
  const auto fail = [&](Code code, const char* what) {
    return Status(code, "udp: " + std::string(what) + " " + options.address.to_string() + ": " + error_text(errno));
  };
  if (wide && !set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1)) return fail(Code::unsupported, "cannot keep IPv4 apart at");
  const bool whole = wide ? set_option(socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO)
                          : set_option(socket, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  if (!whole) return fail(Code::unsupported, "cannot forbid fragments at");

  // These options are improvements, and the socket works without them. With them, errors of the network name their address, and
  // the kernel reports datagrams that its own queues drop (ENOBUFS).
  (void)(wide ? set_option(socket, IPPROTO_IPV6, IPV6_RECVERR, 1) : set_option(socket, IPPROTO_IP, IP_RECVERR, 1));
  (void)set_option(socket, SOL_SOCKET, SO_RXQ_OVFL, 1);
  (void)set_option(socket, SOL_SOCKET, SO_TIMESTAMPNS, 1);
  if (!set_option(socket, SOL_SOCKET, SO_RCVBUFFORCE, options.receive_buffer_bytes))
    (void)set_option(socket, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes);
  if (!set_option(socket, SOL_SOCKET, SO_SNDBUFFORCE, options.send_buffer_bytes))
    (void)set_option(socket, SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes);
  send_runs_ = options.segmentation_offload && get_option(socket, SOL_UDP, UDP_SEGMENT) >= 0;
  receive_runs_ = options.receive_offload && set_option(socket, SOL_UDP, UDP_GRO, 1);

  if (::bind(socket, options.address.get(), options.address.bytes) != 0) return fail(Code::unavailable, "cannot bind");
  address_ = local_address(socket);
  outbox_ = std::make_unique<Outbox>();
  ring_ = std::make_unique<Ring>(receive_runs_ ? run_buffer_bytes : size_t{options.datagram_bytes_max});
  return {};
}

int UdpSocket::receive_buffer_bytes() const { return get_option(socket_.get(), SOL_SOCKET, SO_RCVBUF); }
int UdpSocket::send_buffer_bytes() const { return get_option(socket_.get(), SOL_SOCKET, SO_SNDBUF); }

// --- sending --------------------------------------------------------------------------------------------------------------

SendOutcome UdpSocket::send(std::span<const OutDatagram> batch) {
  SendOutcome outcome;
  while (outcome.taken < batch.size() && outcome.stop == SendStop::none) {
    auto left = batch.subspan(outcome.taken);
    // `confirms` applies to all messages of one call.
    size_t count = 1;
    while (count < left.size() && left[count].confirms == left[0].confirms) ++count;
    left = left.first(count);
    give(left, fill(left), outcome);
  }
  return outcome;
}

// Makes messages of the first datagrams; returns how many datagrams they hold.
size_t UdpSocket::fill(std::span<const OutDatagram> batch) {
  batch = batch.first(std::min(batch.size(), datagrams_per_call));
  size_t messages = 0;
  for (size_t at = 0; at < batch.size(); ++messages) {
    const size_t count = send_runs_ ? run_of(batch.subspan(at)) : 1;
    outbox_->set(messages, batch.subspan(at, count), 2 * at);
    at += count;
  }
  return messages;
}

// Gives the filled messages to the kernel until all are taken, sending stops, or the rest must be filled again.
void UdpSocket::give(std::span<const OutDatagram> batch, size_t messages, SendOutcome& outcome) {
  size_t done = 0;  // datagrams of the batch
  int tries = 0;
  for (size_t at = 0; at < messages;) {
    const int count =
        ::sendmmsg(socket_.get(), &outbox_->messages[at], static_cast<unsigned>(messages - at), flags_for(batch[0]));
    ++counters_.sent_calls;
    if (count > 0) {
      // The kernel did not report why it stopped. An error about an earlier datagram is not reported again.
      if (static_cast<size_t>(count) < messages - at) errors_waiting_ = true;
      for (const size_t end = at + static_cast<size_t>(count); at < end; ++at) {
        const size_t datagrams = outbox_->counts[at];
        done += datagrams, outcome.taken += datagrams, counters_.sent += datagrams;
        if (datagrams > 1) counters_.sent_in_runs += datagrams;
      }
      tries = 0;
      continue;
    }
    int error = count < 0 ? errno : EAGAIN;
    if (error == EINTR) continue;
    if (may_be_about_the_past(error)) {
      errors_waiting_ = true;
      if (++tries < tries_max) continue;
    }
    if (outbox_->counts[at] > 1 && stop_of(error) != SendStop::would_block && stop_of(error) != SendStop::no_buffers &&
        error != EPERM) {
      // Is the datagram at fault, or the run? Sending it alone shows that. Kernels and devices refuse runs with various error
      // numbers.
      error = give_alone(batch[done]);
      if (error == 0) {
        send_runs_ = false;
        ++outcome.taken, ++counters_.sent;
        return;
      }
    }
    outcome.stop = stop_of(error);
    outcome.error = error;
    return;
  }
}

// Returns 0 or errno.
int UdpSocket::give_alone(const OutDatagram& datagram) {
  outbox_->set(0, std::span(&datagram, 1), 0);
  for (int tries = 0;;) {
    ++counters_.sent_calls;
    if (::sendmsg(socket_.get(), &outbox_->messages[0].msg_hdr, flags_for(datagram)) >= 0) return 0;
    if (errno == EINTR) continue;
    if (!may_be_about_the_past(errno) || ++tries >= tries_max) return errno;
    errors_waiting_ = true;
  }
}

// --- receiving ------------------------------------------------------------------------------------------------------------

ReceiveOutcome UdpSocket::receive(DatagramInbox& inbox, size_t datagrams_max) {
  ReceiveOutcome outcome;
  if (errors_waiting_) read_errors(inbox);
  int tries = 0;
  do {
    const int count = ::recvmmsg(socket_.get(), ring_->messages.data(), messages_per_call, MSG_DONTWAIT, nullptr);
    ++counters_.received_calls;
    if (count > 0) {
      outcome.datagrams += deliver(static_cast<size_t>(count), clock_now(CLOCK_MONOTONIC), clock_now(CLOCK_REALTIME), inbox);
      outcome.drained = static_cast<size_t>(count) < messages_per_call;
    } else if (count == 0 || errno == EAGAIN) {
      outcome.drained = true;
    } else if (errno != EINTR) {
      read_errors(inbox);  // an error about a sent datagram was reported instead of a datagram
      if (++tries > errors_per_call) break;
    }
  } while (!outcome.drained && outcome.datagrams < datagrams_max);
  // If nothing came, the buffer was not full.
  if (outcome.drained && outcome.datagrams > 0) read_own_drops();
  return outcome;
}

// now, wall: the same moment on both clocks, after the datagrams came. The kernel's stamps use the wall clock.
size_t UdpSocket::deliver(size_t messages, Nanos now, Nanos wall, DatagramInbox& inbox) {
  size_t datagrams = 0;
  std::array<InDatagram, datagrams_per_batch> batch;
  size_t held = 0;
  const auto give = [&] {
    if (held > 0) inbox.arrived(std::span(batch).first(held));
    datagrams += held;
    held = 0;
  };
  for (size_t i = 0; i < messages; ++i) {
    auto& message = ring_->messages[i].msg_hdr;
    std::span<const std::byte> bytes(static_cast<const std::byte*>(ring_->pieces[i].iov_base), ring_->messages[i].msg_len);
    size_t size = 0;  // of each datagram of a run
    Nanos came = now;
    for (auto* note = CMSG_FIRSTHDR(&message); note != nullptr; note = CMSG_NXTHDR(&message, note)) {
      uint32_t value = 0;
      if (note->cmsg_len < CMSG_LEN(sizeof value)) continue;
      std::memcpy(&value, CMSG_DATA(note), sizeof value);
      if (note->cmsg_level == SOL_SOCKET && note->cmsg_type == SO_RXQ_OVFL) own_drops_.saw(value);
      if (note->cmsg_level == SOL_UDP && note->cmsg_type == UDP_GRO) size = value;
      if (note->cmsg_level == SOL_SOCKET && note->cmsg_type == SO_TIMESTAMPNS) came = now - waited(note, wall);
    }
    auto& from = ring_->from[i];
    from.bytes = message.msg_namelen;
    ring_->arm(i);
    if (size == 0) size = bytes.size();
    do {
      const size_t count = std::min(size, bytes.size());
      if (held == batch.size()) give();
      batch[held++] = {bytes.first(count), &from, came};
      bytes = bytes.subspan(count);
    } while (!bytes.empty());
  }
  give();
  counters_.received += datagrams;
  return datagrams;
}

void UdpSocket::read_errors(DatagramInbox& inbox) {
  errors_waiting_ = true;
  for (int i = 0; i < errors_per_call; ++i) {
    TcpAddress about;
    std::byte start_of_datagram{};
    iovec piece{&start_of_datagram, 1};
    alignas(cmsghdr) std::array<std::byte, 256> control;
    msghdr message{};
    message.msg_name = &about.storage;
    message.msg_namelen = sizeof about.storage;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(socket_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      errors_waiting_ = false;
      return;
    }
    about.bytes = message.msg_namelen;
    for (auto* note = CMSG_FIRSTHDR(&message); note != nullptr; note = CMSG_NXTHDR(&message, note)) {
      const bool error = (note->cmsg_level == SOL_IP && note->cmsg_type == IP_RECVERR) ||
                         (note->cmsg_level == SOL_IPV6 && note->cmsg_type == IPV6_RECVERR);
      sock_extended_err what{};
      if (!error || note->cmsg_len < CMSG_LEN(sizeof what)) continue;
      std::memcpy(&what, CMSG_DATA(note), sizeof what);
      const bool by_network = what.ee_origin == SO_EE_ORIGIN_ICMP || what.ee_origin == SO_EE_ORIGIN_ICMP6;
      // Only a host can say that nobody listens there. A host that cannot be reached now counts as loss; send reports datagrams
      // that are too long.
      if (!by_network || what.ee_errno != ECONNREFUSED) continue;
      ++counters_.refused;
      inbox.refused(about);
    }
  }
}

// The kernel attaches its drop count to each datagram. Drops after the last datagram show only here.
void UdpSocket::read_own_drops() {
  std::array<uint32_t, SK_MEMINFO_VARS> values{};
  socklen_t bytes = sizeof values;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_MEMINFO, values.data(), &bytes) == 0 &&
      bytes > SK_MEMINFO_DROPS * sizeof values[0])
    own_drops_.saw(values[SK_MEMINFO_DROPS]);
}

}  // namespace unisono

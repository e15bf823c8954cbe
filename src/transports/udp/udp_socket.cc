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

#include "base/concat.h"

namespace unisono {
namespace {

constexpr size_t datagrams_per_call = 256;  // one sending call takes at most this many datagrams
// One receiving call takes at most this many messages. If each message contains a run, they have 2 MiB.
constexpr size_t messages_per_call = 32;
constexpr size_t run_datagrams_max = 64;  // every kernel that has UDP_SEGMENT has this UDP_MAX_SEGMENTS
constexpr size_t run_bytes_max = 65507;  // A run must fit into one IP packet, although the kernel cuts it into datagrams later.
constexpr size_t run_buffer_bytes = 65536;
constexpr int tries_max = 3;         // After this many errors in a row, the datagram that is being sent is taken for the cause.
constexpr int errors_per_call = 64;  // limited so that a large number of errors cannot delay datagrams
constexpr size_t cache_line = 64;
constexpr Nanos wait_max = 10 * second;  // If the waiting time seems to be longer than this, the wall clock was set in between.

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

// Returns how long ago the datagram with this time stamp arrived. `wall` is the current time of the wall clock.
Nanos time_since_arrival(const cmsghdr* note, Nanos wall) {
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

// Returns how many datagrams, from the first on, can be sent as one run. All datagrams of a run have the same address and the
// same size; only the last one may be shorter.
size_t run_of(std::span<const OutDatagram> batch) {
  const size_t size = bytes_of(batch[0]);
  size_t count = 1, total = size;
  while (!batch[0].alone && count < std::min(batch.size(), run_datagrams_max)) {
    const auto& next = batch[count];
    const size_t more = bytes_of(next);
    if (next.alone || more > size || total + more > run_bytes_max || !one_address(next.to, batch[0].to)) break;
    ++count, total += more;
    if (more < size) break;
  }
  return count;
}

// Returns true if the error may be about an earlier datagram, of this call or of an earlier one. The network reports such
// errors late. The kernel reports each of them once, at the next call.
bool may_concern_earlier_datagram(int error) {
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

// The messages that are passed to the kernel. Each message is one datagram or one run. It consists of the pieces header,
// payload, header, payload, …
struct UdpSocket::Outbox {
  union Control {
    cmsghdr align;
    std::array<std::byte, CMSG_SPACE(sizeof(uint16_t))> bytes;
  };
  std::array<mmsghdr, datagrams_per_call> messages;
  std::array<size_t, datagrams_per_call> counts;  // for each message: how many datagrams it contains
  std::array<iovec, 2 * datagrams_per_call> pieces;
  std::array<Control, datagrams_per_call> control;

  void set(size_t index, std::span<const OutDatagram> run, size_t first_piece) {
    auto& message = messages[index].msg_hdr;
    message = {};
    // The kernel's interface has no const here, but the kernel only reads these bytes.
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

// The buffers into which the kernel writes received datagrams. The inbox reads the datagrams there.
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

  // Each buffer has one byte more than the longest datagram, so that a datagram that is too long can be recognised.
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
  // Sets the sizes of a message's buffers again, because the kernel has overwritten them with the sizes that it used.
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
                  concat("udp: datagrams of ", options.datagram_bytes_max, " bytes: from 56 to 65507 are possible"));
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

  // The socket also works if the following options cannot be set. With RECVERR, network errors contain the address, and sending
  // fails with ENOBUFS if a queue of the kernel drops a datagram.
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
    // One call has one set of flags, so all datagrams of the call must have the same value of `confirms`.
    size_t count = 1;
    while (count < left.size() && left[count].confirms == left[0].confirms) ++count;
    left = left.first(count);
    send_messages(left, fill(left), outcome);
  }
  return outcome;
}

// Makes messages from the datagrams of the batch, from the first on. Returns the number of messages.
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

// Passes the messages to the kernel. It ends when all messages are taken, when sending must stop, or when the kernel has
// refused runs. In the last case the caller must make messages without runs from the rest of the batch.
void UdpSocket::send_messages(std::span<const OutDatagram> batch, size_t messages, SendOutcome& outcome) {
  size_t done = 0;  // the kernel has taken this many datagrams of the batch
  int tries = 0;
  for (size_t at = 0; at < messages;) {
    const int count =
        ::sendmmsg(socket_.get(), &outbox_->messages[at], static_cast<unsigned>(messages - at), flags_for(batch[0]));
    ++counters_.sent_calls;
    if (count > 0) {
      // The kernel stopped early, and did not say why. The reason may be an error about an earlier datagram; only the error
      // queue shows such an error.
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
    if (may_concern_earlier_datagram(error)) {
      errors_waiting_ = true;
      if (++tries < tries_max) continue;
    }
    if (outbox_->counts[at] > 1 && stop_of(error) != SendStop::would_block && stop_of(error) != SendStop::no_buffers &&
        error != EPERM) {
      // The cause is this datagram, or the run. To find out which, send the first datagram alone. The error number does not
      // tell, because kernels and devices refuse runs with different numbers.
      error = send_alone(batch[done]);
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

// Sends one datagram without a run. Returns 0 or the errno.
int UdpSocket::send_alone(const OutDatagram& datagram) {
  outbox_->set(0, std::span(&datagram, 1), 0);
  for (int tries = 0;;) {
    ++counters_.sent_calls;
    if (::sendmsg(socket_.get(), &outbox_->messages[0].msg_hdr, flags_for(datagram)) >= 0) return 0;
    if (errno == EINTR) continue;
    if (!may_concern_earlier_datagram(errno) || ++tries >= tries_max) return errno;
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
      read_errors(inbox);  // Instead of a received datagram, the kernel reports an error about a datagram that was sent.
      if (++tries > errors_per_call) break;
    }
  } while (!outcome.drained && outcome.datagrams < datagrams_max);
  // If no datagram came, the buffer was not full, so nothing was dropped.
  if (outcome.drained && outcome.datagrams > 0) read_own_drops();
  return outcome;
}

// Passes received messages to the inbox. `now` and `wall` are the same moment, shortly after the datagrams came: `now` is read
// from the monotonic clock, and `wall` from the wall clock, which the kernel's time stamps use.
size_t UdpSocket::deliver(size_t messages, Nanos now, Nanos wall, DatagramInbox& inbox) {
  size_t datagrams = 0;
  std::array<InDatagram, datagrams_per_batch> batch;
  size_t held = 0;
  const auto deliver_batch = [&] {
    if (held > 0) inbox.arrived(std::span(batch).first(held));
    datagrams += held;
    held = 0;
  };
  for (size_t i = 0; i < messages; ++i) {
    auto& message = ring_->messages[i].msg_hdr;
    std::span<std::byte> bytes(static_cast<std::byte*>(ring_->pieces[i].iov_base), ring_->messages[i].msg_len);
    size_t size = 0;  // for a run: the size of each of its datagrams; 0: the message is not a run
    Nanos came = now;
    for (auto* note = CMSG_FIRSTHDR(&message); note != nullptr; note = CMSG_NXTHDR(&message, note)) {
      uint32_t value = 0;
      if (note->cmsg_len < CMSG_LEN(sizeof value)) continue;
      std::memcpy(&value, CMSG_DATA(note), sizeof value);
      if (note->cmsg_level == SOL_SOCKET && note->cmsg_type == SO_RXQ_OVFL) own_drops_.update(value);
      if (note->cmsg_level == SOL_UDP && note->cmsg_type == UDP_GRO) size = value;
      if (note->cmsg_level == SOL_SOCKET && note->cmsg_type == SO_TIMESTAMPNS) came = now - time_since_arrival(note, wall);
    }
    auto& from = ring_->from[i];
    from.bytes = message.msg_namelen;
    ring_->arm(i);
    if (size == 0) size = bytes.size();
    do {
      const size_t count = std::min(size, bytes.size());
      if (held == batch.size()) deliver_batch();
      batch[held++] = {bytes.first(count), &from, came};
      bytes = bytes.subspan(count);
    } while (!bytes.empty());
  }
  deliver_batch();
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
      // Only the peer's host can say that nobody listens at the port. If the host cannot be reached, the datagram counts as
      // lost. A datagram that is too long is reported by send().
      if (!by_network || what.ee_errno != ECONNREFUSED) continue;
      ++counters_.refused;
      inbox.refused(about);
    }
  }
}

// Asks the kernel how many datagrams it has dropped. The kernel attaches this number to each datagram, too, but if it drops
// datagrams after the last one that arrived, only this call shows it.
void UdpSocket::read_own_drops() {
  std::array<uint32_t, SK_MEMINFO_VARS> values{};
  socklen_t bytes = sizeof values;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_MEMINFO, values.data(), &bytes) == 0 &&
      bytes > SK_MEMINFO_DROPS * sizeof values[0])
    own_drops_.update(values[SK_MEMINFO_DROPS]);
}

}  // namespace unisono

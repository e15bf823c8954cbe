#include "transports/tcp/tcp_stream.h"

#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "transports/tcp/tcp_path.h"

namespace unisono {
namespace {

ptrdiff_t write_parts(int socket, iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(count);
  const auto written = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written >= 0) return written;
  // If the kernel lacks memory, do the same as for a full socket buffer: the stream tries again later.
  return errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM ? 0 : -errno;
}

ptrdiff_t read_parts(int socket, const TcpDecoder::Space& space) {
  if (space.count == 1) return ::recv(socket, space.parts[0].iov_base, space.parts[0].iov_len, MSG_DONTWAIT);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(space.parts);
  message.msg_iovlen = static_cast<size_t>(space.count);
  return ::recvmsg(socket, &message, MSG_DONTWAIT);
}

}  // namespace

bool TcpStream::attach(Descriptor socket, int epoll, uint64_t tag) {
  if (!watch(epoll, socket.get(), EPOLLIN, tag)) return false;
  set_congestion_control(socket.get());
  bound_unacknowledged(socket.get());
  socket_ = std::move(socket);
  epoll_ = epoll;
  tag_ = tag;
  interest_ = EPOLLIN;
  paused_ = drained_ = ended_ = orderly_ = false;
  error_ = write_error_ = 0;
  fault_ = FrameFault::none;
  decoder_.reset();
  return true;
}

Descriptor TcpStream::detach(std::vector<uint64_t>& sent) {
  if (socket_.open() && interest_ != 0) unwatch(epoll_, socket_.get());
  queue_.clear(sent);
  decoder_.reset();
  return std::move(socket_);
}

bool TcpStream::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  if (ended_ || write_error_ != 0) return true;
  TcpSendQueue::Frame frame{.header = header, .payload = payload.data(), .payload_left = payload.size(), .id = id};
  if (queue_.empty()) {
    iovec parts[2];
    const int count = TcpSendQueue::parts_of(frame, parts);
    const auto written = write_parts(socket_.get(), parts, count);
    if (written < 0) {
      write_failed(static_cast<int>(-written));
      return true;
    }
    traffic_.sent_bytes += static_cast<uint64_t>(written);
    frame.advance(static_cast<size_t>(written));
    if (frame.left() == 0) {
      ++traffic_.sent_frames;
      return true;
    }
  }
  return queue_.push(frame);
}

bool TcpStream::flush(std::vector<uint64_t>& sent) {
  bool any = false;
  while (!queue_.empty() && !ended_ && write_error_ == 0) {
    iovec parts[TcpSendQueue::gather_max];
    size_t bytes = 0;
    const int count = queue_.gather(parts, bytes);
    const auto written = write_parts(socket_.get(), parts, count);
    if (written < 0) {
      write_failed(static_cast<int>(-written));
      break;
    }
    if (written == 0) break;
    any = true;
    traffic_.sent_bytes += static_cast<uint64_t>(written);
    traffic_.sent_frames += queue_.wrote(static_cast<size_t>(written), sent);
    if (static_cast<size_t>(written) < bytes) break;
  }
  if (write_error_ != 0) queue_.clear(sent);
  if (queue_.empty() && (interest_ & EPOLLOUT) != 0) update_interest();  // otherwise epoll would report EPOLLOUT all the time
  return any;
}

void TcpStream::write_failed(int error) {
  write_error_ = error;
  drained_ = false;
}

bool TcpStream::read(Sink& sink) {
  if (!socket_.open() || ended_) return false;
  if (paused_) {
    const auto progress = decoder_.resume(sink);
    if (progress == TcpDecoder::Progress::no_memory) {
      // If writing has failed, end the stream now, because the wait for memory could last for ever.
      if (write_error_ != 0) end(write_error_);
      return ended_;
    }
    paused_ = false;
    fault_ = decoder_.fault();
    if (progress == TcpDecoder::Progress::fault) return ended_ = true;
  }
  drained_ = false;
  for (size_t taken = 0; taken < read_bytes_max;) {
    const auto space = decoder_.space();
    const auto count = read_parts(socket_.get(), space);
    if (count <= 0) {
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == ENOMEM)) {
        drained_ = true;
        // Nothing is left to read, so a write error can end the stream now.
        if (write_error_ != 0) end(write_error_);
      } else {
        orderly_ = count == 0;
        end(count == 0 ? write_error_ : errno);
      }
      return taken > 0 || ended_;
    }
    taken += static_cast<size_t>(count);
    const auto progress = decoder_.took(static_cast<size_t>(count), sink);
    if (!socket_.open()) return true;  // an upcall has closed the stream
    if (progress == TcpDecoder::Progress::fault) {
      fault_ = decoder_.fault();
      return ended_ = true;
    }
    if (progress == TcpDecoder::Progress::no_memory) {
      paused_ = drained_ = true;
      return true;
    }
    // After a short read the socket is empty; another system call would tell nothing new.
    if (static_cast<size_t>(count) < space.bytes()) {
      drained_ = true;
      return true;
    }
  }
  return true;
}

void TcpStream::end(int error) {
  ended_ = true;
  error_ = error;
}

std::string TcpStream::end_text() const {
  if (fault_ != FrameFault::none) return std::string("damaged frame (") + name(fault_) + ")";
  if (error_ != 0) return error_text(error_);
  if (orderly_)
    return decoder_.between_frames() ? "the other side closed the connection"
                                     : "the other side closed the connection inside a frame";
  return "ended";
}

bool TcpStream::wants_poll(const PayloadPool& pool, PeerIndex peer) const {
  return (write_error_ != 0 && !ended_) || (paused_ && pool.may_take(peer, decoder_.payload_bytes()));
}

void TcpStream::cancel_sends(uint64_t match, uint64_t mask) {
  if (!queue_.cancel(match, mask)) write_failed(ENOMEM);
}

void TcpStream::update_interest() {
  if (!socket_.open()) return;
  uint32_t wanted = 0;
  if (!paused_ && !ended_) wanted |= EPOLLIN;
  if (!queue_.empty() && !ended_) wanted |= EPOLLOUT;
  if (wanted == interest_) return;
  // If no event is wanted, remove the socket from epoll. Otherwise epoll would report a hang-up again and again.
  if (wanted == 0) unwatch(epoll_, socket_.get());
  else if (interest_ != 0) rewatch(epoll_, socket_.get(), wanted, tag_);
  else if (!watch(epoll_, socket_.get(), wanted, tag_)) end(ENOMEM);
  interest_ = wanted;
}

}  // namespace unisono

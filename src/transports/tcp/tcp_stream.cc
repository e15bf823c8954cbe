#include "transports/tcp/tcp_stream.h"

#include <cerrno>

#include "base/check.h"
#include "base/error_text.h"

namespace unisono {

bool TcpStream::attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag) {
  if (!socket->watch(watcher, true, false, tag)) return false;
  socket->tune();
  socket_ = std::move(socket);
  watcher_ = &watcher;
  tag_ = tag;
  watched_readable_ = true;
  watched_writable_ = false;
  paused_ = drained_ = ended_ = orderly_ = false;
  error_ = write_error_ = 0;
  fault_ = FrameFault::none;
  decoder_.reset();
  return true;
}

std::unique_ptr<StreamSocket> TcpStream::detach(std::vector<uint64_t>& sent) {
  if (socket_) UNISONO_CHECK(socket_->watch(*watcher_, false, false, tag_));
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
    const auto written = socket_->write(parts, count);
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
    const auto written = socket_->write(parts, count);
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
  // Otherwise the watcher would report all the time that the socket is writable.
  if (queue_.empty() && watched_writable_) update_interest();
  return any;
}

void TcpStream::write_failed(int error) {
  write_error_ = error;
  drained_ = false;
}

bool TcpStream::read(Sink& sink) {
  if (!socket_ || ended_) return false;
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
    bool at_end = false;
    const auto count = socket_->read(space.parts, space.count, at_end);
    if (count <= 0) {
      if (count < 0 || at_end) {
        orderly_ = at_end;
        end(at_end ? write_error_ : static_cast<int>(-count));
      } else {
        drained_ = true;
        // Nothing is left to read, so a write error can end the stream now.
        if (write_error_ != 0) end(write_error_);
      }
      return taken > 0 || ended_;
    }
    taken += static_cast<size_t>(count);
    const auto progress = decoder_.took(static_cast<size_t>(count), sink);
    if (!socket_) return true;  // an upcall has closed the stream
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
  if (!socket_) return;
  const bool readable = !paused_ && !ended_;
  const bool writable = !queue_.empty() && !ended_;
  if (readable == watched_readable_ && writable == watched_writable_) return;
  if (!socket_->watch(*watcher_, readable, writable, tag_)) end(ENOMEM);
  watched_readable_ = readable;
  watched_writable_ = writable;
}

}  // namespace unisono

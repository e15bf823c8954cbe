#include "transports/tcp/tcp_stream.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "base/error_text.h"

namespace unisono {

// Connections ---------------------------------------------------------------------------------------------------------

bool TcpStream::attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct, Phase phase) {
  disconnect();
  if (!socket->watch(watcher, true, false, tag)) return false;
  socket->tune();
  socket_ = std::move(socket);
  watcher_ = &watcher;
  tag_ = tag;
  phase_ = phase;
  direct_ = direct;
  believes_ = true;
  return true;
}

bool TcpStream::accept(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct) {
  return attach(std::move(socket), watcher, tag, direct, Phase::awaiting_begin);
}

Status TcpStream::dialled(std::unique_ptr<StreamSocket> socket, uint64_t position, StreamWatcher& watcher, uint64_t tag,
                          bool direct, std::vector<uint64_t>& sent) {
  if (!attach(std::move(socket), watcher, tag, direct, Phase::running))
    return Status(Code::unavailable, "its socket cannot be watched; raise fs.epoll.max_user_watches");
  if (auto status = queue_.rewind(position, decoder_.position(), sent); !status.ok()) return broken_ = status;
  begun_at_ = swept_at_ = position;
  TcpBegin begin;
  begin.position = decoder_.position();
  seal_begin(begin);
  const auto count = write_some(*socket_, std::as_bytes(std::span(&begin, 1)));
  if (count < 0) return Status(Code::unavailable, error_text(static_cast<int>(-count)));
  if (static_cast<size_t>(count) != sizeof begin)
    return Status(Code::unavailable, "the network took only a part of the first bytes");
  told_ = begin.position;
  return {};
}

void TcpStream::disconnect() {
  socket_.reset();
  phase_ = Phase::none;
  believes_ = heard_ = drained_ = ended_ = orderly_ = false;
  error_ = write_error_ = 0;
  begin_bytes_ = 0;
}

std::unique_ptr<StreamSocket> TcpStream::detach(std::vector<uint64_t>& sent) {
  auto socket = std::move(socket_);
  disconnect();
  queue_.clear(sent);
  decoder_.reset();
  paused_ = confirm_now_ = false;
  told_ = frames_untold_ = 0;
  confirm_at_ = never;
  return socket;
}

bool TcpStream::drain(Sink& sink) {
  while (socket_ && !quiet() && fault_ == FrameFault::none && broken_.ok()) {
    if (!read(last_read_, sink) && !quiet()) break;
  }
  return !paused_ || ended_;
}

bool TcpStream::take_begin(Sink& sink) {
  bool ended = false;
  const auto count = read_some(*socket_, std::span(begin_).subspan(begin_bytes_), ended);
  if (count < 0 || ended) {
    orderly_ = ended;
    end(ended ? 0 : static_cast<int>(-count));
    return false;
  }
  begin_bytes_ += static_cast<size_t>(count);
  drained_ = begin_bytes_ < begin_.size();
  if (drained_) return false;
  TcpBegin begin;
  std::memcpy(&begin, begin_.data(), sizeof begin);
  confirmed_ids_.clear();
  broken_ = check_begin(begin) ? queue_.rewind(begin.position, decoder_.position(), confirmed_ids_)
                               : Status(Code::corrupt, "the first bytes of its connection are damaged");
  phase_ = Phase::running;
  heard_ = true;
  begun_at_ = swept_at_ = queue_.written();
  for (size_t i = 0; i < confirmed_ids_.size(); ++i) sink.sent(confirmed_ids_[i]);
  return socket_ != nullptr && broken_.ok();
}

// Frames --------------------------------------------------------------------------------------------------------------

// Every frame that is queued confirms what was read so far.
void TcpStream::note_told() {
  told_ = decoder_.position();
  frames_untold_ = 0;
  confirm_now_ = false;
  confirm_at_ = never;
}

bool TcpStream::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  const bool idle = queue_.unwritten_frames() == 0;
  const bool done = queue_.push(header, payload, id, decoder_.position());
  note_told();
  if (idle) write_queue();
  return done;
}

void TcpStream::leave() {
  FrameHeader header;
  header.kind = FrameKind::leaving;
  header.flags = frame_flag_confirm_now;
  send(header, {}, 0);
}

bool TcpStream::can_write() const { return phase_ == Phase::running && !ended_ && write_error_ == 0; }

bool TcpStream::write_queue() {
  bool any = false;
  while (can_write()) {
    iovec parts[TcpResendQueue::gather_max];
    size_t bytes = 0;
    const int count = queue_.gather(parts, bytes);
    if (count == 0) break;
    const auto written = socket_->write(parts, count);
    if (written < 0) {
      write_failed(static_cast<int>(-written));
      break;
    }
    if (written == 0) break;
    any = true;
    traffic_.sent_bytes += static_cast<uint64_t>(written);
    traffic_.sent_frames += queue_.wrote(static_cast<size_t>(written));
    if (static_cast<size_t>(written) < bytes) break;
  }
  return any;
}

bool TcpStream::confirm_is_due(Nanos now) const {
  return confirm_now_ || now >= confirm_at_ || frames_untold_ >= confirm_frames || queue_.wants_confirm() ||
         decoder_.position() - told_ >= confirm_bytes;
}

bool TcpStream::wants_flush(Nanos now) const {
  return can_write() && (queue_.unwritten_frames() > 0 || queue_.has_early() || confirm_is_due(now) ||
                         (queue_.has_held() && queue_.written() - swept_at_ >= sweep_bytes));
}

bool TcpStream::flush(Nanos now, std::vector<uint64_t>& sent) {
  if (!can_write()) return false;
  if (confirm_is_due(now) && queue_.push_confirm(decoder_.position())) note_told();
  const bool any = write_queue();
  if (queue_.has_early() || (queue_.has_held() && queue_.written() - swept_at_ >= sweep_bytes)) ask_network(sent);
  if (queue_.has_early()) queue_.copy_early(sent);
  // Otherwise the watcher would report that the socket can be written, again and again.
  if (queue_.unwritten_frames() == 0 && writes_watched_) update_interest();
  return any;
}

// Asks which of the written bytes the peer's host has acknowledged.
void TcpStream::ask_network(std::vector<uint64_t>& sent) {
  swept_at_ = queue_.written();
  if (!believes_ || !heard_ || !direct_ || !can_write()) return;
  const auto missing = socket_->unacknowledged_bytes();
  if (missing < queue_.written() - begun_at_) queue_.acknowledged(queue_.written() - missing, sent);
}

void TcpStream::release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  if (queue_.has_held()) ask_network(sent);
  queue_.release_early(match, mask, sent);
}

void TcpStream::write_failed(int error) {
  write_error_ = error;
  drained_ = false;
}

void TcpStream::confirmed(uint32_t low, Sink& sink) {
  heard_ = true;
  confirmed_ids_.clear();
  if (!queue_.confirm(low, confirmed_ids_)) return;
  for (size_t i = 0; i < confirmed_ids_.size(); ++i) sink.sent(confirmed_ids_[i]);
}

void TcpStream::note_received(Nanos now) {
  const auto request = decoder_.take_request();
  if (request.frames == 0 && !request.now) return;
  frames_untold_ += request.frames;
  confirm_now_ |= request.now;
  if (decoder_.position() != told_) confirm_at_ = now + confirm_delay;
}

bool TcpStream::read(Nanos now, Sink& sink) {
  if (!socket_ || ended_) return false;
  last_read_ = now;
  if (phase_ == Phase::awaiting_begin && !take_begin(sink)) return ended_ || !broken_.ok();
  const bool any = read_frames(sink);
  note_received(now);
  return any;
}

bool TcpStream::read_frames(Sink& sink) {
  if (paused_) {
    const auto progress = decoder_.resume(sink);
    if (progress == TcpDecoder::Progress::no_memory) {
      // If writing has failed, end the connection now, because the wait for memory could last for ever.
      if (write_error_ != 0) end(write_error_);
      return ended_;
    }
    paused_ = false;
    fault_ = decoder_.fault();
    if (progress == TcpDecoder::Progress::fault) return ended_ = true;
    if (!socket_) return true;  // an upcall has closed the stream
  }
  drained_ = false;
  for (size_t taken = 0; taken < read_bytes_max;) {
    const auto space = decoder_.space();
    bool ended = false;
    const auto count = socket_->read(space.parts, space.count, ended);
    if (count <= 0) {
      if (count == 0 && !ended) {
        drained_ = true;
        // Nothing is left to read, so a write error can end the connection now.
        if (write_error_ != 0) end(write_error_);
      } else {
        orderly_ = ended;
        end(ended ? write_error_ : static_cast<int>(-count));
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
  if (!broken_.ok()) return broken_.message();
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
  iovec parts[TcpResendQueue::gather_max];
  size_t bytes = 0;
  writes_watched_ = can_write() && queue_.gather(parts, bytes) > 0;
  if (!socket_->watch(*watcher_, !paused_ && !ended_, writes_watched_, tag_)) end(ENOMEM);
}

}  // namespace unisono

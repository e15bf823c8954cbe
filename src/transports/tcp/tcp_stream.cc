#include "transports/tcp/tcp_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error_text.h"

namespace unisono {
namespace {

// After so many bytes, the peer gets an acknowledgement at once, which saves it the copy of as many bytes.
constexpr size_t acknowledged_bytes_min = 64u << 10;
// A copy of so few bytes costs less than asking the network how many of them it still needs.
constexpr uint64_t unasked_bytes_max = 60u << 10;

}  // namespace

// Connections ---------------------------------------------------------------------------------------------------------

bool TcpStream::drain(Nanos now, Sink& sink) {
  if (!socket_) return true;
  // Only a read that finds nothing shows that nothing is left. Bytes may go on arriving while this reads. What counts is what
  // has arrived before, which is less than this.
  constexpr uint64_t bytes_max = 64 * read_bytes_max;
  const auto start = decoder_.position();
  while (socket_ && !ended_ && broken_.ok() && decoder_.position() - start < bytes_max) {
    if (!read(now, sink)) break;
  }
  if (paused_ && !ended_) return false;
  disconnect();
  return true;
}

bool TcpStream::attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct) {
  disconnect();
  if (!socket->watch(watcher, true, false, tag)) return false;
  socket->tune();
  socket_ = std::move(socket);
  watcher_ = &watcher;
  tag_ = tag;
  direct_ = direct;
  encrypts_ = socket_->encrypts();
  unflushed_ = socket_->has_unflushed();
  buffered_ = socket_->has_buffered();
  return true;
}

bool TcpStream::accept(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct, Nanos now) {
  if (!attach(std::move(socket), watcher, tag, direct)) {
    session_.ended(now);
    return false;
  }
  awaits_begin_ = true;
  session_.accepted(now);
  return true;
}

bool TcpStream::adopt(std::unique_ptr<StreamSocket> socket, uint64_t position, StreamWatcher& watcher, uint64_t tag,
                      bool direct, Nanos now, std::vector<uint64_t>& sent) {
  broken_ = queue_.rewind(position, decoder_.position(), sent);
  if (!broken_.ok() || !attach(std::move(socket), watcher, tag, direct)) {
    disconnect();
    session_.ended(now);
    return false;
  }
  own_begin_ = {};
  own_begin_.position = decoder_.position();
  seal(own_begin_);
  own_begin_left_ = sizeof own_begin_;
  go_on_at(position);
  session_.adopted(direct, now);
  write_queue();
  return true;
}

void TcpStream::go_on_at(uint64_t position) {
  begun_at_ = swept_at_ = position;
  confirm_.said(decoder_.position());
  confirm_.ask();
}

void TcpStream::disconnect() {
  // The stream goes on, so its peer must not take the end of this connection for the end of the process. No byte is lost: what
  // the peer's host has not acknowledged is still in the queue.
  if (socket_ && !(ended_ && orderly_)) socket_->abort();
  socket_.reset();
  ended_ = orderly_ = empty_ = writes_watched_ = awaits_begin_ = encrypts_ = unflushed_ = buffered_ = false;
  error_ = write_error_ = 0;
  begin_bytes_ = own_begin_left_ = 0;
  incomplete_ = 0;
  incomplete_since_ = never;
  decoder_.exceed_share(false);
}

void TcpStream::end(std::vector<uint64_t>& sent) {
  socket_.reset();
  disconnect();
  queue_.clear(sent);
  decoder_.reset();
  paused_ = false;
}

// Returns true if the peer has begun, so that frames follow.
bool TcpStream::take_begin(Nanos now, std::vector<uint64_t>& sent) {
  bool ended = false;
  const auto count = read_some(*socket_, std::span(begin_).subspan(begin_bytes_), ended);
  if (count < 0 || ended) {
    orderly_ = ended;
    connection_ended(ended ? 0 : static_cast<int>(-count));
    return false;
  }
  begin_bytes_ += static_cast<size_t>(count);
  empty_ = begin_bytes_ < begin_.size();
  if (empty_) return false;
  awaits_begin_ = false;
  TcpBegin begin;
  std::memcpy(&begin, begin_.data(), sizeof begin);
  broken_ = is_sound(begin) ? queue_.rewind(begin.position, decoder_.position(), sent)
                            : Status(Code::corrupt, "the first bytes of its connection are damaged");
  if (!broken_.ok()) return false;
  session_.begun(direct_, now);
  go_on_at(begin.position);
  return true;
}

// Frames --------------------------------------------------------------------------------------------------------------

bool TcpStream::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  const bool idle = !has_unwritten();
  const bool done = queue_.push(header, payload, id, decoder_.position());
  if (queue_.last_will_be_written()) confirm_.said(decoder_.position());
  if (idle) write_queue();
  return done;
}

void TcpStream::leave(uint64_t tag, Nanos now, std::vector<uint64_t>& sent) {
  // Without the peer's begin, which may have arrived, nothing could be written.
  if (socket_ && !ended_ && awaits_begin_) (void)take_begin(now, sent);
  if (queue_.has_held()) ask_network(sent);
  if (!queue_.cancel_all(sent)) write_failed(ENOMEM);
  decoder_.discard_all();
  FrameHeader header;
  header.kind = FrameKind::leaving;
  header.flags = frame_flag_confirm_now;
  send(header, {}, 0);
  tag_ = tag;
  update_interest();
}

bool TcpStream::write_begin() {
  if (own_begin_left_ == 0) return true;
  const auto count = write_some(*socket_, std::as_bytes(std::span(&own_begin_, 1)).last(own_begin_left_));
  unflushed_ = socket_->has_unflushed();
  if (count < 0) write_failed(static_cast<int>(-count));
  else own_begin_left_ -= static_cast<size_t>(count);
  return own_begin_left_ == 0;
}

// Returns false if the socket keeps bytes that it cannot write now.
bool TcpStream::write_unflushed() {
  if (!unflushed_) return true;
  if (const int error = socket_->flush(); error != 0) write_failed(error);
  unflushed_ = socket_->has_unflushed();
  return !unflushed_;
}

bool TcpStream::write_queue() {
  bool any = false;
  while (can_write() && write_unflushed() && write_begin()) {
    iovec parts[TcpResendQueue::gather_max];
    size_t bytes = 0;
    const int count = queue_.gather(parts, bytes);
    if (count == 0) break;
    const auto written = socket_->write(parts, count);
    if (encrypts_) unflushed_ = socket_->has_unflushed();
    if (written < 0) write_failed(static_cast<int>(-written));
    if (written <= 0) break;
    any = true;
    traffic_.sent_frames += queue_.wrote(static_cast<size_t>(written));
    traffic_.sent_bytes += static_cast<uint64_t>(written) - queue_.take_confirming_bytes();
    if (static_cast<size_t>(written) < bytes || queue_.unwritten_bytes() == 0) break;
  }
  return any;
}

bool TcpStream::flush(Nanos now, std::vector<uint64_t>& sent) {
  if (!can_write()) return false;
  if (confirm_is_due(now) && queue_.push_confirm(decoder_.position())) confirm_.said(decoder_.position());
  const bool any = write_queue();
  if (queue_.has_early() || sweep_is_due()) ask_network(sent);
  if (queue_.has_early()) queue_.copy_early(sent);
  // Otherwise the watcher would report again and again that the socket can be written.
  if (!has_unwritten() && writes_watched_) update_interest();
  return any;
}

bool TcpStream::is_worth_asking() const {
  return queue_.has_held() && queue_.written() - queue_.known_to_arrive() > unasked_bytes_max;
}

// Asks which of the written bytes the peer's host has acknowledged.
void TcpStream::ask_network(std::vector<uint64_t>& sent) {
  swept_at_ = queue_.written();
  if (!can_write() || !session_.believes()) return;
  const auto missing = socket_->unacknowledged_bytes();
  if (missing < queue_.written() - begun_at_) queue_.acknowledged(queue_.written() - missing, sent);
}

bool TcpStream::release_acknowledged(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  if (!is_worth_asking()) return false;
  const auto known = static_cast<ptrdiff_t>(sent.size());
  ask_network(sent);
  return std::any_of(sent.begin() + known, sent.end(), [&](uint64_t id) { return (id & mask) == match; });
}

void TcpStream::release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  if (!queue_.has_lent()) return;
  if (is_worth_asking()) ask_network(sent);
  queue_.release_early(match, mask, sent);
}

void TcpStream::write_failed(int error) {
  write_error_ = error;
  empty_ = false;
}

void TcpStream::confirmed(uint32_t low, Sink& sink) {
  session_.heard();
  confirmed_ids_.clear();
  if (!queue_.confirm(low, confirmed_ids_)) return;
  for (size_t i = 0; i < confirmed_ids_.size(); ++i) sink.sent(confirmed_ids_[i]);
}

bool TcpStream::read(Nanos now, Sink& sink) {
  if (!socket_ || ended_) return false;
  if (awaits_begin_) {
    confirmed_ids_.clear();
    const bool begun = take_begin(now, confirmed_ids_);
    for (size_t i = 0; i < confirmed_ids_.size(); ++i) sink.sent(confirmed_ids_[i]);
    if (!begun || !socket_) return ended_ || !broken_.ok();
  }
  const bool any = read_frames(sink);
  look_at_socket(now);
  if (!any) return false;
  confirm_.read(decoder_.take_request(), now);
  if (decoder_.left()) session_.peer_left();
  return any;
}

// Remembers what an encrypting socket keeps.
void TcpStream::look_at_socket(Nanos now) {
  if (!socket_ || !encrypts_) return;
  buffered_ = socket_->has_buffered();
  unflushed_ = socket_->has_unflushed();
  const auto before = std::exchange(incomplete_, socket_->incomplete_record());
  if (incomplete_ == 0) incomplete_since_ = never;
  else if (incomplete_ != before) incomplete_since_ = now;
}

// `bytes` more bytes have been read, up to the end of a frame. If there are many of them, the peer's host must learn it at
// once.
void TcpStream::acknowledge(size_t bytes) {
  const auto position = decoder_.position() + bytes;
  if (position - acknowledged_at_ < acknowledged_bytes_min) return;
  acknowledged_at_ = position;
  socket_->acknowledge_now();
}

bool TcpStream::read_frames(Sink& sink) {
  const bool resumes = paused_;
  if (paused_) {
    const auto progress = decoder_.resume(sink);
    // Even if writing has failed: the peer's host has acknowledged what is unread, so the peer may not have it any more.
    if (progress == TcpDecoder::Progress::no_memory) return false;
    paused_ = false;
    fault_ = decoder_.fault();
    if (progress == TcpDecoder::Progress::fault) return ended_ = true;
    if (!socket_) return true;  // an upcall has closed the stream
  }
  empty_ = false;
  for (size_t taken = 0; taken < read_bytes_max;) {
    const auto space = decoder_.space();
    bool ended = false;
    const auto count = socket_->read(space.parts, space.count, ended);
    if (count <= 0) {
      if (count == 0 && !ended) {
        empty_ = true;
        // Nothing is left to read, so a write error can end the connection now.
        if (write_error_ != 0) connection_ended(write_error_);
      } else {
        // After a reset, an error that a write has got already is told as an end.
        orderly_ = ended && write_error_ == 0;
        connection_ended(ended ? write_error_ : static_cast<int>(-count));
      }
      return resumes || taken > 0 || ended_;
    }
    taken += static_cast<size_t>(count);
    // Before the upcalls: they may take long, and the peer may end its operation meanwhile.
    if (space.count == 2 && static_cast<size_t>(count) == space.parts[0].iov_len) acknowledge(static_cast<size_t>(count));
    const auto progress = decoder_.took(static_cast<size_t>(count), sink);
    if (!socket_) return true;  // an upcall has closed the stream
    if (progress == TcpDecoder::Progress::fault) {
      fault_ = decoder_.fault();
      return ended_ = true;
    }
    if (progress == TcpDecoder::Progress::no_memory) {
      paused_ = empty_ = true;
      return true;
    }
    // After a short read the socket is empty; another system call would tell nothing new.
    if (static_cast<size_t>(count) < space.bytes()) {
      empty_ = true;
      return true;
    }
  }
  return true;
}

void TcpStream::connection_ended(int error) {
  ended_ = true;
  error_ = error;
}

std::string TcpStream::write_error_text() const { return error_text(write_error_); }

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
  return ((write_error_ != 0 || buffered_) && !ended_ && !paused_) ||
         (paused_ && pool.may_take(peer, decoder_.payload_bytes()));
}

void TcpStream::cancel_sends(uint64_t match, uint64_t mask) {
  const auto queued = queue_.queued();
  if (!queue_.cancel(match, mask)) write_failed(ENOMEM);
  // A frame that was dropped may be the only one that would have said how far this stream was read.
  if (queue_.queued() != queued) confirm_.ask();
}

void TcpStream::update_interest() {
  if (!socket_) return;
  iovec parts[TcpResendQueue::gather_max];
  size_t bytes = 0;
  writes_watched_ = can_write() && (own_begin_left_ > 0 || unflushed_ || queue_.gather(parts, bytes) > 0);
  if (!socket_->watch(*watcher_, !paused_ && !ended_, writes_watched_, tag_)) connection_ended(ENOMEM);
}

}  // namespace unisono

#include "transports/tcp/tcp_decoder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/checksum.h"

namespace unisono {

TcpDecoder::~TcpDecoder() {
  reset();
  pool_.give(spare_.handle);
  pool_.give(inbox_.handle);
}

TcpDecoder::Space TcpDecoder::space() {
  Space space;
  if (fault_ != FrameFault::none) return space;
  if (pool_.is_shared(inbox_.handle)) replace_inbox();
  const size_t ahead = expect_large_ ? ahead_bytes : inbox_bytes;
  if (in_payload_ && !discard_) {
    if (target_ == nullptr) return space;
    // The inbox is empty here, because its bytes have already been copied into this payload.
    space.parts[space.count++] = {target_ + done_, header_.payload_bytes - done_};
    space.parts[space.count++] = {inbox_.data, ahead};
    return space;
  }
  if (discard_) {
    space.parts[space.count++] = {inbox_.data, inbox_bytes};
    return space;
  }
  if (begin_ != 0) {
    std::memmove(inbox_.data, inbox_.data + begin_, end_ - begin_);  // this moves less than one header
    end_ -= begin_;
    begin_ = 0;
  }
  space.parts[space.count++] = {inbox_.data + end_, ahead - end_};
  return space;
}

TcpDecoder::Progress TcpDecoder::took(size_t bytes, Sink& sink) {
  if (fault_ != FrameFault::none) return Progress::fault;
  counters_.bytes += bytes;
  position_ += bytes;
  if (in_payload_ && !discard_ && target_ != nullptr) {
    const size_t landed = std::min(bytes, header_.payload_bytes - done_);
    done_ += landed;
    bytes -= landed;
  }
  end_ += bytes;
  UNISONO_CHECK(end_ <= inbox_bytes);
  for (;;) {
    if (!in_payload_) {
      if (end_ - begin_ < sizeof(FrameHeader)) return Progress::more;
      if (!begin_frame(sink)) return Progress::fault;
      if (!in_payload_) return Progress::more;  // an upcall has reset the decoder
    }
    if (!find_target(sink)) return Progress::no_memory;
    if (!fill_from_inbox()) return Progress::more;
    if (!finish_frame(sink)) return Progress::fault;
  }
}

bool TcpDecoder::begin_frame(Sink& sink) {
  std::memcpy(&header_, inbox_.data + begin_, sizeof header_);
  fault_ = check_frame(header_, FrameKind::leaving);
  if (fault_ != FrameFault::none) return false;
  begin_ += sizeof header_;
  in_payload_ = true;
  buffer_requested_ = header_.payload_bytes == 0;
  discard_ = discards_all_ || !is_for_sink();
  done_ = 0;
  if (header_.payload_bytes > 0) expect_large_ = header_.payload_bytes >= large_bytes;
  if (confirmations_ != nullptr) confirmations_->confirmed(header_.confirmed, sink);
  return true;
}

bool TcpDecoder::find_target(Sink& sink) {
  if (target_ != nullptr || discard_ || header_.payload_bytes == 0) return true;
  if (!buffer_requested_) {
    buffer_requested_ = true;
    if (can_lend()) {
      pool_.share(inbox_.handle);
      target_ = inbox_.data + begin_;
      block_ = {target_, inbox_.handle};
      return true;
    }
    auto* const buffer = sink.receive_buffer(from_, header_);
    if (discard_) return true;  // the upcall has called discard_all()
    target_ = buffer;
    if (target_ != nullptr) return true;
  }
  block_ = pool_.take(exceeds_share_ ? PayloadPool::no_owner : from_, header_.payload_bytes);
  target_ = block_.data;
  return target_ != nullptr;
}

// Returns true if the sink can get a view of the inbox: the whole payload is there, and it is as aligned as a block of the
// pool.
bool TcpDecoder::can_lend() {
  const size_t bytes = header_.payload_bytes;
  if (bytes < lent_bytes_min || end_ - begin_ < bytes || begin_ % 64 != 0) return false;
  if (pool_.held_bytes(from_) > held_bytes_max || !pool_.has_room(from_, inbox_bytes)) return false;
  if (!spare_) spare_ = pool_.take(PayloadPool::inbox_owner, inbox_bytes);
  return static_cast<bool>(spare_);
}

// Goes on with another inbox, because the sink keeps a view of the present one.
void TcpDecoder::replace_inbox() {
  pool_.set_owner(inbox_.handle, from_);  // first, because it may lack memory
  std::memcpy(spare_.data, inbox_.data + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  pool_.give(inbox_.handle);
  inbox_ = std::exchange(spare_, {});
}

// Copies payload bytes from the inbox. Returns true if the payload is complete.
bool TcpDecoder::fill_from_inbox() {
  const size_t count = std::min(end_ - begin_, header_.payload_bytes - done_);
  if (count > 0) {
    const auto* const source = inbox_.data + begin_;
    if (!discard_ && target_ + done_ != source) std::memcpy(target_ + done_, source, count);
    done_ += count;
    begin_ += count;
  }
  if (begin_ == end_) begin_ = end_ = 0;
  return done_ == header_.payload_bytes;
}

bool TcpDecoder::finish_frame(Sink& sink) {
  if (is_for_sink()) ++counters_.frames;
  else counters_.bytes -= sizeof header_ + header_.payload_bytes;
  View view{target_, header_.payload_bytes, block_.handle};
  const bool wanted = !discard_;
  if (wanted && (header_.flags & frame_flag_payload_checksum) != 0 &&
      header_.payload_checksum != crc32c(view.data, view.bytes)) {
    fault_ = FrameFault::payload_checksum;
    --counters_.frames;
    return false;
  }
  if (header_.kind != FrameKind::confirm) ++request_.frames;
  // Only now, so that the answer covers the whole frame.
  request_.now |= (header_.flags & frame_flag_confirm_now) != 0;
  left_ |= header_.kind == FrameKind::leaving;
  // Be ready for the next frame before the upcall, because during the upcall the sink may call the transport.
  const auto header = header_;
  target_ = nullptr;
  block_ = {};
  in_payload_ = discard_ = false;
  if (wanted) sink.received(from_, header, view);
  return true;
}

void TcpDecoder::cancel(uint32_t group, uint64_t operation) {
  const bool placed = in_payload_ && target_ != nullptr && !block_;
  if (!placed || header_.group != group || header_.operation != operation) return;
  target_ = nullptr;
  discard_ = true;
}

void TcpDecoder::discard_all() {
  discards_all_ = true;
  if (block_) pool_.give(block_.handle);
  block_ = {};
  target_ = nullptr;
  discard_ = in_payload_;
}

void TcpDecoder::reset() {
  if (block_) pool_.give(block_.handle);
  block_ = {};
  target_ = nullptr;
  begin_ = end_ = done_ = 0;
  in_payload_ = buffer_requested_ = discard_ = discards_all_ = exceeds_share_ = expect_large_ = false;
  left_ = false;
  fault_ = FrameFault::none;
  position_ = 0;
  request_ = {};
}

}  // namespace unisono

#include "transports/shm/shm_outbound.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/checksum.h"

namespace unisono::shm {
namespace {

// Data frames are contributions. All other frames end or steer an operation and must not wait behind data frames. Therefore
// these frames use the slots that are reserved for results.
Purpose purpose_of(const FrameHeader& header) {
  return header.kind == FrameKind::data ? Purpose::contribution : Purpose::result;
}

}  // namespace

void Bell::ring(uint32_t word) {
  rung_ = word;
  // If the socket's buffer is full, earlier wake-ups still wait for the peer, so it wakes anyway. If the peer is gone, nobody
  // needs to wake.
  (void)::send(socket_, &wake_byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Outbound::Outbound(Host& host, const LinkMemory& memory, int socket)
    : host_(host),
      memory_(memory),
      bell_(&memory.peer->head().wake, socket),
      ring_(host.arena.cells(memory.region), host.arena.geometry().ring_cells, &memory.peer->region(memory.peer_region).head),
      releases_(memory.peer->releases(memory.peer_region), memory.peer->geometry().release_entries) {}

Outbound::~Outbound() {
  for (auto& pending : pending_) host_.buffers.give(pending.block);
}

size_t Outbound::available_credit() {
  return pending_.empty() && ring_is_open() ? host_.large.available(memory_.region, Purpose::contribution) : 0;
}

size_t Outbound::credit() {
  if (fault_ != nullptr) return 0;
  if (available_credit() == 0) drain();
  // A caller that got 0 also gets the upcall Sink::credit, even if a later call of credit() finds a slot before the upcall.
  if (available_credit() == 0) wants_credit_ = true;
  return available_credit();
}

bool Outbound::take_slot(SlotKind kind, Purpose purpose, size_t bytes, uint32_t& ref) {
  SlotPool& pool = host_.pool(kind);
  const uint16_t only[] = {memory_.region};
  // Collect the released large slots every time, before a slot is taken: a slot that is used again soon is still in the caches.
  // For small slots this would cost more than it saves, so they are collected only when few are left.
  if (kind == SlotKind::large || pool.available(memory_.region, purpose) <= pool.quota_max() / 2) drain();
  if (!pool.may_take(only, purpose)) return false;
  ref = make_ref(kind, pool.take(only, purpose, bytes));
  return true;
}

void Outbound::put(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order) {
  if (overflow_.empty() && ring_.has_credit()) {
    ring_.push(header, type, ref, order);
    if (order == std::memory_order_seq_cst) wake_reader();
    return;
  }
  if (ring_.broken()) fault_ = "the read index of the peer is out of range";
  if (overflow_.size() >= overflow_max) fault_ = "the peer does not read its ring, and too many frames are queued for it";
  if (fault_ == nullptr) overflow_.push({header, type, ref});
}

void Outbound::publish(const FrameHeader& header, uint32_t ref, std::memory_order order) {
  put(header, CellType::whole, ref, order);
  ++host_.counters.sent_frames;
  host_.counters.sent_bytes += sizeof(FrameHeader) + header.payload_bytes;
  sent_bytes_ += sizeof(FrameHeader) + header.payload_bytes;
}

bool Outbound::copy_whole(const FrameHeader& header, const std::byte* data) {
  const Geometry& geometry = host_.arena.geometry();
  const Purpose purpose = purpose_of(header);
  uint32_t ref = 0;
  const size_t bytes = header.payload_bytes;
  const bool small = bytes <= geometry.small_bytes && take_slot(SlotKind::small, purpose, bytes, ref);
  if (!small && (bytes > geometry.large_bytes || !take_slot(SlotKind::large, purpose, bytes, ref))) return false;
  std::memcpy(host_.arena.slot(ref_kind(ref), ref_index(ref)), data, bytes);
  publish(header, ref);
  return true;
}

bool Outbound::send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  UNISONO_CHECK(payload.size() <= payload_bytes_max);
  if (fault_ != nullptr) return true;
  FrameHeader copy = header;
  copy.payload_bytes = static_cast<uint32_t>(payload.size());
  if (payload.empty()) {
    publish(copy, 0);
    return true;
  }
  if (host_.payload_checksum) {
    copy.flags |= frame_flag_payload_checksum;
    copy.payload_checksum = crc32c(payload.data(), payload.size());
  }
  if (pending_.empty() && ring_is_open() && copy_whole(copy, payload.data())) return true;
  pending_.push({.header = copy, .data = payload.data(), .done = 0, .id = id, .block = 0});
  const size_t reported = host_.sent.size();
  (void)pump();
  // If pump() has sent the whole payload at once, return true, and do not report sent(id).
  if (!pending_.empty() || host_.sent.size() == reported) return false;
  host_.sent.pop_back();
  return true;
}

bool Outbound::push_piece(Pending& pending) {
  uint32_t ref = 0;
  const size_t bytes = std::min<size_t>(host_.arena.geometry().piece_bytes, pending.header.payload_bytes - pending.done);
  if (!take_slot(SlotKind::large, Purpose::result, bytes, ref)) return false;
  std::memcpy(host_.arena.slot(SlotKind::large, ref_index(ref)), pending.data + pending.done, bytes);
  put(pending.header, pending.done == 0 ? CellType::first : CellType::next, ref);
  pending.done += bytes;
  return true;
}

void Outbound::finish_pending() {
  Pending& pending = pending_.front();
  if (pending.block != 0) host_.buffers.give(pending.block);
  else host_.sent.push(pending.id);
  pending_.pop();
}

bool Outbound::pump() {
  bool moved = false;
  while (!overflow_.empty() && ring_.has_credit()) {
    const Waiting& waiting = overflow_.front();
    ring_.push(waiting.header, waiting.type, waiting.ref);
    overflow_.pop();
    moved = true;
  }
  if (moved) wake_reader();
  if (ring_.broken()) fault_ = "the read index of the peer is out of range";
  while (!pending_.empty() && fault_ == nullptr && ring_is_open()) {
    Pending& pending = pending_.front();
    if (pending.done == 0 && copy_whole(pending.header, pending.data)) {
      finish_pending();
    } else if (push_piece(pending)) {
      if (pending.done < pending.header.payload_bytes) continue;
      ++host_.counters.sent_frames;
      host_.counters.sent_bytes += sizeof(FrameHeader) + pending.header.payload_bytes;
      sent_bytes_ += sizeof(FrameHeader) + pending.header.payload_bytes;
      finish_pending();
    } else {
      break;
    }
    moved = true;
  }
  return moved;
}

void Outbound::drain() {
  uint32_t ref = 0;
  while (fault_ == nullptr && releases_.pop(ref)) {
    if (!host_.arena.has_slot(ref) || !host_.pool(ref_kind(ref)).release(ref_index(ref), memory_.region)) {
      fault_ = "the peer released a slot that it did not hold";
    }
  }
}

void Outbound::want(SlotKind kind, Purpose purpose, uint32_t shared) {
  want_of(kind, purpose) = {.wanted = true, .shared = shared};
  any_want_ = true;
}

bool Outbound::wants_releases() const {
  return any_want_ || wants_credit_ || wants_ring_ || !pending_.empty() || !overflow_.empty();
}

bool Outbound::satisfied(int index) {
  const SlotKind kind = index < 2 ? SlotKind::small : SlotKind::large;
  const Want& want = wants_[index];
  if (!want.wanted || !ring_is_open()) return false;
  SlotPool& pool = host_.pool(kind);
  return pool.available(memory_.region, static_cast<Purpose>(index % 2)) > 0 && pool.shared() >= want.shared;
}

bool Outbound::credit_is_back() {
  if (!any_want_ && !wants_credit_ && !wants_ring_) return false;
  bool back = (wants_ring_ && ring_is_open()) || (wants_credit_ && available_credit() > 0);
  for (int i = 0; i < 4 && !back; ++i) back = satisfied(i);
  if (!back) return false;
  wants_ = {};
  any_want_ = wants_credit_ = wants_ring_ = false;
  return true;
}

bool Outbound::service() {
  if (!wants_releases()) return false;
  drain();
  return pump();
}

bool Outbound::ready() {
  if (fault_ != nullptr) return true;
  if (!wants_releases()) return false;
  if ((wants_ring_ && ring_is_open()) || (wants_credit_ && available_credit() > 0)) return true;
  if (releases_.ready() || (!overflow_.empty() && ring_.has_credit())) return true;
  for (int i = 0; i < 4; ++i) {
    if (satisfied(i)) return true;
  }
  return false;
}

bool Outbound::cancel_pending(Pending& pending) {
  if (pending.block != 0) return false;
  if (pending.done == 0) return true;
  // The frame is half sent, and the receiver waits for the whole payload. Therefore copy the rest, and send it later.
  const size_t rest = pending.header.payload_bytes - pending.done;
  const auto block = host_.buffers.take(PayloadPool::no_owner, pending.header.payload_bytes);
  if (!block) {
    put(pending.header, CellType::abort, 0);
    return true;
  }
  std::memcpy(block.data + pending.done, pending.data + pending.done, rest);
  pending.data = block.data;
  pending.block = block.handle;
  return false;
}

void Outbound::cancel(uint64_t match, uint64_t mask) {
  pending_.remove_if([&](Pending& pending) { return (pending.id & mask) == match && cancel_pending(pending); });
}

void Outbound::finish() {
  while (!pending_.empty()) finish_pending();
  overflow_.clear();
  wants_ = {};
  any_want_ = wants_credit_ = wants_ring_ = false;
}

void Outbound::release_peer_slots() {
  host_.small.release_all(memory_.region);
  host_.large.release_all(memory_.region);
}

}  // namespace unisono::shm

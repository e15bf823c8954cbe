#include "transports/shm/shm_outbound.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/checksum.h"

namespace unisono::shm {
namespace {

// Data frames are contributions. Frames that end or steer an operation must not wait behind them.
Purpose purpose_of(const FrameHeader& header) {
  return header.kind == FrameKind::data ? Purpose::contribution : Purpose::result;
}

}  // namespace

void Bell::ring(uint32_t word) {
  rung_ = word;
  const uint64_t one = 1;
  // Fails only if the counter is full; then the bell has been rung anyway.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof(one));
}

Outbound::Outbound(Host& host, const LinkMemory& memory, int bell)
    : host_(host),
      memory_(memory),
      bell_(&memory.peer->head().wake, bell),
      ring_(host.arena.cells(memory.region), host.arena.geometry().ring_cells, &memory.peer->region(memory.peer_region).head),
      releases_(memory.peer->releases(memory.peer_region), memory.peer->geometry().release_entries) {}

Outbound::~Outbound() {
  for (auto& pending : pending_) host_.buffers.give(pending.block);
}

size_t Outbound::free_now() {
  return pending_.empty() && open() ? host_.large.available(memory_.region, Purpose::contribution) : 0;
}

size_t Outbound::credit() {
  if (fault_ != nullptr) return 0;
  if (free_now() == 0) drain();
  // After a refusal the caller gets Sink::credit, whatever later calls find.
  if (free_now() == 0) wants_credit_ = true;
  return free_now();
}

bool Outbound::take_slot(Place place, Purpose purpose, size_t bytes, uint32_t& ref) {
  SlotPool& pool = host_.pool(place);
  const uint16_t only[] = {memory_.region};
  // Collects releases early for large slots, to reuse them while they are in the caches. For short frames, reading the peer's
  // memory would cost more than that.
  if (place == Place::large || pool.available(memory_.region, purpose) <= pool.quota_max() / 2) drain();
  if (!pool.may_take(only, purpose)) return false;
  ref = make_ref(place, pool.take(only, purpose, bytes));
  return true;
}

void Outbound::put(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order) {
  if (overflow_.empty() && ring_.has_credit()) {
    ring_.push(header, type, ref, order);
    if (order == std::memory_order_seq_cst) wake_reader();
    return;
  }
  if (ring_.broken()) fault_ = "its ring index is out of range";
  if (overflow_.size() >= overflow_max) fault_ = "it does not read, and too many frames wait for it";
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
  const bool small = bytes <= geometry.small_bytes && take_slot(Place::small, purpose, bytes, ref);
  if (!small && (bytes > geometry.large_bytes || !take_slot(Place::large, purpose, bytes, ref))) return false;
  std::memcpy(host_.arena.slot(ref_place(ref), ref_index(ref)), data, bytes);
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
  if (pending_.empty() && open() && copy_whole(copy, payload.data())) return true;
  pending_.push({.header = copy, .data = payload.data(), .done = 0, .id = id, .block = 0});
  const size_t reported = host_.sent.size();
  (void)pump();
  // If the last frame in the queue went out at once, report that by the return value instead of sent(id).
  if (!pending_.empty() || host_.sent.size() == reported) return false;
  host_.sent.pop_back();
  return true;
}

bool Outbound::push_piece(Pending& pending) {
  uint32_t ref = 0;
  const size_t bytes = std::min<size_t>(host_.arena.geometry().piece_bytes, pending.header.payload_bytes - pending.done);
  if (!take_slot(Place::large, Purpose::result, bytes, ref)) return false;
  std::memcpy(host_.arena.slot(Place::large, ref_index(ref)), pending.data + pending.done, bytes);
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
  if (ring_.broken()) fault_ = "its ring index is out of range";
  while (!pending_.empty() && fault_ == nullptr && open()) {
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
    if (!host_.arena.has_slot(ref) || !host_.pool(ref_place(ref)).give_back(ref_index(ref), memory_.region)) {
      fault_ = "it gave back a slot that it did not hold";
    }
  }
}

void Outbound::want(Place place, Purpose purpose, uint32_t shared) {
  want_of(place, purpose) = {.wanted = true, .shared = shared};
  any_want_ = true;
}

bool Outbound::wants_releases() const {
  return any_want_ || wants_credit_ || wants_ring_ || !pending_.empty() || !overflow_.empty();
}

bool Outbound::satisfied(int index) {
  const Place place = index < 2 ? Place::small : Place::large;
  const Want& want = wants_[index];
  if (!want.wanted || !open()) return false;
  SlotPool& pool = host_.pool(place);
  return pool.available(memory_.region, static_cast<Purpose>(index % 2)) > 0 && pool.shared() >= want.shared;
}

bool Outbound::credit_is_back() {
  if (!any_want_ && !wants_credit_ && !wants_ring_) return false;
  bool back = (wants_ring_ && open()) || (wants_credit_ && free_now() > 0);
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
  if ((wants_ring_ && open()) || (wants_credit_ && free_now() > 0)) return true;
  if (releases_.ready() || (!overflow_.empty() && ring_.has_credit())) return true;
  for (int i = 0; i < 4; ++i) {
    if (satisfied(i)) return true;
  }
  return false;
}

bool Outbound::cancel_pending(Pending& pending) {
  if (pending.block != 0) return false;
  if (pending.done == 0) return true;
  // Half sent: the receiver waits for the whole payload. So the rest is copied and still sent.
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

void Outbound::forget() {
  host_.small.give_back_all(memory_.region);
  host_.large.give_back_all(memory_.region);
}

}  // namespace unisono::shm

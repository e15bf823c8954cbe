#include "transports/shm/shm_ring.h"

#include <array>
#include <bit>

namespace unisono::shm {
namespace {

using Words = std::array<uint64_t, 8>;
static_assert(sizeof(Words) == sizeof(FrameHeader));
static_assert(offsetof(FrameHeader, magic) == 0, "the sequence number takes the place of the magic");
static_assert(offsetof(FrameHeader, payload_checksum) == 56 && offsetof(FrameHeader, header_checksum) == 60,
              "type and ref take the place of the checksum, in the last word");

constexpr uint64_t low = 0xFFFFFFFF;
constexpr int lap_shift = 24;

// Returns the lap number of a position: in which round through the ring the position is written. An older entry at the same
// place has another number. An entry that was never written has another number, too, because memory starts as 0 and the first
// lap is 1.
uint32_t lap_of(uint32_t position, uint32_t count) { return (position / count + 1) & 0xFF; }

}  // namespace

RingWriter::RingWriter(Cell* cells, uint32_t count, const std::atomic<uint32_t>* reader_head)
    : cells_(cells), reader_head_(reader_head), count_(count) {}

bool RingWriter::has_credit() {
  if (tail_ - head_ < count_) return true;
  const uint32_t head = reader_head_->load(std::memory_order_acquire);
  if (tail_ - head > count_) {
    broken_ = true;  // the reader's head has gone backwards, or is beyond the writer's tail
    return false;
  }
  head_ = head;
  return tail_ - head_ < count_;
}

void RingWriter::push(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order) {
  auto words = std::bit_cast<Words>(header);
  Cell& cell = cells_[tail_ & (count_ - 1)];
  ++tail_;
  words[0] = (words[0] & ~low) | tail_;
  words[7] = (words[7] & low) | static_cast<uint64_t>(static_cast<uint32_t>(type) << lap_shift | ref) << 32;
  for (int i = 1; i < 8; ++i) cell.words[i].store(words[i], std::memory_order_relaxed);
  cell.words[0].store(words[0], order);
}

Next RingReader::compare(const FrameHeader& expected, uint32_t& ref) const {
  const Cell& cell = cells_[head_ & (count_ - 1)];
  const uint64_t first = cell.words[0].load(std::memory_order_acquire);
  if (static_cast<uint32_t>(first) != head_ + 1) return Next::none;
  const auto wanted = std::bit_cast<Words>(expected);
  uint64_t differs = (first ^ wanted[0]) & ~low;
  for (int i = 1; i < 7; ++i) differs |= cell.words[i].load(std::memory_order_relaxed) ^ wanted[i];
  const auto tag = static_cast<uint32_t>(cell.words[7].load(std::memory_order_relaxed) >> 32);
  ref = tag & ref_mask;
  return differs == 0 && static_cast<CellType>(tag >> lap_shift) == CellType::whole ? Next::expected : Next::other;
}

bool RingReader::pop(Entry& entry) {
  const Cell& cell = cells_[head_ & (count_ - 1)];
  Words words;
  words[0] = cell.words[0].load(std::memory_order_acquire);
  if (static_cast<uint32_t>(words[0]) != head_ + 1) return false;
  for (int i = 1; i < 8; ++i) words[i] = cell.words[i].load(std::memory_order_relaxed);
  const auto tag = static_cast<uint32_t>(words[7] >> 32);
  words[0] = (words[0] & ~low) | frame_magic;
  words[7] &= low;
  entry.header = std::bit_cast<FrameHeader>(words);
  entry.type = static_cast<CellType>(tag >> lap_shift);
  entry.ref = tag & ref_mask;
  advance();
  return true;
}

void ReleaseWriter::push(uint32_t ref, std::memory_order order) {
  entries_[tail_ & (count_ - 1)].store(lap_of(tail_, count_) << lap_shift | ref, order);
  ++tail_;
}

bool ReleaseReader::ready() const {
  return entries_[head_ & (count_ - 1)].load(std::memory_order_seq_cst) >> lap_shift == lap_of(head_, count_);
}

bool ReleaseReader::pop(uint32_t& ref) {
  const uint32_t entry = entries_[head_ & (count_ - 1)].load(std::memory_order_acquire);
  if (entry >> lap_shift != lap_of(head_, count_)) return false;
  ref = entry & ref_mask;
  ++head_;
  return true;
}

}  // namespace unisono::shm

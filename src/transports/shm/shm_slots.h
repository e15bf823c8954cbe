// Counts for the slots of an arena which peers hold each slot, and which peer may take another one. One slow peer cannot starve
// the others.
//
// A payload that is committed to several peers is in one slot, and all these peers hold that slot. The slot is free again when
// the last holder returns it. For each purpose, a peer may hold at most quota_max slots. It is guaranteed quota_min slots,
// however many slots other peers hold. The slots that are not guaranteed to anyone are shared by all peers. Contributions and
// results are separate purposes. Therefore, contributions that wait at a receiver leave slots for the results that the receiver
// needs.
//
// Why the guarantee holds: every slot in use has a holder, so free slots >= slots - holdings. A peer may exceed its guarantee
// only while
//   slots - holdings > (sum of unused guarantees).
// When a slot is returned, the left side of this formula grows by one, and the right side by at most one. So the left side
// never becomes less than the right side. There is one exception: a slot that is still being written is not free, even without
// holders.
//
// SlotPool only counts; the Arena owns the memory. A slot is identified by its index, and a peer by its region.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "transports/shm/shm_fifo.h"

namespace unisono::shm {

enum class Purpose : uint8_t { contribution = 0, result = 1 };
inline constexpr int purpose_count = 2;
inline constexpr uint32_t regions_max = 256;

struct SlotPoolOptions {
  uint32_t slots = 0;      // at least regions * 2 * quota_min
  uint32_t regions = 0;    // at most regions_max
  uint32_t quota_min = 2;  // each region is guaranteed this many slots for each purpose
  uint32_t quota_max = 8;
  // How many slots are used in turn. With few slots, a slot is written again while its reader's cache still holds it, which
  // makes writing slower. With many slots, a slot has left the writer's cache before it is written again, which is slow, too.
  // Therefore in_turn_bytes is a second limit, for the payload bytes of these slots. But at least two slots are used.
  uint32_t in_turn = 1;
  uint64_t in_turn_bytes = UINT64_MAX;
};

class SlotPool {
 public:
  using Holders = std::array<uint64_t, regions_max / 64>;  // one bit per region

  SlotPool() = default;
  explicit SlotPool(const SlotPoolOptions& options);

  // Returns true if one slot can be taken for all of these regions together. No region may occur twice.
  bool may_take(std::span<const uint16_t> regions, Purpose purpose) const;
  // Takes a slot for a payload of `bytes`. Call this only if may_take() returns true. Usually it takes one of the slots that
  // are used in turn: the one that was returned first. Every eighth call takes a new slot instead, until in_turn slots are in
  // use. New slots are added slowly, because the first write to new pages costs more time than writing the payload.
  uint32_t take(std::span<const uint16_t> regions, Purpose purpose, size_t bytes);
  // Marks a slot as being written. While it is written, the slot is not free, even if the links of all its holders are lost.
  // Call this once per slot.
  void begin_writing(uint32_t slot);
  void end_writing(uint32_t slot);
  bool holds(uint32_t slot, uint16_t region) const;
  const Holders& holders(uint32_t slot) const { return slots_[slot].holders; }
  // Takes a slot back from a region. Returns false if the region does not hold the slot, or if there is no such slot.
  bool release(uint32_t slot, uint16_t region);
  // Takes back all slots that the region holds.
  void release_all(uint16_t region);

  // Returns how many slots this region could take now if no other region took any.
  uint32_t available(uint16_t region, Purpose purpose) const {
    const uint32_t held = this->held(region, purpose);
    const uint32_t sure = held < options_.quota_min ? options_.quota_min - held : 0;
    const uint32_t more = options_.quota_max - std::max(held, options_.quota_min);
    return std::min(sure + std::min(more, shared()), free());
  }
  uint32_t held(uint16_t region, Purpose purpose) const { return held_[region][static_cast<int>(purpose)]; }
  uint32_t quota_max() const { return options_.quota_max; }
  // Returns how many slots are left that are not guaranteed to any region.
  uint32_t shared() const { return options_.slots - holdings_ - guaranteed_; }

 private:
  struct Slot {
    Holders holders{};
    uint16_t user_count = 0;  // number of holders, plus 1 while the slot is being written
    bool writing = false;
    Purpose purpose = Purpose::contribution;
  };
  SlotPoolOptions options_;
  uint32_t free() const { return static_cast<uint32_t>(used_.size()) + options_.slots - untouched_; }
  void drop_user(uint32_t slot);
  bool take_new(uint64_t turn);

  std::vector<Slot> slots_;
  Fifo<uint32_t> used_;     // Free slots that were used before. The slot that was returned first comes first.
  uint32_t takes_ = 0;      // Counts the calls of take() that could choose between a used and a new slot.
  uint32_t untouched_ = 0;  // The slots from this index on were never used, so no pages are allocated for them.
  std::vector<std::array<uint32_t, purpose_count>> held_;
  uint32_t holdings_ = 0;  // the sum of held_ over all regions and purposes
  // The number of slots that are guaranteed and not held: the sum of max(0, quota_min - held) over all regions and purposes.
  uint32_t guaranteed_ = 0;
};

}  // namespace unisono::shm

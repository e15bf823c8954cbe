// The slots of an arena: which peer holds which slot, and which peer may take another. One slow peer cannot starve the others.
//
// Several peers may hold one slot (a payload committed to all of them). It is free again when the last one returns it. Each
// (peer, purpose) may hold quota_max slots. quota_min of them are guaranteed, whatever the others hold; the rest is shared.
// Contributions and results are separate purposes, so contributions that wait at a receiver leave slots for the results that it
// needs.
//
// Why the guarantee holds: every slot in use is held at least once, so free slots >= slots - holdings. A peer may exceed its
// guarantee only while slots - holdings exceeds the guarantees that are still unused. Returning one holding adds one to the
// left side and at most one to the right. There is one exception: a slot without holders that is still being written is missing
// until its writer is done. This class only counts: the memory is the arena's, and the handles are its slot indices. A region
// names a peer.
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
  uint32_t quota_min = 2;  // per (region, purpose)
  uint32_t quota_max = 8;
  // How many slots are used in turn. A reader has the last slot that it read in its cache, and overwriting it there costs more.
  // But free slots take turns only up to in_turn_bytes of payload (and at least two slots): of more, the writer's own cache has
  // lost the oldest.
  uint32_t in_turn = 1;
  uint64_t in_turn_bytes = UINT64_MAX;
};

class SlotPool {
 public:
  using Holders = std::array<uint64_t, regions_max / 64>;  // a bit per region

  SlotPool() = default;
  explicit SlotPool(const SlotPoolOptions& options);

  // Whether one slot can be taken for all of these regions (each named once).
  bool may_take(std::span<const uint16_t> regions, Purpose purpose) const;
  // Takes a slot for a payload of `bytes`. Requires may_take. Among the slots used in turn, the one that came back first is
  // taken first. Now and then a new slot is taken, until in_turn slots are used. They do not come all at once, because a new
  // slot's pages cost more time than its bytes.
  uint32_t take(std::span<const uint16_t> regions, Purpose purpose, size_t bytes);
  // A slot being written is not free even when no peer holds it, because a peer may be lost meanwhile. Call once per slot.
  void begin_writing(uint32_t slot);
  void end_writing(uint32_t slot);
  bool holds(uint32_t slot, uint16_t region) const;
  const Holders& holders(uint32_t slot) const { return slots_[slot].holders; }
  // False if the region does not hold the slot, or there is no such slot.
  bool give_back(uint32_t slot, uint16_t region);
  // Returns everything that the region holds.
  void give_back_all(uint16_t region);

  // How many slots the region alone could take now.
  uint32_t available(uint16_t region, Purpose purpose) const {
    const uint32_t held = this->held(region, purpose);
    const uint32_t sure = held < options_.quota_min ? options_.quota_min - held : 0;
    const uint32_t more = options_.quota_max - std::max(held, options_.quota_min);
    return std::min(sure + std::min(more, shared()), free());
  }
  uint32_t held(uint16_t region, Purpose purpose) const { return held_[region][static_cast<int>(purpose)]; }
  uint32_t quota_max() const { return options_.quota_max; }
  // Slots that may be taken beyond the guarantees.
  uint32_t shared() const { return options_.slots - holdings_ - guaranteed_; }

 private:
  struct Slot {
    Holders holders{};
    uint16_t user_count = 0;  // holders, and the writer
    bool writing = false;
    Purpose purpose = Purpose::contribution;
  };
  SlotPoolOptions options_;
  uint32_t free() const { return static_cast<uint32_t>(used_.size()) + options_.slots - untouched_; }
  void drop_user(uint32_t slot);
  bool take_new(uint64_t turn);

  std::vector<Slot> slots_;
  Fifo<uint32_t> used_;     // free, in the order in which they were given back
  uint32_t takes_ = 0;      // while fewer than in_turn have been used
  uint32_t untouched_ = 0;  // from here on never used: their pages are not there yet
  std::vector<std::array<uint32_t, purpose_count>> held_;
  uint32_t holdings_ = 0;    // sum of held_
  uint32_t guaranteed_ = 0;  // sum of what each (region, purpose) lacks to quota_min
};

}  // namespace unisono::shm

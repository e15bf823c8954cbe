// Who holds which slot of an arena, and who may take another: the rules that keep one slow peer from starving the rest.
//
// A slot may be held by several peers at once (a payload committed to all of them) and is free again when the last one gives
// it back. Each (peer, purpose) may hold quota_max slots, and quota_min of them are guaranteed: they can always be taken,
// whatever the others hold. The rest is shared. Contributions and results are separate purposes, so contributions that wait
// at a receiver leave room for the results that it waits for.
//
// Why the guarantee holds: a slot out is held at least once, so free slots >= slots - holdings. Taking beyond the guarantee
// is allowed only while slots - holdings exceeds what is still guaranteed and unused; giving back one holding adds one to the
// left side and at most one to the right. (A slot whose holders have all gone while it is still written to is the exception:
// it is missing until its writer is done.)
// Bookkeeping only: the memory is the arena's, the handles are its slot indices. Peers are named by their region.
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
  // So many come to be used in turn: a reader keeps what it has read last in its cache, where to overwrite it costs more. But
  // payloads take turns only in so many of those that are free as hold in_turn_bytes of them (and in two): of more, the
  // writer's own cache has lost the oldest.
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
  // Takes it, for a payload of so many bytes. Call only after may_take. Of the slots that are used in turn the one given back
  // first is the first to be taken again; now and then a new one is, until that many have been used: not one after the other,
  // because a new slot's pages cost more time than its bytes.
  uint32_t take(std::span<const uint16_t> regions, Purpose purpose, size_t bytes);
  // A slot that is written to is not free even when no peer holds it: a peer may be lost meanwhile. Once per slot.
  void begin_writing(uint32_t slot);
  void end_writing(uint32_t slot);
  bool holds(uint32_t slot, uint16_t region) const;
  const Holders& holders(uint32_t slot) const { return slots_[slot].holders; }
  // False if the region does not hold the slot, or there is no such slot.
  bool give_back(uint32_t slot, uint16_t region);
  // Everything that the region holds.
  void give_back_all(uint16_t region);

  // How many slots the region could take now, one after the other, for itself.
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

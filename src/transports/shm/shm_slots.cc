#include "transports/shm/shm_slots.h"

#include <algorithm>

#include "base/check.h"

namespace unisono::shm {

SlotPool::SlotPool(const SlotPoolOptions& options)
    : options_(options),
      slots_(options.slots),
      held_(options.regions),
      guaranteed_(options.regions * purpose_count * options.quota_min) {
  UNISONO_CHECK(options.regions <= regions_max && options.slots >= guaranteed_ && options.quota_min <= options.quota_max);
}

bool SlotPool::may_take(std::span<const uint16_t> regions, Purpose purpose) const {
  uint32_t beyond = 0;
  for (const uint16_t region : regions) {
    const uint32_t held = this->held(region, purpose);
    if (held >= options_.quota_max) return false;
    if (held >= options_.quota_min) ++beyond;
  }
  return beyond <= shared() && free() > 0;
}

void SlotPool::begin_writing(uint32_t index) {
  Slot& slot = slots_[index];
  UNISONO_CHECK(!slot.writing);
  slot.writing = true;
  ++slot.user_count;
}

void SlotPool::end_writing(uint32_t index) {
  UNISONO_CHECK(index < slots_.size() && slots_[index].writing);
  slots_[index].writing = false;
  drop_user(index);
}

void SlotPool::drop_user(uint32_t index) {
  if (--slots_[index].user_count == 0) used_.push(index);
}

bool SlotPool::take_new(uint64_t turn) {
  constexpr uint32_t takes_per_new = 8;
  if (used_.empty()) return true;
  return untouched_ < std::min<uint64_t>({turn, options_.in_turn, options_.slots}) && ++takes_ % takes_per_new == 0;
}

uint32_t SlotPool::take(std::span<const uint16_t> regions, Purpose purpose, size_t bytes) {
  UNISONO_CHECK(free() > 0);
  const uint64_t turn = std::max<uint64_t>(2, options_.in_turn_bytes / std::max<size_t>(bytes, 1));
  const uint32_t index = take_new(turn) ? untouched_++ : used_.take(used_.size() > turn ? used_.size() - turn : 0);
  Slot& slot = slots_[index];
  slot.purpose = purpose;
  slot.user_count = static_cast<uint16_t>(regions.size());
  for (const uint16_t region : regions) {
    slot.holders[region / 64] |= uint64_t{1} << region % 64;
    uint32_t& held = held_[region][static_cast<int>(purpose)];
    if (held++ < options_.quota_min) --guaranteed_;
    ++holdings_;
  }
  return index;
}

bool SlotPool::holds(uint32_t slot, uint16_t region) const {
  return slot < slots_.size() && (slots_[slot].holders[region / 64] >> region % 64 & 1) != 0;
}

bool SlotPool::release(uint32_t index, uint16_t region) {
  if (!holds(index, region)) return false;
  Slot& slot = slots_[index];
  slot.holders[region / 64] &= ~(uint64_t{1} << region % 64);
  uint32_t& held = held_[region][static_cast<int>(slot.purpose)];
  if (held-- <= options_.quota_min) ++guaranteed_;
  --holdings_;
  drop_user(index);
  return true;
}

void SlotPool::release_all(uint16_t region) {
  if (held(region, Purpose::contribution) + held(region, Purpose::result) == 0) return;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) (void)release(slot, region);
}

}  // namespace unisono::shm

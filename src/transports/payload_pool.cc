#include "transports/payload_pool.h"

#include <bit>
#include <cstdlib>

namespace unisono {

void PayloadPool::Free::operator()(std::byte* data) const { std::free(data); }

uint32_t PayloadPool::fresh_record(size_t size_class) {
  std::unique_ptr<std::byte, Free> memory(static_cast<std::byte*>(std::aligned_alloc(64, class_bytes(size_class))));
  if (!memory) return UINT32_MAX;
  if (empty_.empty()) {
    records_.emplace_back();
    empty_.push_back(static_cast<uint32_t>(records_.size() - 1));
  }
  const auto index = empty_.back();
  empty_.pop_back();
  records_[index].data = std::move(memory);
  records_[index].size_class = static_cast<uint8_t>(size_class);
  return index;
}

bool PayloadPool::may_take(uint32_t owner, size_t bytes) const { return has_room(owner, bytes) || held_bytes(owner) == 0; }

PayloadPool::Block PayloadPool::take(uint32_t owner, size_t bytes) {
  const size_t size = block_bytes(bytes);
  const size_t size_class = static_cast<size_t>(std::countr_zero(size)) - smallest_shift;
  if (size_class >= class_count || !may_take(owner, bytes)) return {};
  if (has_limit(owner) && owner >= held_.size()) held_.resize(owner + size_t{1});
  uint32_t index;
  auto& list = free_[size_class];
  if (list.empty()) {
    index = fresh_record(size_class);
    if (index == UINT32_MAX) return {};
  } else {
    index = list.back();
    list.pop_back();
    kept_bytes_ -= size;
  }
  auto& record = records_[index];
  record.users = 1;
  begin_holding(record, owner);
  return {record.data.get(), uint64_t{index} + 1};
}

void PayloadPool::begin_holding(Record& record, uint32_t owner) {
  record.owner = owner;
  if (owner != inbox_owner) ++blocks_out_;
  if (has_limit(owner)) held_[owner] += class_bytes(record.size_class);
}

void PayloadPool::end_holding(Record& record) {
  if (record.owner != inbox_owner) --blocks_out_;
  if (has_limit(record.owner)) held_[record.owner] -= class_bytes(record.size_class);
}

void PayloadPool::set_owner(uint64_t handle, uint32_t owner) {
  if (has_limit(owner) && owner >= held_.size()) held_.resize(owner + size_t{1});
  auto& record = records_[handle - 1];
  end_holding(record);
  begin_holding(record, owner);
}

void PayloadPool::give(uint64_t handle) {
  if (handle == 0 || handle > records_.size() || records_[handle - 1].users == 0) return;
  const auto index = static_cast<uint32_t>(handle - 1);
  auto& record = records_[index];
  const size_t bytes = class_bytes(record.size_class);
  if (--record.users > 0) return;
  end_holding(record);
  if (kept_bytes_ + bytes > limits_.kept_bytes_max) {
    record.data.reset();
    empty_.push_back(index);
    return;
  }
  kept_bytes_ += bytes;
  free_[record.size_class].push_back(index);
}

}  // namespace unisono

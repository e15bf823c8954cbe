// Numbers of one group's operations: which one comes next, and which have ended.
//
// Collectives are numbered in the order of calls, or by the caller (bit 62). A message between two ranks (bit 63) is numbered
// by its sender for each destination and tag. All ranks give one operation the same number without exchanging anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "executor/request.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint64_t user_id_bit = uint64_t{1} << 62;
inline constexpr uint64_t message_id_bit = uint64_t{1} << 63;
constexpr bool is_in_order(uint64_t number) { return (number & (user_id_bit | message_id_bit)) == 0; }
inline constexpr uint64_t all_operations = UINT64_MAX;  // in a failed frame: its sender has aborted the group
constexpr uint64_t message_key(Rank source, Rank destination, uint32_t tag) {
  return uint64_t{source} << 40 | uint64_t{destination} << 16 | tag;
}
constexpr uint64_t message_id(Rank source, uint32_t tag, uint32_t sequence) {
  return message_id_bit | uint64_t{source & 0x7FFF} << 47 | uint64_t{tag & 0x7FFF} << 32 | sequence;
}
inline bool is_message(const OperationRequest& request) {
  return request.collective == Collective::send || request.collective == Collective::recv;
}

class OperationNumbers {
 public:
  static constexpr size_t recent_max = 1024;  // ended operations that are remembered, of each of the two kinds

  // The number of the next operation in the order of calls.
  uint64_t next() const { return next_; }
  void advance() { ++next_; }
  // Numbers a call of rank `self`. id: 0 for the order of calls, the caller's number, or the tag of a message.
  uint64_t assign(const OperationRequest& request, uint64_t id, Rank self) {
    if (is_message(request)) {
      const bool sends = request.collective == Collective::send;
      const auto source = sends ? self : request.root, destination = sends ? request.root : self;
      const auto tag = static_cast<uint32_t>(id);
      return message_id(source, tag, next_message_[message_key(source, destination, tag)]++);
    }
    return id != 0 ? (id | user_id_bit) : next_++;
  }
  // The number of the next message from `source` with this tag that `self` will receive.
  uint64_t next_message(Rank source, Rank self, uint32_t tag) const {
    const auto next = next_message_.find(message_key(source, self, tag));
    return message_id(source, tag, next == next_message_.end() ? 0 : next->second);
  }
  // Called once for each operation that has ended.
  void ended(uint64_t number, bool ok) {
    if (number & user_id_bit) remember(by_caller_, number);
    if (!ok) remember(failed_, number);
  }
  // Whether rank `self` has begun this operation: while it does not run, it has ended. from: the other rank of a message.
  bool has_begun(uint64_t number, Rank self, Rank from) const {
    if (number & message_id_bit) {
      const auto source = static_cast<Rank>(number >> 47 & 0x7FFF);
      const auto tag = static_cast<uint32_t>(number >> 32 & 0x7FFF);
      const auto it = next_message_.find(message_key(source, source == self ? from : self, tag));
      return it != next_message_.end() && static_cast<int32_t>(static_cast<uint32_t>(number) - it->second) < 0;
    }
    return (number & user_id_bit) != 0 ? contains(by_caller_, number) : number < next_;
  }
  // Frames of a failed operation may come late: they say nothing about the callers.
  bool has_failed(uint64_t number) const { return contains(failed_, number); }

 private:
  struct Ring {
    std::vector<uint64_t> numbers;
    size_t at = 0;
  };
  static void remember(Ring& ring, uint64_t number) {
    if (ring.numbers.size() < recent_max) ring.numbers.push_back(number);
    else ring.numbers[ring.at++ % recent_max] = number;
  }
  static bool contains(const Ring& ring, uint64_t number) {
    return std::find(ring.numbers.begin(), ring.numbers.end(), number) != ring.numbers.end();
  }

  uint64_t next_ = 0;
  std::map<uint64_t, uint32_t> next_message_;  // by message_key
  Ring by_caller_, failed_;
};

}  // namespace unisono

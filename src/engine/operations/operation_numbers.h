// The numbers of one group's operations. This object gives the next number, and knows which operations have ended.
//
// Collectives are numbered in the order of calls, or by the caller (then bit 62 is set). A point-to-point message (bit 63 is
// set) is numbered by its sender, separately for each destination and tag. All ranks therefore give an operation the same
// number without communication.
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
// In a failed frame, this operation number means that the sender has aborted the group.
inline constexpr uint64_t all_operations = UINT64_MAX;

// The messages of one rank to another with one tag. They are numbered one after the other, and the numbers start again at 0
// after 2^29 messages.
struct MessageSeries {
  Rank source = 0, destination = 0;
  uint32_t tag = 0;
  auto operator<=>(const MessageSeries&) const = default;
};
inline constexpr int message_sequence_bits = 29;
constexpr uint32_t message_sequence(uint64_t number) {
  return static_cast<uint32_t>(number & ((uint64_t{1} << message_sequence_bits) - 1));
}
// Bits 61 to 30 are the tag. Bit 29 is set if the higher of the two ranks sends, so that the two ranks can tell the numbers of
// both directions apart. The numbers of other pairs of ranks may be equal.
constexpr uint64_t message_id(const MessageSeries& series, uint32_t sequence) {
  const uint64_t direction = series.source > series.destination ? 1 : 0;
  return message_id_bit | uint64_t{series.tag} << 30 | direction << message_sequence_bits | message_sequence(sequence);
}
// Returns the series of the message with this number between the ranks `self` and `other`.
constexpr MessageSeries message_series(uint64_t number, Rank self, Rank other) {
  const bool from_higher = (number >> message_sequence_bits & 1) != 0;
  const Rank higher = std::max(self, other), lower = std::min(self, other);
  return {.source = from_higher ? higher : lower,
          .destination = from_higher ? lower : higher,
          .tag = static_cast<uint32_t>(number >> 30)};
}
inline bool is_message(const OperationRequest& request) {
  return request.collective == Collective::send || request.collective == Collective::recv;
}

class OperationNumbers {
 public:
  // Two lists hold the numbers of operations that have ended. One is for operations with a number from the caller. The other is
  // for operations that failed. Each list holds at most this many numbers, the most recent ones.
  static constexpr size_t recent_max = 1024;

  // Returns the number of the next operation in the order of calls.
  uint64_t next() const { return next_; }
  void advance() { ++next_; }
  // Assigns a number to a call of rank `self`. id: 0 to number by the order of calls; otherwise the caller's number, or the tag
  // of a message.
  uint64_t assign(const OperationRequest& request, uint64_t id, Rank self) {
    if (is_message(request)) {
      const bool sends = request.collective == Collective::send;
      const MessageSeries series{
          .source = sends ? self : request.root, .destination = sends ? request.root : self, .tag = static_cast<uint32_t>(id)};
      return message_id(series, next_message_[series]++);
    }
    return id != 0 ? (id | user_id_bit) : next_++;
  }
  // Returns the number of the next message with this tag from `source` to `self`.
  uint64_t next_message(Rank source, Rank self, uint32_t tag) const {
    const MessageSeries series{.source = source, .destination = self, .tag = tag};
    const auto next = next_message_.find(series);
    return message_id(series, next == next_message_.end() ? 0 : next->second);
  }
  // Call it once for each operation that has ended.
  void ended(uint64_t number, bool ok) {
    if (number & user_id_bit) remember(by_caller_, number);
    if (!ok) remember(failed_, number);
  }
  // Returns true if rank `self` has begun this operation. If the operation is not running, it has then ended. from: the other
  // rank, if the operation is a message.
  bool has_begun(uint64_t number, Rank self, Rank from) const {
    if (number & message_id_bit) {
      const auto it = next_message_.find(message_series(number, self, from));
      if (it == next_message_.end()) return false;
      const auto ahead = message_sequence(uint64_t{message_sequence(number)} - it->second);  // modulo 2^29
      return ahead >= uint32_t{1} << (message_sequence_bits - 1);
    }
    return (number & user_id_bit) != 0 ? contains(by_caller_, number) : number < next_;
  }
  // Returns true if the operation failed. It is normal that late frames of a failed operation arrive; they do not show that
  // calls differ.
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
  std::map<MessageSeries, uint32_t> next_message_;
  Ring by_caller_, failed_;
};

}  // namespace unisono

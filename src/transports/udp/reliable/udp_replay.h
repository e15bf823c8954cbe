// Which numbers of one series a peer has used already. A datagram whose number was seen before is a copy, made by the network
// or by somebody who has recorded it: it says nothing about whether the peer lives, and nothing else either.
//
// The last `reach` numbers are known one by one; what is older counts as seen. Numbers wrap: one that was recorded 2^32
// datagrams ago cannot be told from a new one, so only a short step ahead is believed, and a recording is of use once in 2^32
// datagrams (at 100,000 a second after 12 hours) and for no longer than that step.
#pragma once

#include <array>
#include <cstdint>

namespace unisono {

class UdpReplayWindow {
 public:
  // As many as may be under way: what comes later than so many after it has been given up by its sender.
  static constexpr uint32_t reach = 8192;
  // What can be lost in one go: more than fits into the 10 s after which a peer is lost.
  static constexpr uint32_t step_max = 1u << 24;

  // True once per number.
  bool take(uint32_t number) {
    const uint32_t ahead = number - newest_;
    if (ahead - 1 < step_max) {
      if (ahead >= reach) seen_.fill(0);
      else
        for (uint32_t skipped = newest_ + 1; skipped != number; ++skipped) word(skipped) &= ~bit(skipped);
      newest_ = number;
      word(number) |= bit(number);
      return true;
    }
    if (newest_ - number >= reach || (word(number) & bit(number)) != 0) return false;
    word(number) |= bit(number);
    return true;
  }
  uint32_t newest() const { return newest_; }

 private:
  uint64_t& word(uint32_t number) { return seen_[number % reach / 64]; }
  static constexpr uint64_t bit(uint32_t number) { return uint64_t{1} << (number % 64); }

  uint32_t newest_ = 0;  // numbers begin with 1
  std::array<uint64_t, reach / 64> seen_{1};
};

}  // namespace unisono

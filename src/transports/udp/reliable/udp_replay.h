// A window of the sequence numbers that a peer has used in one series. A datagram with a known number is a copy, made by the
// network or by an attacker who recorded it. It must not count as a sign of life or have any other effect.
//
// The last `reach` numbers are known one by one; older ones count as seen. Numbers wrap, so a number recorded 2^32 datagrams
// ago looks new. Therefore only a short step ahead is believed: a recording is useful once in 2^32 datagrams (at 100,000 a
// second after 12 hours), and only for the length of that step.
#pragma once

#include <array>
#include <cstdint>

namespace unisono {

class UdpReplayWindow {
 public:
  // As many as may be in flight: for a later datagram the sender has stopped waiting.
  static constexpr uint32_t reach = 8192;
  // More datagrams than a link can lose in the 10 s after which its peer is lost.
  static constexpr uint32_t step_max = 1u << 24;

  // Returns true once per number.
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

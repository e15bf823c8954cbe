// Remembers which sequence numbers of one series a peer has used lately. If a datagram has a number that is known, it is a
// copy, made by the network or by an attacker. A copy must have no effect; above all, it must not show that the peer is alive.
//
// The window has one bit for each of the last `reach` numbers. Older numbers count as seen. Because numbers wrap, a number that
// was recorded 2^32 datagrams ago (12 hours at 100,000 per second) looks new. To limit this, a number that is more than
// step_max ahead is refused. Therefore an attacker can use an old recording only while the current number is within step_max of
// it.
#pragma once

#include <array>
#include <cstdint>

namespace unisono {

class UdpReplayWindow {
 public:
  // The window knows this many of the newest numbers: as many as datagrams may be in flight. The sender no longer waits for
  // older datagrams.
  static constexpr uint32_t reach = 8192;
  // A number may be ahead of the newest by this much. A link cannot lose as many datagrams in the 10 s after which its peer is
  // lost.
  static constexpr uint32_t step_max = 1u << 24;

  // Records a number. Returns true if the number is new; for each number this happens at most once.
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

  uint32_t newest_ = 0;  // the highest number so far; the first number of a peer is 1
  std::array<uint64_t, reach / 64> seen_{1};
};

}  // namespace unisono

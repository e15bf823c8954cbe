// Uses a fuzzer's input to make choices, and makes messages of elastic runs from these choices. Random bytes alone would never
// contain a known peer, layout or group, or a digest that is right.
//
// Every message that is made here is valid: its decoder must return an equal message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/concat.h"
#include "base/random.h"
#include "elastic/formation/formation_messages.h"
#include "elastic/roster/roster_messages.h"
#include "elastic/round/round_messages.h"
#include "elastic/state/state_copy.h"
#include "elastic/wire/elastic_times.h"

namespace unisono::elastic_fuzz {

inline constexpr uint32_t peers_known = 6;
inline constexpr Nanos fuzz_start = 1000 * second;

inline PeerId peer_id(uint64_t number) { return {mix64(number + 1), number + 1}; }
inline std::string address_of(uint64_t number) { return concat("tcp://h", number, ":1"); }

// The input, read as a sequence of choices. When the input is used up, every choice is 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(reinterpret_cast<const std::byte*>(data), size) {}

  bool more() const { return at_ < bytes_.size(); }
  uint8_t byte() { return more() ? static_cast<uint8_t>(bytes_[at_++]) : uint8_t{0}; }
  bool flag() { return (byte() & 1) != 0; }
  uint32_t below(uint32_t count) { return byte() % count; }
  // Returns a small number in most cases. Sometimes returns any number.
  uint64_t number() {
    const auto first = byte();
    if (first < 0xf0) return first % 8;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  uint32_t number_below(uint64_t limit) { return static_cast<uint32_t>(number() % limit); }
  double real() {
    constexpr double values[] = {1, 0, -1, 0.5, 1e6, 1e-300, 1e100, 1e308};
    return values[below(std::size(values))];
  }
  PeerId peer() { return peer_id(below(peers_known)); }
  // Returns a known peer in most cases. Sometimes returns an unknown peer or PeerId{}.
  PeerId any_peer() {
    const auto choice = byte();
    return choice == 0xff ? PeerId{} : choice >= 0xf0 ? PeerId{number(), 7} : peer_id(choice % peers_known);
  }
  std::vector<PeerId> peers() {
    std::vector<PeerId> all;
    const auto mask = byte();
    for (uint32_t i = 0; i < peers_known; ++i) {
      if ((mask >> i & 1) != 0) all.push_back(peer_id(i));
    }
    return all;
  }
  // Reads a byte with a length, and then as many bytes.
  ByteView bytes() {
    const size_t count = std::min<size_t>(byte(), bytes_.size() - at_);
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  // Chooses how much time passes until the next turn. It is a fixed step, or the time until the deadline `due`.
  Nanos step(Nanos now, Nanos due) {
    constexpr Nanos steps[] = {0,          millisecond,        40 * millisecond, 300 * millisecond,
                               1 * second, 2500 * millisecond, 31 * second,      3601 * second};
    const auto choice = below(2 * std::size(steps));
    if (choice < std::size(steps)) return steps[choice];
    return due == never || due < now ? 0 : std::min(due - now, 3601 * second);
  }

 private:
  ByteView bytes_;
  size_t at_ = 0;
};

// Calls woke() until the next deadline of the state machine is in the future. If 1000 turns are not enough, the machine would
// never stop, so the test aborts.
template <typename Machine, typename CheckOutput>
void wake(Machine& machine, Nanos now, CheckOutput check_output) {
  int turns = 0;
  do {
    machine.woke(now);
    check_output();
    UNISONO_CHECK(++turns < 1000);
  } while (machine.next_deadline() <= now);
}

inline Bytes bytes_of(ByteView view) { return {view.begin(), view.end()}; }
inline void check_same(ByteView a, ByteView b) { UNISONO_CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end())); }

// Makes a layout of at most peers_known peers, with any version and any grid.
Layout make_layout(Input& input);
RosterMessage make_roster_message(Input& input, uint64_t run, const Layout* known);
// Makes a message for a slot (one group to be formed) of `known`, which is the receiver's layout. Its sender is a peer of that
// layout.
FormationMessage make_formation(Input& input, const Layout& known);
// Makes a message about one chunk of the group that `format` describes.
SharedBuffer make_round_message(Input& input, const RoundFormat& format);
VerdictMessage make_verdict(Input& input, size_t chunks);
// `known` is the state that the donor has, or that the joiner loads.
SharedBuffer make_state_message(Input& input, StateCopy& known);

}  // namespace unisono::elastic_fuzz

// Turns a fuzzer's input into choices, and builds messages of elastic runs from them. Random bytes would never name a peer,
// layout or group that the receiver knows, nor carry a matching digest.
//
// Every message made here is valid: its decoder must return it unchanged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
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
inline std::string address_of(uint64_t number) { return "tcp://h" + std::to_string(number) + ":1"; }

// Beyond the input's end every choice is the first.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(reinterpret_cast<const std::byte*>(data), size) {}

  bool more() const { return at_ < bytes_.size(); }
  uint8_t byte() { return more() ? static_cast<uint8_t>(bytes_[at_++]) : uint8_t{0}; }
  bool flag() { return (byte() & 1) != 0; }
  uint32_t below(uint32_t count) { return byte() % count; }
  // Mostly small numbers, sometimes any.
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
  // Sometimes PeerId{}, or a peer that the receiver does not know.
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
  // The length comes first.
  ByteView bytes() {
    const size_t count = std::min<size_t>(byte(), bytes_.size() - at_);
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  // How far time advances. `due`: until the next deadline.
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

// Wakes a machine until it has nothing to do at this time. A machine that always has something to do would never return.
template <typename Machine, typename Attend>
void wake(Machine& machine, Nanos now, Attend attend) {
  int turns = 0;
  do {
    machine.woke(now);
    attend();
    UNISONO_CHECK(++turns < 1000);
  } while (machine.next_deadline() <= now);
}

inline Bytes bytes_of(ByteView view) { return {view.begin(), view.end()}; }
inline void check_same(ByteView a, ByteView b) { UNISONO_CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end())); }

// A layout of up to peers_known peers, with any version and grid.
Layout make_layout(Input& input);
RosterMessage make_roster_message(Input& input, uint64_t run, const Layout* known);
// The message's slot belongs to `known`, the receiver's layout, and to one of its peers.
FormationMessage make_formation(Input& input, const Layout& known);
// A message of the group with this format, about one of its chunks.
SharedBuffer make_round_message(Input& input, const RoundFormat& format);
VerdictMessage make_verdict(Input& input, size_t chunks);
// `known`: the state that is held or loaded.
SharedBuffer make_state_message(Input& input, StateCopy& known);

}  // namespace unisono::elastic_fuzz

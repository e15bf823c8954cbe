#include "wire/siphash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "wire/siphash_lanes.h"

namespace unisono {
namespace {

static_assert(std::endian::native == std::endian::little, "words of the message are little-endian and read as they are");

struct State {
  uint64_t v0, v1, v2, v3;

  explicit State(const SipKey& key)
      : v0(key.k0 ^ 0x736f6d6570736575ull),
        v1(key.k1 ^ 0x646f72616e646f6dull),
        v2(key.k0 ^ 0x6c7967656e657261ull),
        v3(key.k1 ^ 0x7465646279746573ull) {}

  void round() {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  }
  void word(uint64_t m) {
    v3 ^= m;
    round(), round();
    v0 ^= m;
  }
  uint64_t finish() {
    v2 ^= 0xff;
    round(), round(), round(), round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

uint64_t load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Returns the first `count` bytes as a little-endian word. `count` must be less than 8.
uint64_t load_some(const std::byte* at, size_t count) {
  uint64_t word = 0;
  for (size_t i = 0; i < count; ++i) word |= std::to_integer<uint64_t>(at[i]) << (8 * i);
  return word;
}

}  // namespace

uint64_t siphash_2_4(const SipKey& key, std::span<const std::byte> head, std::span<const std::byte> rest) {
  State state(key);
  const std::byte* at = head.data();
  for (size_t words = head.size() / 8; words > 0; --words, at += 8) state.word(load(at));
  size_t held = head.size() % 8;  // number of bytes in `pending`, which do not fill a word yet
  uint64_t pending = load_some(at, held);

  at = rest.data();
  if (held == 0) {
    for (size_t words = rest.size() / 8; words > 0; --words, at += 8) state.word(load(at));
  } else {
    for (size_t words = rest.size() / 8; words > 0; --words, at += 8) {
      const uint64_t word = load(at);
      state.word(pending | word << (8 * held));
      pending = word >> (64 - 8 * held);
    }
  }
  for (size_t left = rest.size() % 8; left > 0; --left, ++at) {
    pending |= std::to_integer<uint64_t>(*at) << (8 * held);
    if (++held < 8) continue;
    state.word(pending);
    held = 0, pending = 0;
  }
  state.word(pending | static_cast<uint64_t>(head.size() + rest.size()) << 56);
  return state.finish();
}

void siphash_2_4(std::span<const SipMessage* const> messages, std::span<uint64_t> tags) {
  UNISONO_CHECK(messages.size() == tags.size());
  const auto kernels = runnable_sip_lanes();
  siphash_by(kernels.empty() ? nullptr : kernels.front(), messages, tags);
}

namespace {

// A batch of messages whose tags are computed side by side. They have equal sizes, and there are at most as many as the vectors
// have lanes.
struct Side {
  std::array<const SipMessage*, sip_lanes_max> messages;
  std::array<uint8_t, sip_lanes_max> indices;
  size_t count = 0;
};

// `left` has one bit for each message that is in no batch yet. This function takes the first of these messages, makes a batch
// of it and of further messages with the same sizes, and clears their bits.
Side take_side(std::span<const SipMessage* const> messages, size_t lanes, uint64_t& left) {
  Side side;
  const auto& first = *messages[static_cast<size_t>(std::countr_zero(left))];
  const size_t most = first.head.size() % 8 == 0 ? lanes : 1;
  for (uint64_t others = left; others != 0 && side.count < most; others &= others - 1) {
    const auto index = static_cast<size_t>(std::countr_zero(others));
    const auto& message = *messages[index];
    if (message.head.size() != first.head.size() || message.rest.size() != first.rest.size()) continue;
    side.messages[side.count] = &message;
    side.indices[side.count++] = static_cast<uint8_t>(index);
    left &= ~(uint64_t{1} << index);
  }
  std::fill(side.messages.begin() + static_cast<ptrdiff_t>(side.count), side.messages.end(), &first);
  return side;
}

}  // namespace

void siphash_by(const SipLanes* lanes, std::span<const SipMessage* const> messages, std::span<uint64_t> tags) {
  constexpr size_t together_max = 64;
  for (; messages.size() > together_max; messages = messages.subspan(together_max), tags = tags.subspan(together_max)) {
    siphash_by(lanes, messages.first(together_max), tags.first(together_max));
  }
  if (messages.empty()) return;
  uint64_t left = ~uint64_t{0} >> (together_max - messages.size());
  const size_t most = lanes != nullptr ? lanes->count : 1;
  for (auto side = take_side(messages, most, left); side.count > 0;) {
    const auto next = left != 0 ? take_side(messages, most, left) : Side{.messages = side.messages, .indices = {}, .count = 0};
    std::array<uint64_t, sip_lanes_max> made;
    if (side.count > 1) lanes->tags(side.messages.data(), next.messages.data(), made.data());
    else made[0] = siphash_2_4(side.messages[0]->key, side.messages[0]->head, side.messages[0]->rest);
    for (size_t i = 0; i < side.count; ++i) tags[side.indices[i]] = made[i];
    side = next;
  }
}

SipKey link_key(const GroupKey& group, Rank sender, Rank receiver, uint32_t epoch, uint64_t run_id) {
  const SipKey master{.k0 = load(group.data()), .k1 = load(group.data() + 8)};
  std::byte text[22] = {std::byte{'T'}, std::byte{'U'}, std::byte{'T'}, std::byte{'1'}};
  const auto from = static_cast<uint16_t>(sender), to = static_cast<uint16_t>(receiver);
  std::memcpy(text + 6, &from, 2);
  std::memcpy(text + 8, &to, 2);
  std::memcpy(text + 10, &epoch, 4);
  std::memcpy(text + 14, &run_id, 8);
  SipKey key;
  key.k0 = siphash_2_4(master, text);
  text[4] = std::byte{1};
  key.k1 = siphash_2_4(master, text);
  return key;
}

}  // namespace unisono

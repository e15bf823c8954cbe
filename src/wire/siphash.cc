#include "wire/siphash.h"

#include <bit>
#include <cstring>

namespace unisono {
namespace {

static_assert(std::endian::native == std::endian::little, "words of the message are little-endian and read as they are");

struct State {
  uint64_t v0, v1, v2, v3;

  explicit State(const SipKey& key)
      : v0(key.k0 ^ 0x736f6d6570736575ull), v1(key.k1 ^ 0x646f72616e646f6dull), v2(key.k0 ^ 0x6c7967656e657261ull), v3(key.k1 ^ 0x7465646279746573ull) {}

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

// The lowest bytes of a word; count < 8.
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
  size_t held = head.size() % 8;  // bytes that wait in `pending` for the rest of their word
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

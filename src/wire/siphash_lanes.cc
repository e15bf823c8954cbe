// This source file is compiled once for each instruction set, by Highway's foreach_target.
//
// A vector needs one word from each message, but the words of one message lie side by side in memory. So the code loads a
// square of words, where each row has words of one message, and transposes the square in registers. It would be slow on many
// processors to gather single words from memory.

#include "base/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wire/siphash_lanes.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must be included before highway.h
#include <hwy/highway.h>

#include <cstring>
#include <iterator>

#include "base/runnable_tables.h"
#include "wire/siphash_lanes.h"

HWY_BEFORE_NAMESPACE();
namespace unisono {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86

namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::CappedTag<uint64_t, sip_lanes_max>;
using V = hn::VFromD<Words>;
constexpr Words words;
constexpr size_t lanes = hn::MaxLanes(Words());
static_assert(lanes == 4 || lanes == 8);

template <int bits>
HWY_INLINE V rotl(V v) {
#if HWY_TARGET <= HWY_AVX3
  return hn::RotateRight<64 - bits>(v);
#else
  if constexpr (bits == 32) return hn::BitCast(words, hn::Shuffle2301(hn::BitCast(hn::Repartition<uint32_t, Words>(), v)));
  return hn::Or(hn::ShiftLeft<bits>(v), hn::ShiftRight<64 - bits>(v));
#endif
}

struct State {
  V v0, v1, v2, v3;

  HWY_INLINE void round() {
    v0 = hn::Add(v0, v1), v1 = hn::Xor(rotl<13>(v1), v0), v0 = rotl<32>(v0);
    v2 = hn::Add(v2, v3), v3 = hn::Xor(rotl<16>(v3), v2);
    v0 = hn::Add(v0, v3), v3 = hn::Xor(rotl<21>(v3), v0);
    v2 = hn::Add(v2, v1), v1 = hn::Xor(rotl<17>(v1), v2), v2 = rotl<32>(v2);
  }
  HWY_INLINE void word(V m) {
    v3 = hn::Xor(v3, m);
    round(), round();
    v0 = hn::Xor(v0, m);
  }
};

// Transposes a square of 64-bit words in three steps (two steps if the square has four rows). The steps swap single words
// between two rows, then pairs of words, then halves of rows.
HWY_INLINE void transpose(V (&rows)[lanes]) {
  V pairs[lanes];
  for (size_t i = 0; i < lanes; i += 2) {
    pairs[i] = hn::InterleaveLower(words, rows[i], rows[i + 1]);
    pairs[i + 1] = hn::InterleaveUpper(words, rows[i], rows[i + 1]);
  }
  if constexpr (lanes == 4) {
    for (size_t i = 0; i < 2; ++i) {
      rows[i] = hn::ConcatLowerLower(words, pairs[i + 2], pairs[i]);
      rows[i + 2] = hn::ConcatUpperUpper(words, pairs[i + 2], pairs[i]);
    }
  } else {
    // for i < 4: quads[i] holds words i and i + 4 of rows 0 to 3, and quads[4 + i] holds words i and i + 4 of rows 4 to 7
    V quads[lanes];
    for (size_t half = 0; half < lanes; half += 4) {
      for (size_t i = 0; i < 2; ++i) {
        const V even = pairs[half + i], odd = pairs[half + i + 2];
        // blocks: even[0], odd[0], even[2], odd[2]
        quads[half + i] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(odd), even);
        quads[half + i + 2] = hn::OddEvenBlocks(odd, hn::SwapAdjacentBlocks(even));  // blocks: even[1], odd[1], even[3], odd[3]
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      rows[i] = hn::ConcatLowerLower(words, quads[i + 4], quads[i]);
      rows[i + 4] = hn::ConcatUpperUpper(words, quads[i + 4], quads[i]);
    }
  }
}

HWY_INLINE const uint64_t* words_at(const std::byte* at) { return reinterpret_cast<const uint64_t*>(at); }

// Adds `bytes` bytes of each message to the state. `bytes` must be a multiple of 8. Meanwhile, the same number of bytes of each
// of the next messages is prefetched.
HWY_INLINE void absorb(State& state, const std::byte* const* at, size_t bytes, const std::byte* const* next) {
  V rows[lanes];
  size_t done = 0;
  for (; done + 8 * lanes <= bytes; done += 8 * lanes) {
    for (size_t i = 0; i < lanes; ++i) {
      rows[i] = hn::LoadU(words, words_at(at[i] + done));
      hwy::Prefetch(next[i] + done);
    }
    transpose(rows);
    for (size_t i = 0; i < lanes; ++i) state.word(rows[i]);
  }
  const size_t left = (bytes - done) / 8;
  if (left == 0) return;
  const auto some = hn::FirstN(words, left);
  for (size_t i = 0; i < lanes; ++i) rows[i] = hn::MaskedLoad(some, words, words_at(at[i] + done));
  transpose(rows);
  for (size_t i = 0; i < left; ++i) state.word(rows[i]);
}

void tags_of(const SipMessage* const* messages, const SipMessage* const* next, uint64_t* tags) {
  alignas(64) uint64_t k0[lanes], k1[lanes], last[lanes];
  const std::byte *heads[lanes], *rests[lanes], *next_heads[lanes], *next_rests[lanes];
  const size_t head = messages[0]->head.size(), rest = messages[0]->rest.size();
  for (size_t i = 0; i < lanes; ++i) {
    k0[i] = messages[i]->key.k0, k1[i] = messages[i]->key.k1;
    heads[i] = messages[i]->head.data(), rests[i] = messages[i]->rest.data();
    next_heads[i] = next[i]->head.data(), next_rests[i] = next[i]->rest.data();
    last[i] = 0;
    if (rest % 8 != 0) std::memcpy(&last[i], rests[i] + rest / 8 * 8, rest % 8);
    last[i] |= static_cast<uint64_t>(head + rest) << 56;
  }
  const V key0 = hn::Load(words, k0), key1 = hn::Load(words, k1);
  State state{hn::Xor(key0, hn::Set(words, 0x736f6d6570736575ull)), hn::Xor(key1, hn::Set(words, 0x646f72616e646f6dull)),
              hn::Xor(key0, hn::Set(words, 0x6c7967656e657261ull)), hn::Xor(key1, hn::Set(words, 0x7465646279746573ull))};
  absorb(state, heads, head, next_heads);
  absorb(state, rests, rest / 8 * 8, next_rests);
  state.word(hn::Load(words, last));
  state.v2 = hn::Xor(state.v2, hn::Set(words, 0xff));
  for (int i = 0; i < 4; ++i) state.round();
  hn::StoreU(hn::Xor(hn::Xor(state.v0, state.v1), hn::Xor(state.v2, state.v3)), words, tags);
}

constexpr SipLanes kernel{.target = HWY_TARGET, .count = lanes, .tags = tags_of};

#else
constexpr SipLanes kernel{};
#endif

}  // namespace

const SipLanes& sip_lanes() {
  static constexpr SipLanes lanes_of_target = kernel;
  return lanes_of_target;
}

}  // namespace HWY_NAMESPACE
}  // namespace unisono
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace unisono {
namespace {

constexpr RunnableTables<SipLanes, 1>::Function compiled[] = {HWY_CHOOSE_TARGET_LIST(sip_lanes),
                                                              HWY_CHOOSE_FALLBACK(sip_lanes)};

}  // namespace

std::span<const SipLanes* const> runnable_sip_lanes() {
  static const RunnableTables<SipLanes, std::size(compiled)> runnable(compiled, HWY_SUPPORTED_TARGETS);
  return runnable.all();
}

}  // namespace unisono
#endif  // HWY_ONCE

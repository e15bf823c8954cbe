// Compares tags and link keys with known values. Also tests that a tag does not depend on how the message is split into parts.
#include "wire/siphash.h"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "base/random.h"
#include "wire/siphash_lanes.h"

namespace unisono {
namespace {

constexpr SipKey key_of_paper{.k0 = 0x0706050403020100ull, .k1 = 0x0f0e0d0c0b0a0908ull};  // the paper's key: bytes 00 … 0f

// Returns the bytes 00, 01, …, ff, 00, ….
std::vector<std::byte> counting(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(SipHash, has_the_published_values) {
  EXPECT_EQ(siphash_2_4(key_of_paper, {}), 0x726fdb47dd0e0e31ull);
  EXPECT_EQ(siphash_2_4(key_of_paper, counting(8)), 0x93f5f5799a932462ull);
  EXPECT_EQ(siphash_2_4(key_of_paper, counting(15)), 0xa129ca6149be45e5ull);  // example of the SipHash paper
  EXPECT_EQ(siphash_2_4(key_of_paper, counting(63)), 0x958a324ceb064572ull);
}

// SipHash's last word holds the length modulo 256, so a longer message must wrap there.
TEST(SipHash, hashes_messages_longer_than_256_bytes) {
  EXPECT_EQ(siphash_2_4(key_of_paper, counting(1500)), 0xb15522cf08ed635full);
}

TEST(SipHash, does_not_depend_on_where_the_message_is_cut) {
  for (const size_t size : {0u, 1u, 7u, 8u, 9u, 16u, 63u, 71u, 300u}) {
    const auto whole = counting(size);
    const auto expected = siphash_2_4(key_of_paper, whole);
    for (size_t cut = 0; cut <= size; ++cut) {
      const std::span<const std::byte> all(whole);
      EXPECT_EQ(siphash_2_4(key_of_paper, all.first(cut), all.subspan(cut)), expected) << size << " bytes, cut at " << cut;
    }
  }
}

TEST(SipHash, does_not_depend_on_where_in_memory_the_parts_are) {
  const auto whole = counting(148);
  const auto expected = siphash_2_4(key_of_paper, whole);
  for (size_t offset = 0; offset < 8; ++offset) {
    std::vector<std::byte> head(48 + offset),
        rest(100 + offset);  // allocated exactly: a sanitizer reports a read of one more byte
    std::copy_n(whole.begin(), 48, head.begin() + static_cast<ptrdiff_t>(offset));
    std::copy_n(whole.begin() + 48, 100, rest.begin() + static_cast<ptrdiff_t>(offset));
    EXPECT_EQ(siphash_2_4(key_of_paper, std::span(head).subspan(offset), std::span(rest).subspan(offset)), expected);
  }
}

std::vector<const SipMessage*> pointers_to(const std::vector<SipMessage>& messages) {
  std::vector<const SipMessage*> pointers;
  for (const auto& message : messages) pointers.push_back(&message);
  return pointers;
}

// Compares every kernel with the function for one message. The messages have one size or mixed sizes; some sizes are no
// multiple of a vector. Each message's memory is allocated exactly, so a sanitizer reports reads past its end.
TEST(SipHash, a_batch_equals_single_hashes) {
  Random random(9);
  for (const size_t count : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 16u, 63u, 64u, 65u, 130u}) {
    for (const int kinds : {1, 2, 5}) {
      std::vector<std::vector<std::byte>> heads, rests;
      std::vector<SipMessage> messages;
      std::vector<uint64_t> expected;
      for (size_t i = 0; i < count; ++i) {
        const std::array<size_t, 5> head_sizes{48, 48, 56, 0, 13}, rest_sizes{1416, 777, 0, 65, 1416};
        const auto kind = random.below(static_cast<uint64_t>(kinds));
        auto& head = heads.emplace_back(head_sizes[kind]);
        auto& rest = rests.emplace_back(rest_sizes[kind]);
        for (auto* part : {&head, &rest}) {
          for (auto& byte : *part) byte = static_cast<std::byte>(random.next());
        }
        const SipKey key{.k0 = random.next(), .k1 = random.next()};
        messages.push_back({key, head, rest});
        expected.push_back(siphash_2_4(key, head, rest));
      }
      std::vector<uint64_t> tags(count);
      const auto pointers = pointers_to(messages);
      siphash_2_4(pointers, tags);
      EXPECT_EQ(tags, expected) << count << " messages of " << kinds << " kinds";
      std::vector<const SipLanes*> kernels(runnable_sip_lanes().begin(), runnable_sip_lanes().end());
      kernels.push_back(nullptr);
      for (const auto* kernel : kernels) {
        std::fill(tags.begin(), tags.end(), 0);
        siphash_by(kernel, pointers_to(messages), tags);
        EXPECT_EQ(tags, expected) << count << " messages of " << kinds << " kinds, "
                                  << (kernel == nullptr ? "none" : hwy::TargetName(kernel->target));
      }
    }
  }
}

TEST(SipHash, a_batch_of_messages_of_every_length_equals_single_hashes) {
  for (const auto* kernel : runnable_sip_lanes()) {
    for (size_t size = 0; size < 150; ++size) {
      std::vector<std::vector<std::byte>> parts(kernel->count, counting(size));
      std::vector<SipMessage> messages;
      for (size_t i = 0; i < parts.size(); ++i)
        messages.push_back(
            {{.k0 = i, .k1 = 7 * i}, std::span(parts[i]).first(size / 16 * 8), std::span(parts[i]).subspan(size / 16 * 8)});
      std::vector<uint64_t> tags(parts.size());
      siphash_by(kernel, pointers_to(messages), tags);
      for (size_t i = 0; i < parts.size(); ++i)
        EXPECT_EQ(tags[i], siphash_2_4(messages[i].key, parts[i]))
            << size << " bytes, lane " << i << ", " << hwy::TargetName(kernel->target);
    }
  }
}

GroupKey counting_key() {
  GroupKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

// Compares a link key with fixed bytes, derived as docs/reference/wire_format.md says.
TEST(LinkKey, has_the_documented_bytes) {
  // in memory order: c25b6dc1ade6a246 e27961a3f7c6c81f
  const SipKey expected{.k0 = 0x46a2e6adc16d5bc2ull, .k1 = 0x1fc8c6f7a36179e2ull};
  EXPECT_EQ(link_key(counting_key(), 2, 5, 7, 0x1122334455667788ull), expected);
}

TEST(LinkKey, depends_on_each_of_its_inputs) {
  const auto key = counting_key();
  auto other = key;
  other[15] ^= std::byte{1};
  const std::vector<SipKey> keys{link_key(key, 2, 5, 7, 9),  link_key(key, 5, 2, 7, 9), link_key(key, 3, 5, 7, 9),
                                 link_key(key, 2, 4, 7, 9),  link_key(key, 2, 5, 8, 9), link_key(key, 2, 5, 7, 1ull << 63),
                                 link_key(other, 2, 5, 7, 9)};
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(keys[i].k0, keys[j].k0) << i << ", " << j;
      EXPECT_NE(keys[i].k1, keys[j].k1) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace unisono

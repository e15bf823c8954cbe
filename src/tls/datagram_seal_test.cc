#include "tls/datagram_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono {
namespace {

constexpr SealCipher ciphers[] = {SealCipher::aes_128_gcm, SealCipher::chacha20_poly1305};

SealSecret secret(uint8_t fill = 7) {
  SealSecret result;
  result.bytes.fill(std::byte{fill});
  return result;
}

Bytes random_bytes(Random& random, size_t count) {
  Bytes bytes(count);
  for (auto& each : bytes) each = static_cast<std::byte>(random.next());
  return bytes;
}

struct Datagram {
  uint64_t number = 0;
  Bytes head, payload;
  SealTag tag{};
};

Datagram seal(DatagramSealer& sealer, uint64_t number, ByteView payload, size_t head_bytes = 48) {
  Datagram made{.number = number, .head = Bytes(head_bytes, std::byte{3}), .payload = Bytes(payload.size())};
  sealer.seal(number, made.head, payload, made.payload.data(), made.tag);
  return made;
}

std::optional<uint64_t> open(DatagramOpener& opener, Datagram& datagram) {
  return opener.open(static_cast<uint32_t>(datagram.number), datagram.head, datagram.payload, datagram.tag);
}

TEST(DatagramSeal, every_size_comes_back_as_it_was) {
  for (const auto cipher : ciphers) {
    DatagramSealer sealer(cipher, secret());
    DatagramOpener opener(cipher, secret());
    Random random(1);
    uint64_t number = 0;
    for (size_t size = 0; size <= 8908; size += size < 1500 ? 1 : 97) {
      const auto payload = random_bytes(random, size);
      auto datagram = seal(sealer, ++number, payload);
      if (size >= 16) {
        EXPECT_NE(datagram.payload, payload);
      }
      ASSERT_EQ(open(opener, datagram), number);
      ASSERT_EQ(datagram.payload, payload);
    }
  }
}

TEST(DatagramSeal, a_payload_may_be_encrypted_where_it_lies) {
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret()), other(SealCipher::aes_128_gcm, secret());
  Random random(2);
  const auto payload = random_bytes(random, 1000);
  const auto expected = seal(sealer, 1, payload);
  Bytes place = payload;
  SealTag tag;
  other.seal(1, expected.head, place, place.data(), tag);
  EXPECT_EQ(place, expected.payload);
  EXPECT_EQ(tag, expected.tag);
}

TEST(DatagramSeal, every_flipped_bit_is_found) {
  for (const auto cipher : ciphers) {
    DatagramSealer sealer(cipher, secret());
    DatagramOpener opener(cipher, secret());
    const auto genuine = seal(sealer, 1, Bytes(40, std::byte{9}));
    for (size_t bit = 0; bit < 8 * (48 + 40 + 16); ++bit) {
      auto altered = genuine;
      const size_t at = bit / 8;
      auto& byte = at < 48 ? altered.head[at] : at < 88 ? altered.payload[at - 48] : altered.tag[at - 88];
      byte ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(open(opener, altered)) << bit;
    }
    for (unsigned bit = 0; bit < 32; ++bit) {
      auto altered = genuine;
      altered.number ^= uint64_t{1} << bit;
      EXPECT_FALSE(open(opener, altered)) << "number " << bit;
    }
    auto untouched = genuine;
    EXPECT_TRUE(open(opener, untouched));
  }
}

TEST(DatagramSeal, another_secret_or_another_cipher_opens_nothing) {
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret(1));
  DatagramOpener other(SealCipher::aes_128_gcm, secret(2)), chacha(SealCipher::chacha20_poly1305, secret(1));
  auto datagram = seal(sealer, 1, Bytes(100)), again = datagram;
  EXPECT_FALSE(open(other, datagram));
  EXPECT_FALSE(open(chacha, again));
}

TEST(DatagramSeal, equal_payloads_differ_on_the_wire) {
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret());
  const auto first = seal(sealer, 1, Bytes(64)), second = seal(sealer, 2, Bytes(64));
  EXPECT_NE(first.payload, second.payload);
}

TEST(DatagramSeal, the_low_half_of_the_number_wraps) {
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret(), uint64_t{1} << 30);
  DatagramOpener opener(SealCipher::aes_128_gcm, secret(), uint64_t{1} << 30);
  constexpr uint64_t wrap = uint64_t{1} << 32;
  uint64_t number = 0;
  const auto pass = [&](uint64_t next) {
    auto datagram = seal(sealer, number = next, Bytes(10));
    EXPECT_EQ(open(opener, datagram), next);
    return datagram;
  };
  for (uint64_t next = 1; next < 2 * wrap; next += uint64_t{1} << 29) pass(next);
  // Around the next wrap, datagrams are reordered.
  for (uint64_t next = number; next < 3 * wrap - 50; next += uint64_t{1} << 29) pass(next + 1);
  std::vector<Datagram> sent;
  for (uint64_t next = 3 * wrap - 20; next < 3 * wrap + 20; ++next) sent.push_back(seal(sealer, next, Bytes(10)));
  std::reverse(sent.begin(), sent.end());
  for (auto& datagram : sent) EXPECT_EQ(open(opener, datagram), datagram.number);
}

TEST(DatagramSeal, a_recording_of_the_same_low_half_is_refused) {
  constexpr uint64_t per_key = uint64_t{1} << 31, wrap = uint64_t{1} << 32;
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret(), per_key);
  DatagramOpener opener(SealCipher::aes_128_gcm, secret(), per_key);
  const auto old = seal(sealer, 5, Bytes(10));
  for (uint64_t number = 10; number <= wrap; number += uint64_t{1} << 29) {
    auto datagram = seal(sealer, number, Bytes(10));
    ASSERT_TRUE(open(opener, datagram));
  }
  auto again = old;
  EXPECT_FALSE(open(opener, again));
}

TEST(DatagramSeal, keys_change_under_loss_and_reordering) {
  constexpr uint64_t per_key = 64;
  for (const auto cipher : ciphers) {
    DatagramSealer sealer(cipher, secret(), per_key);
    DatagramOpener opener(cipher, secret(), per_key);
    Random random(20261130);
    std::vector<Datagram> on_the_way;
    uint64_t opened = 0;
    for (uint64_t number = 1; number < 40 * per_key; ++number) {
      auto datagram = seal(sealer, number, random_bytes(random, random.below(200)));
      if (random.chance(0.3)) continue;
      on_the_way.push_back(std::move(datagram));
      if (on_the_way.size() < 20) continue;
      // No datagram is overtaken by as many as a key has.
      const bool is_late = number - on_the_way.front().number > per_key / 2;
      const auto at = is_late ? 0 : random.below(on_the_way.size());
      ASSERT_EQ(open(opener, on_the_way[at]), on_the_way[at].number);
      on_the_way.erase(on_the_way.begin() + static_cast<ptrdiff_t>(at));
      ++opened;
    }
    EXPECT_GT(opened, 20 * per_key);
    EXPECT_GT(opener.highest(), 39 * per_key);
  }
}

TEST(DatagramSeal, a_forged_number_does_not_move_the_keys) {
  constexpr uint64_t per_key = 64;
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret(), per_key);
  DatagramOpener opener(SealCipher::aes_128_gcm, secret(), per_key);
  for (uint32_t low = 0; low < 2'000'000'000u; low += 9'999'991) {
    Bytes payload(30);
    EXPECT_FALSE(opener.open(low, Bytes(48), payload, {}));
  }
  for (uint32_t low = 1; low < 200; ++low) {
    Bytes payload(30);
    EXPECT_FALSE(opener.open(low, Bytes(48), payload, {}));
  }
  for (const uint64_t number : {1u, 63u, 64u, 128u, 191u, 127u}) {
    auto datagram = number == 127 ? Datagram{} : seal(sealer, number, Bytes(30));
    EXPECT_EQ(open(opener, datagram).has_value(), number != 127u) << number;
  }
}

TEST(DatagramSealDeathTest, a_number_is_never_used_twice) {
  DatagramSealer sealer(SealCipher::aes_128_gcm, secret());
  (void)seal(sealer, 5, Bytes(10));
  EXPECT_DEATH((void)seal(sealer, 5, Bytes(10)), "");
  EXPECT_DEATH((void)seal(sealer, 4, Bytes(10)), "");
}

}  // namespace
}  // namespace unisono

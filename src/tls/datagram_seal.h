// Encryption of datagrams that may get lost, overtake each other and arrive twice. A series is a sequence of datagrams in one
// direction. Each has a number of 64 bits, of which the datagram carries the low half, as in QUIC (RFC 9000, section 17.1).
//
// A number is used once, and the nonce depends on it alone. After `numbers_per_key` numbers, both ends derive the next key from
// the present one by HKDF (RFC 5869); the number tells which key a datagram needs, so no message is exchanged. The receiver
// keeps three keys, so datagrams may be reordered across a change. Whether a number has arrived before is the caller's affair.
// After construction, no call allocates memory except at a change of keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

struct evp_cipher_ctx_st;

namespace unisono {

enum class SealCipher : uint8_t { aes_128_gcm = 0, chacha20_poly1305 = 1 };
const char* name(SealCipher cipher);
// Returns AES-128-GCM if this processor has instructions for it, because it is twice as fast there.
SealCipher fastest_cipher();

inline constexpr size_t seal_tag_bytes = 16;
using SealTag = std::array<std::byte, seal_tag_bytes>;

// 32 secret bytes. They are cleared when the object ends.
struct SealSecret {
  SealSecret() = default;
  SealSecret(const SealSecret&) = default;
  SealSecret& operator=(const SealSecret&) = default;
  ~SealSecret();
  // Derives other secret bytes by HKDF-Expand. They do not help to find these.
  SealSecret derive(std::string_view purpose, std::span<const std::byte> rest = {}) const;

  std::array<std::byte, 32> bytes{};
};

// One AEAD key, ready to be used.
class SealKey {
 public:
  SealKey() = default;
  // Throws std::bad_alloc if there is no memory.
  SealKey(SealCipher cipher, const SealSecret& secret, bool seals);
  // `out` may be payload.data(); otherwise the two must not overlap.
  bool seal(uint64_t number, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out, SealTag& tag);
  // Decrypts in place. Returns false if anything was altered; `payload` is useless then.
  bool open(uint64_t number, std::span<const std::byte> head, std::span<std::byte> payload, const SealTag& tag);

 private:
  struct Release {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Release> context_;
  std::array<std::byte, 12> nonce_{};
};

// AES-GCM loses confidentiality with the number of messages under one key (RFC 9001, appendix B, says 2^23 for QUIC).
inline constexpr uint64_t numbers_per_key_max = uint64_t{1} << 23;

class DatagramSealer {
 public:
  DatagramSealer(SealCipher cipher, const SealSecret& secret, uint64_t numbers_per_key = numbers_per_key_max);
  // Authenticates `head`, and encrypts `payload` into `out`. Each number must be higher than the one before.
  void seal(uint64_t number, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out, SealTag& tag);

 private:
  SealCipher cipher_;
  SealSecret secret_;  // of the next key
  uint64_t numbers_per_key_, key_number_ = 0, last_ = 0;
  SealKey key_;
};

class DatagramOpener {
 public:
  DatagramOpener(SealCipher cipher, const SealSecret& secret, uint64_t numbers_per_key = numbers_per_key_max);
  // Decrypts `payload` in place. Returns the number of the datagram, of which `low` is the low half; nothing if its sender does
  // not have the key, or if it was altered.
  std::optional<uint64_t> open(uint32_t low, std::span<const std::byte> head, std::span<std::byte> payload, const SealTag& tag);
  uint64_t highest() const { return highest_; }

 private:
  static constexpr size_t kept_keys = 3;  // the key of the highest number, the one before, and the one after
  SealKey* find(uint64_t key_number);

  SealCipher cipher_;
  SealSecret secret_;  // of the key key_count_
  uint64_t numbers_per_key_, highest_ = 0;
  uint64_t key_count_ = 0;               // so many keys were derived; the last ones are kept
  std::array<SealKey, kept_keys> keys_;  // key number n is at n % kept_keys
};

}  // namespace unisono

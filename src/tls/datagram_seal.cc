#include "tls/datagram_seal.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <sodium.h>

#include <climits>
#include <cstring>
#include <new>

#include "base/check.h"

namespace unisono {
namespace {

const unsigned char* as_unsigned(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* as_unsigned(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

const EVP_CIPHER* algorithm(SealCipher cipher) {
  return cipher == SealCipher::aes_128_gcm ? EVP_aes_128_gcm() : EVP_chacha20_poly1305();
}

// RFC 8446, section 5.3: the number, big-endian, over the last 8 bytes.
std::array<std::byte, 12> with_number(std::array<std::byte, 12> nonce, uint64_t number) {
  for (size_t i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<std::byte>(number >> (8 * i));
  return nonce;
}

}  // namespace

const char* name(SealCipher cipher) { return cipher == SealCipher::aes_128_gcm ? "AES-128-GCM" : "ChaCha20-Poly1305"; }

SealCipher fastest_cipher() {
  return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() != 0 ? SealCipher::aes_128_gcm
                                                                         : SealCipher::chacha20_poly1305;
}

SealSecret::~SealSecret() { sodium_memzero(bytes.data(), bytes.size()); }

SealSecret SealSecret::derive(std::string_view purpose, std::span<const std::byte> rest) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, as_unsigned(bytes), bytes.size());
  crypto_auth_hmacsha256_update(&state, as_unsigned(std::as_bytes(std::span(purpose))), purpose.size());
  // A byte that no purpose contains keeps (purpose, rest) apart from every other pair.
  const unsigned char separator = 0, first_block = 1;
  crypto_auth_hmacsha256_update(&state, &separator, 1);
  crypto_auth_hmacsha256_update(&state, as_unsigned(rest), rest.size());
  crypto_auth_hmacsha256_update(&state, &first_block, 1);
  SealSecret result;
  static_assert(crypto_auth_hmacsha256_BYTES == sizeof result.bytes);
  crypto_auth_hmacsha256_final(&state, as_unsigned(result.bytes.data()));
  sodium_memzero(&state, sizeof state);
  return result;
}

// One key --------------------------------------------------------------------------------------------------------------

void SealKey::Release::operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }

SealKey::SealKey(SealCipher cipher, const SealSecret& secret, bool seals) : context_(EVP_CIPHER_CTX_new()) {
  const auto key = secret.derive("unisono key"), nonce = secret.derive("unisono nonce");
  std::memcpy(nonce_.data(), nonce.bytes.data(), nonce_.size());
  if (!context_ || EVP_CipherInit_ex(context_.get(), algorithm(cipher), nullptr, as_unsigned(key.bytes), as_unsigned(nonce_),
                                     seals ? 1 : 0) != 1) {
    ERR_clear_error();
    throw std::bad_alloc();
  }
}

bool SealKey::seal(uint64_t number, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
                   SealTag& tag) {
  auto* const context = context_.get();
  const auto nonce = with_number(nonce_, number);
  unsigned char none[16];
  int bytes = 0;
  return EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, as_unsigned(nonce)) == 1 &&
         EVP_EncryptUpdate(context, nullptr, &bytes, as_unsigned(head), static_cast<int>(head.size())) == 1 &&
         (payload.empty() ||
          EVP_EncryptUpdate(context, as_unsigned(out), &bytes, as_unsigned(payload), static_cast<int>(payload.size())) == 1) &&
         EVP_EncryptFinal_ex(context, none, &bytes) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, seal_tag_bytes, tag.data()) == 1;
}

bool SealKey::open(uint64_t number, std::span<const std::byte> head, std::span<std::byte> payload, const SealTag& tag) {
  auto* const context = context_.get();
  const auto nonce = with_number(nonce_, number);
  auto expected = tag;
  unsigned char none[16];
  int bytes = 0;
  return EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, as_unsigned(nonce)) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, seal_tag_bytes, expected.data()) == 1 &&
         EVP_DecryptUpdate(context, nullptr, &bytes, as_unsigned(head), static_cast<int>(head.size())) == 1 &&
         (payload.empty() || EVP_DecryptUpdate(context, as_unsigned(payload.data()), &bytes, as_unsigned(payload),
                                               static_cast<int>(payload.size())) == 1) &&
         EVP_DecryptFinal_ex(context, none, &bytes) == 1;
}

// A series -------------------------------------------------------------------------------------------------------------

DatagramSealer::DatagramSealer(SealCipher cipher, const SealSecret& secret, uint64_t numbers_per_key)
    : cipher_(cipher), secret_(secret.derive("unisono next")), numbers_per_key_(numbers_per_key), key_(cipher, secret, true) {}

void DatagramSealer::seal(uint64_t number, std::span<const std::byte> head, std::span<const std::byte> payload, std::byte* out,
                          SealTag& tag) {
  UNISONO_CHECK(number > last_);  // a nonce that is used twice would give the key away
  last_ = number;
  for (; key_number_ < number / numbers_per_key_; ++key_number_) {
    key_ = SealKey(cipher_, secret_, true);
    secret_ = secret_.derive("unisono next");
  }
  UNISONO_CHECK(key_.seal(number, head, payload, out, tag));
}

DatagramOpener::DatagramOpener(SealCipher cipher, const SealSecret& secret, uint64_t numbers_per_key)
    : cipher_(cipher), secret_(secret), numbers_per_key_(numbers_per_key) {
  (void)find(0);
}

// Returns null if the key is not kept any more, or is too far ahead. Whoever has no key can only cause that one is derived.
SealKey* DatagramOpener::find(uint64_t key_number) {
  const auto newest = highest_ / numbers_per_key_;
  if (key_number > newest + 1 || key_number + 1 < newest) return nullptr;
  for (; key_count_ <= key_number; ++key_count_) {
    keys_[key_count_ % kept_keys] = SealKey(cipher_, secret_, false);
    secret_ = secret_.derive("unisono next");
  }
  return &keys_[key_number % kept_keys];
}

std::optional<uint64_t> DatagramOpener::open(uint32_t low, std::span<const std::byte> head, std::span<std::byte> payload,
                                             const SealTag& tag) {
  // Of all numbers with this low half, the datagram has the one that is next to the highest so far.
  const auto ahead = static_cast<int32_t>(low - static_cast<uint32_t>(highest_));
  if (ahead < 0 && highest_ < uint64_t{0} - static_cast<uint64_t>(int64_t{ahead})) return std::nullopt;
  const auto number = highest_ + static_cast<uint64_t>(int64_t{ahead});
  auto* const key = find(number / numbers_per_key_);
  if (key == nullptr || !key->open(number, head, payload, tag)) return std::nullopt;
  if (ahead > 0) highest_ = number;
  return number;
}

}  // namespace unisono

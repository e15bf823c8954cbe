#include "elastic/links/run_key.h"

#include <sodium.h>

#include <cstring>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {
namespace {

constexpr size_t secret_bytes_max = 4096;
constexpr unsigned long long argon_passes = 2;
constexpr size_t argon_bytes = 64u << 20;

using Key = std::array<std::byte, 32>;
static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == std::tuple_size_v<Key> &&
              crypto_aead_chacha20poly1305_ietf_ABYTES == sizeof(MessageTag));
static_assert(crypto_aead_chacha20poly1305_ietf_NPUBBYTES == sizeof(uint32_t) + sizeof(uint64_t));

const unsigned char* raw(const void* data) { return static_cast<const unsigned char*>(data); }

// Returns the BLAKE2b hash of `context` followed by `parts`. Only the last part may vary in length. Two different lists of
// parts therefore never give the same input.
template <size_t bytes>
std::array<std::byte, bytes> hash(std::string_view context, const Key* key, std::initializer_list<ByteView> parts) {
  std::array<std::byte, bytes> result;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key == nullptr ? nullptr : raw(key->data()), key == nullptr ? 0 : key->size(), bytes);
  crypto_generichash_update(&state, raw(context.data()), context.size());
  for (const auto& part : parts) crypto_generichash_update(&state, raw(part.data()), part.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(result.data()), bytes);
  sodium_memzero(&state, sizeof state);
  return result;
}

template <typename T>
ByteView bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

LinkSeal::~LinkSeal() { sodium_memzero(key_.data(), key_.size()); }

MessageTag LinkSeal::tag(uint32_t kind, uint64_t number, ByteView message) const {
  unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
  std::memcpy(nonce, &kind, sizeof kind);
  std::memcpy(nonce + sizeof kind, &number, sizeof number);
  MessageTag tag;
  unsigned char no_text = 0;
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(&no_text, reinterpret_cast<unsigned char*>(&tag), nullptr, nullptr, 0,
                                                     raw(message.data()), message.size(), nullptr, nonce, raw(key_.data()));
  return tag;
}

MessageTag LinkSeal::seal(uint32_t kind, ByteView message) { return tag(kind, next_++, message); }

bool LinkSeal::open(uint32_t kind, uint64_t number, const MessageTag& shown, ByteView message) {
  if (number != next_) return false;
  const auto right = tag(kind, number, message);
  if (sodium_memcmp(&right, &shown, sizeof right) != 0) return false;
  ++next_;
  return true;
}

Result<RunKey> RunKey::make(const std::string& run_id, const std::string& secret) {
  if (secret.size() > secret_bytes_max) {
    return Status(Code::invalid, concat("run key: ", secret.size(), " bytes; up to ", secret_bytes_max, " are possible"));
  }
  if (sodium_init() < 0) return Status(Code::unavailable, "run key: libsodium finds no random device");
  RunKey key;
  const auto run = std::as_bytes(std::span(run_id));
  if (secret.empty()) {
    key.job_ = hash<16>("unisono job", nullptr, {run});
    return key;
  }
  const auto salt = hash<crypto_pwhash_SALTBYTES>("unisono salt", nullptr, {run});
  struct {
    JobKey job;
    Key master;
  } derived;
  if (crypto_pwhash(reinterpret_cast<unsigned char*>(&derived), sizeof derived, secret.data(), secret.size(), raw(salt.data()),
                    argon_passes, argon_bytes, crypto_pwhash_ALG_ARGON2ID13) != 0) {
    return Status(Code::unavailable,
                  concat("run key: Argon2id needs ", argon_bytes >> 20, " MiB of memory, which are not available"));
  }
  key.job_ = derived.job;
  key.master_ = derived.master;
  key.authenticates_ = true;
  sodium_memzero(&derived, sizeof derived);
  return key;
}

RunKey::~RunKey() { sodium_memzero(master_.data(), master_.size()); }

LinkSeal RunKey::seal(const LinkEnd& from, const LinkEnd& to) const {
  UNISONO_CHECK(authenticates_);
  return LinkSeal(hash<32>("unisono link", &master_, {bytes_of(from.id), from.nonce, bytes_of(to.id), to.nonce}));
}

LinkNonce RunKey::draw_nonce() {
  LinkNonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace unisono

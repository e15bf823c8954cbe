#include "tls/secret_key.h"

#include <sodium.h>

#include "base/concat.h"

namespace unisono {
namespace {

const unsigned char* as_unsigned(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

constexpr std::string_view white_space = " \t\r\n";

}  // namespace

void SecretKey::Release::operator()(std::byte* memory) const { sodium_free(memory); }

Result<std::shared_ptr<std::byte>> SecretKey::allocate() {
  if (sodium_init() < 0) return Status(Code::unavailable, "the key: libsodium finds no source of random numbers");
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(sodium_malloc(bytes)), Release());
  if (!memory) return Status(Code::unavailable, "the key: there is no memory for it");
  return memory;
}

Result<SecretKey> SecretKey::draw() {
  auto memory = allocate();
  if (!memory.ok()) return memory.status();
  randombytes_buf(memory->get(), bytes);
  (void)sodium_mprotect_readonly(memory->get());
  return SecretKey(std::move(*memory));
}

Result<SecretKey> SecretKey::from_hex(std::string_view text) {
  const auto begin = text.find_first_not_of(white_space);
  text = begin == std::string_view::npos ? std::string_view() : text.substr(begin);
  text = text.substr(0, text.find_last_not_of(white_space) + 1);
  auto memory = allocate();
  if (!memory.ok()) return memory.status();
  size_t count = 0;
  const char* end = nullptr;
  const bool digits = sodium_hex2bin(reinterpret_cast<unsigned char*>(memory->get()), bytes, text.data(), text.size(), nullptr,
                                     &count, &end) == 0;
  if (!digits || count != bytes || end != text.data() + text.size()) {
    return Status(Code::invalid, concat("a key has ", 2 * bytes, " hexadecimal digits; this one is another text, of ",
                                        text.size(), " characters. `unisono key` makes one"));
  }
  (void)sodium_mprotect_readonly(memory->get());
  return SecretKey(std::move(*memory));
}

std::string SecretKey::hex() const {
  std::string text(2 * bytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), as_unsigned(memory_.get()), bytes);
  text.pop_back();
  return text;
}

SecretKey::Derived SecretKey::derive(std::string_view purpose, std::span<const std::byte> rest) const {
  static_assert(crypto_auth_hmacsha256_BYTES == bytes && crypto_auth_hmacsha256_KEYBYTES == bytes);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, as_unsigned(memory_.get()), bytes);
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size());
  // A byte that no purpose contains keeps (purpose, rest) apart from every other pair.
  const unsigned char separator = 0;
  crypto_auth_hmacsha256_update(&state, &separator, 1);
  crypto_auth_hmacsha256_update(&state, as_unsigned(rest.data()), rest.size());
  Derived result;
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(result.data()));
  sodium_memzero(&state, sizeof state);
  return result;
}

bool operator==(const SecretKey& a, const SecretKey& b) {
  return sodium_memcmp(a.memory_.get(), b.memory_.get(), SecretKey::bytes) == 0;
}

}  // namespace unisono

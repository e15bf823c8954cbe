// The secret key of a job: 32 bytes that all its processes know and nobody else.
//
// A key lies in guarded memory of libsodium, which is locked, left out of core dumps, and cleared when the last copy of the
// object ends. Copies of the object share this memory. A key is never printed, except by hex(), which is for the file or the
// descriptor that hands it on.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "unisono/status.h"

namespace unisono {

class SecretKey {
 public:
  static constexpr size_t bytes = 32;
  using Derived = std::array<std::byte, bytes>;

  // Draws a key from the operating system's source of random numbers. Returns the error unavailable if there is no memory.
  static Result<SecretKey> draw();
  // Reads 64 hexadecimal digits, with white space around them. Returns the error invalid for anything else. The error text does
  // not contain what was read.
  static Result<SecretKey> from_hex(std::string_view text);
  std::string hex() const;

  // Derives 32 bytes for one purpose: HMAC-SHA256 of the purpose and `rest`, with this key. Knowledge of derived bytes does not
  // help to find the key, or the bytes of another purpose.
  Derived derive(std::string_view purpose, std::span<const std::byte> rest = {}) const;

  // Takes the same time whatever the keys are.
  friend bool operator==(const SecretKey& a, const SecretKey& b);

 private:
  struct Release {
    void operator()(std::byte* memory) const;
  };
  explicit SecretKey(std::shared_ptr<std::byte> memory) : memory_(std::move(memory)) {}
  static Result<std::shared_ptr<std::byte>> allocate();
  std::shared_ptr<std::byte> memory_;
};

}  // namespace unisono

// Where a process gets the secret key of its job from: a text, a file, or a descriptor that its launcher has left open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tls/secret_key.h"
#include "unisono/status.h"

namespace unisono {

// At most one of the members has a value.
struct KeySource {
  std::optional<SecretKey> key{};
  std::string file{};       // a path
  int32_t descriptor = -1;  // it must allow pread(), as a memfd or a file does: several groups of a process read it
  std::string name{};       // the option or the variable that gave it, for messages

  bool given() const { return key || !file.empty() || descriptor >= 0; }
};

// Reads the key. Returns nothing if there is no source.
// - unavailable: the file or the descriptor cannot be read.
// - invalid: other users of this host can read or write the file, or it does not contain a key.
Result<std::optional<SecretKey>> load_key(const KeySource& source);

// Returns a descriptor of memory that contains the key, and that a process started from here inherits. -1: it cannot be made;
// errno says why.
int make_key_descriptor(const SecretKey& key);

}  // namespace unisono

// The secret of a run, and the keys derived from it: the job key that connections show, and the tags of messages.
//
// Without a secret the job key is BLAKE2b-128 of the run id; that separates runs and protects from nobody. With a secret,
// Argon2id (two passes over 64 MiB; salt: BLAKE2b-128 of the run id) derives 48 bytes. 16 of them are the job key, which is
// sent in the clear; 32 never leave the process. Each direction of each link gets a key of its own from these 32 bytes and both
// sides' random nonces. So a message is valid at one position of one link only. This gives authenticity, not secrecy: messages
// can be read. It does not protect from an attacker that has the key.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "transports/connector.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

using LinkNonce = std::array<std::byte, 32>;

struct MessageTag {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

// The tags of one direction of one link. The tag of message n is that of ChaCha20-Poly1305 (RFC 8439) with nonce `u32 kind, u64
// n`, no text, and the message as additional data. The receiver accepts n = 0, 1, 2, … only, so no message is missing, repeated
// or out of order.
class LinkSeal {
 public:
  LinkSeal() = default;
  explicit LinkSeal(const std::array<std::byte, 32>& key) : key_(key) {}
  ~LinkSeal();

  // The number of the next message.
  uint64_t next() const { return next_; }
  // Returns the tag of the next message and counts it as sent.
  MessageTag seal(uint32_t kind, ByteView message);
  // True if the message is the next one and its tag shows knowledge of the key. Otherwise false, and nothing changes.
  [[nodiscard]] bool open(uint32_t kind, uint64_t number, const MessageTag& tag, ByteView message);

 private:
  MessageTag tag(uint32_t kind, uint64_t number, ByteView message) const;

  std::array<std::byte, 32> key_{};
  uint64_t next_ = 0;
};

struct LinkEnd {
  PeerId id;
  LinkNonce nonce{};
};

class RunKey {
 public:
  // An empty secret means no authentication. Errors. invalid: a secret longer than 4096 bytes. unavailable: no memory for
  // Argon2id.
  static Result<RunKey> make(const std::string& run_id, const std::string& secret);
  ~RunKey();

  const JobKey& job() const { return job_; }
  // There is a secret: links exchange nonces in greetings, and every message has a tag.
  bool authenticates() const { return authenticates_; }
  // The seal of the direction from one end to the other.
  LinkSeal seal(const LinkEnd& from, const LinkEnd& to) const;
  // Random bytes of the operating system.
  static LinkNonce draw_nonce();

 private:
  RunKey() = default;

  JobKey job_{};
  std::array<std::byte, 32> master_{};
  bool authenticates_ = false;
};

}  // namespace unisono

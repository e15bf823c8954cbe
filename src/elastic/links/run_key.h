// The secret of a run, and the keys that are derived from it: the job key, which connections present, and the keys of message
// tags.
//
// Without a secret, the job key is BLAKE2b-128 of the run's id. It keeps runs apart, but does not protect them. With a secret,
// Argon2id (two passes over 64 MiB; the salt is BLAKE2b-128 of the run's id) derives 48 bytes. 16 of these bytes are the job
// key, which is sent in the clear. The other 32 bytes never leave the process.
//
// Each direction of each link has its own key, which is derived from these 32 bytes and from the random nonces of both sides.
// Therefore a tag is valid for one message number on one link only. Messages are authenticated but not encrypted. Nothing
// protects a run from an attacker that has the secret.
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

// Makes and checks the message tags of one direction of one link. A tag is the tag that ChaCha20-Poly1305 (RFC 8439) gives for
// an empty plaintext, with the message as additional data. The nonce of message n is `u32 kind, u64 n`. The receiver accepts
// only n = 0, 1, 2, …, so no message can be missing, repeated or out of order.
class LinkSeal {
 public:
  LinkSeal() = default;
  explicit LinkSeal(const std::array<std::byte, 32>& key) : key_(key) {}
  ~LinkSeal();

  // Returns the number that the next message will have.
  uint64_t next() const { return next_; }
  // Returns the tag of the next message, and counts the message as sent.
  MessageTag seal(uint32_t kind, ByteView message);
  // Returns true if `number` is the next number and the tag was made with this key. Otherwise returns false and changes
  // nothing.
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
  // With an empty secret, messages are not authenticated. Returns the error invalid if the secret has more than 4096 bytes, and
  // the error unavailable if there is too little memory for Argon2id.
  static Result<RunKey> make(const std::string& run_id, const std::string& secret);
  ~RunKey();

  const JobKey& job() const { return job_; }
  // Returns true if there is a secret. If so, links exchange nonces in greetings, and every message has a tag.
  bool authenticates() const { return authenticates_; }
  // Returns the seal for the messages that `from` sends to `to` over one link.
  LinkSeal seal(const LinkEnd& from, const LinkEnd& to) const;
  // Returns random bytes that the operating system draws.
  static LinkNonce draw_nonce();

 private:
  RunKey() = default;

  JobKey job_{};
  std::array<std::byte, 32> master_{};
  bool authenticates_ = false;
};

}  // namespace unisono

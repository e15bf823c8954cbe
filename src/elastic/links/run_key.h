// The secret of a run and what follows from it: the key that connections show, and the tags that messages carry.
//
// Without a secret the job key is BLAKE2b-128 of the run id, which keeps apart runs and not people. With one, 48 bytes come
// from Argon2id (two passes over 64 MiB; salt: BLAKE2b-128 of the run id): 16 are the job key, which goes over the wire in the
// clear, and 32 stay here. From these and both sides' random nonces each direction of each link gets a key of its own, so that
// a message fits into one place of one link only. Authenticity, no secrecy: what is sent can be read. Of what an owner of the
// key does, nothing protects.
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

// One direction of one link: message number n has the tag of ChaCha20-Poly1305 (RFC 8439) with `u32 kind, u64 n` as nonce, no
// text, and the message as additional data. Whoever receives takes n = 0, 1, 2, … only: nothing is missing, repeated or out of
// order.
class LinkSeal {
 public:
  LinkSeal() = default;
  explicit LinkSeal(const std::array<std::byte, 32>& key) : key_(key) {}
  ~LinkSeal();

  // The number of the next message.
  uint64_t next() const { return next_; }
  // Of the next message, which then is the last.
  MessageTag seal(uint32_t kind, ByteView message);
  // True if the message is the next one, and of whom has the key; else nothing changes.
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
  // An empty secret is none. invalid: a secret longer than 4096 bytes; unavailable: no memory for Argon2id.
  static Result<RunKey> make(const std::string& run_id, const std::string& secret);
  ~RunKey();

  const JobKey& job() const { return job_; }
  // There is a secret: links are greeted with nonces, and every message has a tag.
  bool authenticates() const { return authenticates_; }
  // Of what goes from one end to the other.
  LinkSeal seal(const LinkEnd& from, const LinkEnd& to) const;
  // From the operating system.
  static LinkNonce draw_nonce();

 private:
  RunKey() = default;

  JobKey job_{};
  std::array<std::byte, 32> master_{};
  bool authenticates_ = false;
};

}  // namespace unisono

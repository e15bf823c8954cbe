// What all TLS connections of a process share: the keys of the job, and the settings of TLS.
//
// The protocol is TLS 1.3 (RFC 8446) with an external pre-shared key and X25519, so that a recorded connection stays secret if
// the key becomes known later. There are no certificates, tickets, resumptions, early data or renegotiation. The pre-shared
// key is derived from the job's key. The identity that names it in clear is 16 random bytes and their HMAC, so that it tells a
// listener nothing, and is another one in each connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tls/secret_key.h"
#include "unisono/status.h"

struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;

namespace unisono {

// An identity as it stands in the ClientHello.
struct TlsIdentity {
  std::array<std::byte, 16> random{};
  std::array<std::byte, 32> proof{};
};
static_assert(sizeof(TlsIdentity) == 48);

class TlsContext {
 public:
  // A connection that this process accepts may use any of the keys. One that it makes uses the first. Returns the error invalid
  // if there is no key, and unavailable if OpenSSL cannot be used.
  static Result<std::shared_ptr<const TlsContext>> make(std::vector<SecretKey> keys);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  TlsIdentity make_identity() const;
  // Returns the number of the key that the identity names, if this process has it.
  std::optional<size_t> find(std::span<const std::byte> identity) const;
  // Returns a session of OpenSSL's that holds the pre-shared key. The caller frees it. Returns null if memory is missing.
  ssl_session_st* make_session(ssl_st* connection, size_t key) const;
  const SecretKey& key(size_t number) const { return keys_[number]; }
  size_t key_count() const { return keys_.size(); }

 private:
  TlsContext(std::vector<SecretKey> keys, ssl_ctx_st* context) : keys_(std::move(keys)), context_(context) {}
  std::vector<SecretKey> keys_;
  ssl_ctx_st* context_;
};

}  // namespace unisono

#include "tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sodium.h>

#include <cstring>

#include "base/concat.h"
#include "tls/tls_connection.h"

namespace unisono {
namespace {

// One read of the network takes up to this many bytes, so that large transfers need fewer system calls.
constexpr size_t read_buffer_bytes = 128u << 10;

// AES-128-GCM where the processor has instructions for it, because it is twice as fast there; otherwise ChaCha20-Poly1305. Both
// are offered and accepted, and the accepting process chooses.
const char* cipher_suites() {
  return crypto_aead_aes256gcm_is_available() != 0 ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                                   : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
}

bool configure(SSL_CTX* context) {
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_quiet_shutdown(context, 1);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, read_buffer_bytes);
  SSL_CTX_set_psk_use_session_callback(context, TlsConnection::use_key);
  SSL_CTX_set_psk_find_session_callback(context, TlsConnection::find_key);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_ciphersuites(context, cipher_suites()) == 1 && SSL_CTX_set1_groups_list(context, "X25519") == 1 &&
         SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1;
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::make(std::vector<SecretKey> keys) {
  if (keys.empty()) return Status(Code::invalid, "TLS needs a key");
  // OpenSSL must not clean up at exit: a thread of ours may still use it then. Its configuration file must not change what is
  // negotiated.
  constexpr uint64_t options = OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG;
  SSL_CTX* context = OPENSSL_init_ssl(options, nullptr) == 1 ? SSL_CTX_new(TLS_method()) : nullptr;
  if (context == nullptr || !configure(context)) {
    const auto error = ERR_get_error();
    char text[256] = "no reason is given";
    if (error != 0) ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    SSL_CTX_free(context);
    return Status(Code::unavailable, concat("TLS cannot be used: OpenSSL says: ", static_cast<const char*>(text)));
  }
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(keys), context));
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsIdentity TlsContext::make_identity() const {
  TlsIdentity identity;
  randombytes_buf(identity.random.data(), identity.random.size());
  identity.proof = keys_.front().derive("unisono identity", identity.random);
  return identity;
}

std::optional<size_t> TlsContext::find(std::span<const std::byte> identity) const {
  if (identity.size() != sizeof(TlsIdentity)) return std::nullopt;
  TlsIdentity shown;
  std::memcpy(&shown, identity.data(), sizeof shown);
  for (size_t i = 0; i < keys_.size(); ++i) {
    const auto proof = keys_[i].derive("unisono identity", shown.random);
    if (sodium_memcmp(proof.data(), shown.proof.data(), proof.size()) == 0) return i;
  }
  return std::nullopt;
}

SSL_SESSION* TlsContext::make_session(SSL* connection, size_t key) const {
  // Both cipher suites use SHA-256, and a pre-shared key is bound to the hash alone.
  constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
  auto secret = keys_[key].derive("unisono tls");
  SSL_SESSION* session = SSL_SESSION_new();
  const bool made =
      session != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(secret.data()), secret.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(connection, aes_128_gcm_sha256)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  sodium_memzero(secret.data(), secret.size());
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace unisono

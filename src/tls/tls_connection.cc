#include "tls/tls_connection.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

#include "base/check.h"

namespace unisono {

// OpenSSL's view of the carrier.
struct TlsConnection::Method {
  static TlsConnection& self(BIO* bio) { return *static_cast<TlsConnection*>(BIO_get_data(bio)); }
  static int write(BIO* bio, const char* bytes, int count) {
    BIO_clear_retry_flags(bio);
    return self(bio).keep(bytes, static_cast<size_t>(count));
  }
  static int read(BIO* bio, char* bytes, int count) {
    BIO_clear_retry_flags(bio);
    const int result = self(bio).fetch(bytes, static_cast<size_t>(count));
    if (result <= 0 && !self(bio).carrier_ended_ && self(bio).error_ == 0) BIO_set_retry_read(bio);
    return result;
  }
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return self(bio).carrier_ended_ ? 1 : 0;
    return command == BIO_CTRL_FLUSH || command == BIO_CTRL_PUSH || command == BIO_CTRL_POP ? 1 : 0;
  }
  static BIO_METHOD* get() {
    static BIO_METHOD* const method = make();
    return method;
  }
  static BIO_METHOD* make() {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "unisono");
    const bool made = method != nullptr && BIO_meth_set_write(method, write) == 1 && BIO_meth_set_read(method, read) == 1 &&
                      BIO_meth_set_ctrl(method, control) == 1;
    if (!made) throw std::bad_alloc();
    return method;
  }
};

TlsConnection::TlsConnection(std::shared_ptr<const TlsContext> context, Role role, TlsCarrier& carrier,
                             uint64_t records_per_key)
    : context_(std::move(context)),
      carrier_(carrier),
      out_(std::make_unique_for_overwrite<std::byte[]>(out_bytes_max)),
      joined_(std::make_unique_for_overwrite<std::byte[]>(record_bytes_max)),
      records_per_key_(records_per_key) {
  BIO* const bio = BIO_new(Method::get());
  connection_ = bio == nullptr ? nullptr : SSL_new(context_->get());
  if (connection_ == nullptr) {
    BIO_free(bio);
    throw std::bad_alloc();
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(connection_, bio, bio);
  SSL_set_app_data(connection_, this);
  if (role == Role::client) {
    identity_ = context_->make_identity();
    SSL_set_connect_state(connection_);
    SSL_set_verify(connection_, SSL_VERIFY_PEER, nullptr);  // no certificate can pass, because no authority is known
  } else {
    SSL_set_accept_state(connection_);
  }
}

TlsConnection::~TlsConnection() { SSL_free(connection_); }

int TlsConnection::use_key(SSL* connection, const EVP_MD*, const unsigned char** identity, size_t* bytes,
                           SSL_SESSION** session) {
  auto& self = *static_cast<TlsConnection*>(SSL_get_app_data(connection));
  *session = self.context_->make_session(connection, 0);
  *identity = reinterpret_cast<const unsigned char*>(&self.identity_);
  *bytes = sizeof self.identity_;
  self.key_found_ = *session != nullptr;
  return self.key_found_ ? 1 : 0;
}

int TlsConnection::find_key(SSL* connection, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  auto& self = *static_cast<TlsConnection*>(SSL_get_app_data(connection));
  *session = nullptr;
  const auto number = self.context_->find(std::as_bytes(std::span(identity, bytes)));
  if (!number) return 1;  // The handshake then fails, because there is no certificate either.
  *session = self.context_->make_session(connection, *number);
  self.key_number_ = *number;
  self.key_found_ = *session != nullptr;
  return self.key_found_ ? 1 : 0;
}

// Called by OpenSSL with bytes for the other side. The caller of OpenSSL has made sure that there is space.
int TlsConnection::keep(const char* bytes, size_t count) {
  if (out_bytes_max - out_end_ < count) {
    std::memmove(out_.get(), out_.get() + out_begin_, out_end_ - out_begin_);
    out_end_ -= out_begin_;
    out_begin_ = 0;
  }
  if (out_bytes_max - out_end_ < count) return -1;
  std::memcpy(out_.get() + out_end_, bytes, count);
  out_end_ += count;
  return static_cast<int>(count);
}

// Called by OpenSSL for bytes of the other side.
int TlsConnection::fetch(char* bytes, size_t count) {
  if (carrier_ended_) return 0;
  const auto result = carrier_.read_encrypted(std::as_writable_bytes(std::span(bytes, count)), carrier_ended_);
  if (result < 0) return fail(static_cast<int>(-result));
  waits_ = result == 0 && !carrier_ended_;
  fetched_ += static_cast<uint64_t>(result);
  return result > 0 ? static_cast<int>(result) : carrier_ended_ ? 0 : -1;
}

int TlsConnection::flush() {
  while (can_write() && has_unflushed()) {
    const auto taken = carrier_.write_encrypted({out_.get() + out_begin_, out_end_ - out_begin_});
    if (taken < 0) write_error_ = static_cast<int>(-taken);
    if (taken < 0) break;
    if (taken == 0) break;
    out_begin_ += static_cast<size_t>(taken);
    carried_ += static_cast<uint64_t>(taken);
  }
  if (!has_unflushed()) out_begin_ = out_end_ = 0;
  return error();
}

// Returns -error.
int TlsConnection::fail(int error) {
  if (error_ == 0) error_ = error;
  has_buffered_ = false;
  return -error_;
}

// Called when OpenSSL has not done what it was asked for. Returns 0 if it only waits for bytes.
int TlsConnection::failure() {
  if (error_ != 0) return -error_;
  if (carrier_ended_ || waits_) return 0;
  // What OpenSSL says about it would help nobody: it cannot tell an attacker from another key.
  ERR_clear_error();
  return fail(handshake_done_ ? EBADMSG : EKEYREJECTED);
}

TlsConnection::Progress TlsConnection::handshake() {
  if (handshake_done_) return Progress::done;
  if (error() != 0) return Progress::failed;
  waits_ = false;
  const int result = SSL_do_handshake(connection_);
  if (result == 1 && (!key_found_ || SSL_session_reused(connection_) != 1)) fail(EKEYREJECTED);
  if (result != 1) {
    const int error = failure();
    // What was made may be an alert, so that the other side learns the reason.
    const int kept = std::exchange(error_, 0);
    (void)flush();
    error_ = kept != 0 ? kept : error_;
    if (error == 0 && carrier_ended_) fail(ECONNRESET);
    return this->error() == 0 ? Progress::pending : Progress::failed;
  }
  (void)flush();
  handshake_done_ = error() == 0;
  return handshake_done_ ? Progress::done : Progress::failed;
}

bool TlsConnection::export_key(std::string_view label, std::span<std::byte> out) const {
  return handshake_done_ && SSL_export_keying_material(connection_, reinterpret_cast<unsigned char*>(out.data()), out.size(),
                                                       label.data(), label.size(), nullptr, 0, 0) == 1;
}

void TlsConnection::add_mark() {
  const Mark mark{.carrier_end = carried_ + (out_end_ - out_begin_), .end = written_};
  if (mark_count_ == marks_max) {
    // The last two records become one: its bytes count as acknowledged when all of them are.
    marks_[(mark_begin_ + mark_count_ - 1) % marks_max] = mark;
    return;
  }
  marks_[(mark_begin_ + mark_count_++) % marks_max] = mark;
}

uint64_t TlsConnection::unacknowledged_bytes(uint64_t carrier_bytes) {
  const uint64_t acknowledged = carried_ - std::min(carrier_bytes, carried_);
  while (mark_count_ > 0 && marks_[mark_begin_].carrier_end <= acknowledged) {
    acknowledged_ = marks_[mark_begin_].end;
    mark_begin_ = (mark_begin_ + 1) % marks_max;
    --mark_count_;
  }
  return written_ - acknowledged_;
}

bool TlsConnection::write_record(std::span<const std::byte> plaintext) {
  if (records_++ == records_per_key_) {
    records_ = 1;
    if (SSL_key_update(connection_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  if (SSL_write(connection_, plaintext.data(), static_cast<int>(plaintext.size())) != static_cast<int>(plaintext.size()))
    return false;
  written_ += plaintext.size();
  add_mark();
  return true;
}

ptrdiff_t TlsConnection::write(const iovec* parts, int count) {
  if (handshake_done_) (void)flush();
  if (!can_write()) return -error();
  if (!handshake_done_ || has_unflushed()) return 0;
  // A key update takes a record, too.
  constexpr size_t space_min = record_bytes_max + 2 * record_overhead + 64;
  ptrdiff_t total = 0;
  size_t at = 0;  // of the first part
  while (count > 0) {
    const std::span part(static_cast<const std::byte*>(parts->iov_base) + at, parts->iov_len - at);
    if (part.empty()) {
      ++parts, --count, at = 0;
      continue;
    }
    if (out_bytes_max - (out_end_ - out_begin_) < space_min) {
      if (flush() != 0) return -error();
      if (out_bytes_max - (out_end_ - out_begin_) < space_min) break;
    }
    auto plaintext = part.first(std::min(part.size(), record_bytes_max));
    at += plaintext.size();
    if (plaintext.size() < record_bytes_max && count > 1) {
      // Short parts share a record, so that a frame's header does not cost one.
      std::memcpy(joined_.get(), plaintext.data(), plaintext.size());
      size_t joined = plaintext.size();
      while (joined < record_bytes_max && count > 1) {
        ++parts, --count;
        at = std::min(record_bytes_max - joined, parts->iov_len);
        if (at > 0) std::memcpy(joined_.get() + joined, parts->iov_base, at);
        joined += at;
      }
      plaintext = {joined_.get(), joined};
    }
    if (!write_record(plaintext)) {
      ERR_clear_error();
      write_error_ = EIO;
      return -EIO;
    }
    total += static_cast<ptrdiff_t>(plaintext.size());
  }
  return flush() != 0 ? -error() : total;
}

bool TlsConnection::has_ended() const { return carrier_ended_ || (SSL_get_shutdown(connection_) & SSL_RECEIVED_SHUTDOWN) != 0; }

ptrdiff_t TlsConnection::peek(std::byte& byte, bool& ended) {
  ended = false;
  if (error_ != 0) return -error_;
  if (!handshake_done_) return 0;
  waits_ = false;
  if (SSL_peek(connection_, &byte, 1) == 1) return 1;
  const int error = failure();
  ended = error == 0 && has_ended();
  return error;
}

ptrdiff_t TlsConnection::read(const iovec* parts, int count, bool& ended) {
  ended = false;
  has_buffered_ = incomplete_ = false;
  if (error_ != 0) return -error_;
  if (!handshake_done_) return 0;
  ptrdiff_t total = 0;
  size_t at = 0;
  while (count > 0) {
    if (at == parts->iov_len) {
      ++parts, --count, at = 0;
      continue;
    }
    const auto space = static_cast<int>(std::min<size_t>(parts->iov_len - at, INT_MAX));
    waits_ = false;
    const int result = SSL_read(connection_, static_cast<std::byte*>(parts->iov_base) + at, space);
    if (result > 0) {
      total += result;
      at += static_cast<size_t>(result);
      continue;
    }
    // A failure is reported when what came before it has been taken.
    const int error = failure();
    incomplete_ = waits_ && SSL_has_pending(connection_) == 1;
    if (total > 0) return total;
    ended = error == 0 && has_ended();
    return error;
  }
  has_buffered_ = SSL_has_pending(connection_) == 1;
  return total;
}

}  // namespace unisono

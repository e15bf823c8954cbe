// One TLS connection, over a carrier that moves bytes: a socket, or a buffer in a test. No call blocks.
//
// Until handshake() returns done, nothing can be written or read. Afterwards every call of write() makes whole records, which
// are kept here until the carrier has taken them: flush() goes on with that. Positions are those of the plaintext: a byte
// counts as acknowledged when its whole record is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "tls/tls_context.h"

struct bio_st;
struct evp_md_st;

namespace unisono {

// What carries the encrypted bytes.
class TlsCarrier {
 public:
  virtual ~TlsCarrier() = default;
  // Returns the number of bytes that it took; 0: none now; -errno: the connection has failed.
  virtual ptrdiff_t write_encrypted(std::span<const std::byte> bytes) = 0;
  // Returns the number of bytes that it read, or -errno. 0: nothing is there now, or, if it sets `ended`, ever.
  virtual ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) = 0;
};

class TlsConnection {
 public:
  enum class Role : uint8_t { client, server };
  enum class Progress : uint8_t { pending, done, failed };
  // OpenSSL makes records of at most this many bytes of plaintext.
  static constexpr size_t record_bytes_max = 16u << 10;
  // So many bytes a record has beside its plaintext (TLS 1.3, 16 bytes of tag).
  static constexpr size_t record_overhead = 22;
  // The other side gets new keys after this many records, because more than 2^24.5 under one key are not safe (RFC 8446, 5.5).
  static constexpr uint64_t records_per_key = uint64_t{1} << 23;

  // `carrier` must live longer. Throws std::bad_alloc if there is no memory.
  TlsConnection(std::shared_ptr<const TlsContext> context, Role role, TlsCarrier& carrier,
                uint64_t records_per_key = TlsConnection::records_per_key);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  Progress handshake();
  // After the handshake: returns the number of the key that both sides have used (TlsContext::key).
  size_t key_number() const { return key_number_; }
  // Derives bytes that only the two ends of this connection know (RFC 8446, 7.5). Call it after the handshake.
  [[nodiscard]] bool export_key(std::string_view label, std::span<std::byte> out) const;

  // Returns how many bytes of plaintext it took; 0: none now; -errno: the connection has failed.
  ptrdiff_t write(const iovec* parts, int count);
  // Fills the parts as far as whole records have arrived. The results are those of StreamSocket::read(). -EBADMSG: the bytes
  // were altered on the way. -EKEYREJECTED: the other side has another key, or none.
  ptrdiff_t read(const iovec* parts, int count, bool& ended);
  // Like read() of one byte, but the byte stays.
  ptrdiff_t peek(std::byte& byte, bool& ended);
  // Writes what is kept. Returns 0 or an errno value.
  int flush();
  bool has_unflushed() const { return out_begin_ < out_end_; }
  // Returns true if the last read() stopped because its parts were full, so that more may be here already.
  bool has_buffered() const { return has_buffered_; }
  // See StreamSocket::incomplete_record().
  uint64_t incomplete_record() const { return incomplete_ ? fetched_ : 0; }
  // Returns how many bytes of the plaintext that was written are not acknowledged, if the other side's host has not
  // acknowledged `carrier_bytes` of the bytes that the carrier has taken.
  uint64_t unacknowledged_bytes(uint64_t carrier_bytes);
  // The error of the connection: 0 or an errno value. After a write that failed, what has arrived can still be read.
  int error() const { return error_ != 0 ? error_ : write_error_; }

  // OpenSSL's callbacks; for TlsContext alone.
  static int use_key(ssl_st* connection, const evp_md_st* hash, const unsigned char** identity, size_t* bytes,
                     ssl_session_st** session);
  static int find_key(ssl_st* connection, const unsigned char* identity, size_t bytes, ssl_session_st** session);

 private:
  struct Method;
  // Up to `carrier_end`, the carried bytes hold whole records, whose plaintext ends at `end`.
  struct Mark {
    uint64_t carrier_end = 0, end = 0;
  };
  // Kept bytes are given to the carrier when there are this many of them.
  static constexpr size_t out_bytes_max = 4 * (record_bytes_max + 256);
  static constexpr size_t marks_max = 1024;

  int keep(const char* bytes, size_t count);
  int fetch(char* bytes, size_t count);
  bool write_record(std::span<const std::byte> plaintext);
  void add_mark();
  int failure();
  bool has_ended() const;
  int fail(int error);
  bool can_write() const { return error_ == 0 && write_error_ == 0; }

  std::shared_ptr<const TlsContext> context_;
  TlsCarrier& carrier_;
  TlsIdentity identity_;
  ssl_st* connection_ = nullptr;
  size_t key_number_ = 0;
  bool handshake_done_ = false, key_found_ = false, carrier_ended_ = false, has_buffered_ = false;
  bool incomplete_ = false;  // a part of a record is in OpenSSL's buffer, and the rest has not arrived
  uint64_t fetched_ = 0;     // so many encrypted bytes were read
  bool waits_ = false;       // the carrier had no bytes when OpenSSL last asked for some
  int error_ = 0, write_error_ = 0;
  std::unique_ptr<std::byte[]> out_;  // encrypted bytes that the carrier has not taken
  size_t out_begin_ = 0, out_end_ = 0;
  uint64_t carried_ = 0;  // so many encrypted bytes the carrier has taken
  uint64_t written_ = 0;  // so many bytes of plaintext write() has taken
  uint64_t acknowledged_ = 0;
  std::array<Mark, marks_max> marks_{};  // a ring, ascending
  size_t mark_begin_ = 0, mark_count_ = 0;
  std::unique_ptr<std::byte[]> joined_;  // a record's plaintext that lies in several parts
  uint64_t records_per_key_;
  uint64_t records_ = 0;  // under the present key
};

}  // namespace unisono

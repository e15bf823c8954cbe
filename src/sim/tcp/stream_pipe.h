// One direction of a virtual connection: its bytes, and how far its sender and its receiver have got.
//
// Positions count the bytes from the beginning of the connection. Always read <= received <= written. The sender's kernel
// learns of `received` later, by acknowledgements. The end of the stream (FIN) has a position of its own behind the last byte.
//
// With records, as in TLS, a reader gets bytes only when the whole record that holds them is there. The sender counts bytes as
// acknowledged only when their whole record is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/uio.h>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono::sim {

class StreamPipe {
 public:
  // record_bytes_max: the longest record. 0: there are no records.
  explicit StreamPipe(size_t record_bytes_max) : record_bytes_max_(record_bytes_max) {}

  // Functions of the sender. append() takes at most bytes_max bytes, and returns their number.
  size_t append(const iovec* parts, int count, size_t bytes_max, Random& random);
  void end() { ended_ = true; }
  bool ended() const { return ended_; }
  // Changes bytes that were not read yet: a bit, or a range that becomes a copy of another one. Returns false if there are
  // none.
  bool alter(Random& random);
  uint64_t written() const { return written_; }
  uint64_t last() const { return written_ + (ended_ ? 1 : 0); }  // the position after everything, including the end
  uint64_t acknowledged() const { return acknowledged_; }
  void acknowledge(uint64_t position);
  // Returns the number of written bytes that are not acknowledged.
  uint64_t unacknowledged_bytes() const;

  // Functions of the receiver. arrive() takes the bytes from `from` to `to`. It ignores bytes that are there already, and all
  // bytes if those before them are missing. Returns true if anything is new.
  bool arrive(uint64_t from, uint64_t to);
  uint64_t received() const { return received_; }
  uint64_t read_position() const { return read_; }
  bool end_received() const { return ended_ && received_ == last(); }
  // Returns true if the receiver's kernel holds bytes that nobody has read.
  bool has_unread() const;
  // Returns how many bytes can be read now.
  size_t readable() const;
  // Copies at most bytes_max bytes that can be read, and returns their number. The bytes stay until drop().
  size_t copy(const iovec* parts, int count, size_t bytes_max) const;
  void drop(size_t bytes);

 private:
  uint64_t whole_records(uint64_t position) const;

  size_t record_bytes_max_;
  Bytes bytes_;                        // the bytes from read_ - consumed_ to written_
  size_t consumed_ = 0;                // how many bytes at the beginning of bytes_ were read
  std::vector<uint64_t> record_ends_;  // the position after each record, ascending
  uint64_t written_ = 0, acknowledged_ = 0, received_ = 0, read_ = 0;
  bool ended_ = false;
};

}  // namespace unisono::sim

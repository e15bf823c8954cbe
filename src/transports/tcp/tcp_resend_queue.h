// The frames of one stream that the peer has not confirmed.
//
// Positions count all bytes of frames since the stream began: confirmed ≤ written ≤ queued. A frame leaves when the peer has
// confirmed it, not when the kernel has taken it. After a connection is lost, rewind() goes on at the byte where the peer
// stopped. The queue has no socket: gather() returns the bytes to write, and the stream writes them.
//
// Each payload byte that may have to be written again is in one of three places: in a copy, in memory that the sender has not
// got back yet, or, while the kernel's word is believed, at the peer. Copies are limited by a ResendMemory. When it is used up,
// nothing is copied, the sender waits, and wants_confirm() says that the peer must be asked for a confirmation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "base/bytes.h"
#include "transports/payload_pool.h"
#include "transports/tcp/resend_memory.h"
#include "unisono/status.h"
#include "wire/frame.h"

namespace unisono {

class TcpResendQueue {
 public:
  // A payload up to this size is copied at once, so that its sender need not wait for sent(id).
  static constexpr size_t copied_bytes_max = 4096;
  static constexpr int gather_max = 32;  // One system call writes at most this many parts; a frame has up to two parts.
  static constexpr size_t gather_bytes_max = 4u << 20;
  // With this many unconfirmed frames or bytes, no new frame is begun. Frames that only confirm may go beyond the number, or
  // two ends that both reached it would wait for each other. The bytes stay below a quarter of what 32 bits can tell apart.
  static constexpr size_t unconfirmed_frames_max = 1024, confirming_frames_max = 16;
  static constexpr uint64_t unconfirmed_bytes_max = 1u << 30;

  TcpResendQueue(PayloadPool& pool, ResendMemory& memory, size_t reserve);
  ~TcpResendQueue();
  TcpResendQueue(const TcpResendQueue&) = delete;
  TcpResendQueue& operator=(const TcpResendQueue&) = delete;

  uint64_t confirmed() const { return confirmed_; }
  uint64_t written() const { return written_; }
  uint64_t queued() const { return queued_; }
  // The frames that are not completely written. Send credit counts these.
  size_t unwritten_frames() const { return count_ - next_; }
  uint64_t unwritten_bytes() const { return queued_ - written_; }
  size_t unconfirmed_frames() const { return count_; }
  // Returns true if the frame that was queued last will be written although the peer confirms nothing more. If not, what it
  // confirms may come too late: two ends that both reached their limit would wait for each other.
  bool last_will_be_written() const { return count_ == 0 || may_begin(count_ - 1, queued_ - at(count_ - 1).bytes()); }
  // Up to this position the peer has confirmed, or its host has acknowledged.
  uint64_t known_to_arrive() const { return std::max(confirmed_, acknowledged_); }
  // Returns true if the peer has yet to confirm a frame that does more than confirm.
  bool has_unconfirmed() const { return unconfirmed_ > 0; }
  // Returns true if a frame that is completely written waits for a confirmation or an acknowledgement before sent(id).
  bool has_held() const { return held_ > 0; }
  bool has_early() const { return early_ > 0; }
  // Returns true if a frame's payload is the sender's memory, so that sent(id) is still to be reported.
  bool has_lent() const { return lent_ > 0; }

  // Queues a frame and seals its header. `received` is the position up to which this process has read the stream. Returns true
  // if the sender's memory is no longer needed.
  bool push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id, uint64_t received);
  // Queues a frame that only confirms, before all frames that are not begun. If one waits there already, renews it. Returns
  // false if too many of them are unconfirmed.
  bool push_confirm(uint64_t received);
  // Returns true if the next frame must ask for a confirmation. push() and push_confirm() then do so. If there is nothing to
  // send, the stream calls push_confirm().
  bool wants_confirm() const { return wants_confirm_; }

  // Fills `parts` with the next bytes to write and `bytes` with their number. Returns the number of parts.
  int gather(iovec* parts, size_t& bytes) const;
  // Call this after `bytes` of the gathered bytes were written. Returns how many frames are now completely written. Frames that
  // only confirm do not count.
  size_t wrote(size_t bytes);
  // Returns how many bytes of frames that only confirm were written since the last call. They do not count as traffic.
  uint64_t take_confirming_bytes() { return std::exchange(confirming_bytes_, 0); }

  // The peer has read up to a position whose low half is `low`. Drops the confirmed frames, and appends the ids whose sent(id)
  // must be reported. Values from before a rewind may come late, and are passed over. Returns true if the position moved.
  bool confirm(uint32_t low, std::vector<uint64_t>& sent);
  // The peer's kernel has everything before `position`, and its word is believed. Appends the ids as confirm() does.
  void acknowledged(uint64_t position, std::vector<uint64_t>& sent);
  // Implements Transport::release_early: copies what is neither confirmed nor acknowledged of the matching payloads. A payload
  // that is not completely written is copied by a later copy_early().
  void release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  // Copies the payloads that release_early() has named and that are written now.
  void copy_early(std::vector<uint64_t>& sent);
  // Implements Transport::cancel. Frames that were never begun are dropped, and later positions move. The payloads of the
  // others are copied. Without memory for this, a frame is withdrawn: it is written again only as a frame of kind `nothing`.
  // Returns false if not even the rest of a half-written payload could be copied: the connection must end at once.
  bool cancel(uint64_t match, uint64_t mask) { return cancel(match, mask, nullptr); }
  // Cancels all sends, and appends their ids, for which sent(id) must be reported.
  bool cancel_all(std::vector<uint64_t>& sent) { return cancel(0, 0, &sent); }
  // Goes on at `position`, where the peer stopped, on a new connection, and confirms everything before it. Headers that are
  // written again say `received`. Fails with `corrupt` if the position cannot be right, and with `peer_lost` if bytes are
  // needed that are no longer there. After a failure only clear() may be called.
  Status rewind(uint64_t position, uint64_t received, std::vector<uint64_t>& sent);

  // Drops all frames, and appends the ids for which sent(id) must be reported. The next frame begins at position 0.
  void clear(std::vector<uint64_t>& sent);

 private:
  struct Frame {
    FrameHeader header;
    // The payload byte number kept_from. The bytes before it are not kept; kept_from == payload_bytes means that none is kept.
    const std::byte* kept = nullptr;
    uint64_t id = 0;
    uint64_t block = 0;  // handle of the pool block of a copy
    uint32_t kept_from = 0;
    bool notify = false;     // `kept` is the sender's memory, and sent(id) must be reported
    bool early = false;      // release_early() has named this frame
    bool asked = false;      // there was no memory for a copy, so a confirmation was asked for; once is enough
    bool withdrawn = false;  // its payload was given back without a copy
    bool uncounted = false;  // the copy is not counted in memory_: it is the rest of a half-written, withdrawn payload
    bool joined = false;     // the block holds the header, too, before the payload, so that both are written as one part
    uint32_t payload_bytes() const { return header.payload_bytes; }
    uint64_t bytes() const { return sizeof header + header.payload_bytes; }
    bool confirms_only() const { return header.kind == FrameKind::confirm; }
  };
  static_assert(sizeof(Frame) <= 112);

  Frame& at(size_t index) { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  const Frame& at(size_t index) const { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  void insert(size_t index, const Frame& frame);
  void grow();
  bool begun(size_t index) const { return index < next_ || (index == next_ && written_ > next_start_); }
  bool may_begin(size_t index, uint64_t start) const;
  bool cancel(uint64_t match, uint64_t mask, std::vector<uint64_t>* sent);
  static void seal(Frame& frame, uint64_t received);
  void confirm_to(uint64_t position, std::vector<uint64_t>& sent);
  uint32_t payload_bytes_before(uint64_t position, const Frame& frame, uint64_t start) const;
  bool copy(Frame& frame, uint32_t from, bool counted, bool joined = false);
  bool keep(Frame& frame, uint64_t start);
  bool withdraw(Frame& frame, uint64_t start);
  void drop_copy(Frame& frame);
  void give_back(Frame& frame, std::vector<uint64_t>& sent);
  int parts_of(const Frame& frame, uint64_t offset, iovec* parts, size_t& bytes) const;

  PayloadPool& pool_;
  ResendMemory& memory_;
  std::vector<Frame> ring_;  // circular buffer; its size is a power of two
  size_t first_ = 0;
  size_t count_ = 0;
  size_t next_ = 0;          // index of the first frame that is not completely written
  uint64_t next_start_ = 0;  // the position at which that frame begins
  uint64_t base_ = 0;        // the position at which frame 0 begins
  uint64_t confirmed_ = 0, written_ = 0, queued_ = 0;
  uint64_t acknowledged_ = 0;
  size_t unconfirmed_ = 0;  // frames that do more than confirm
  size_t lent_ = 0;         // frames with `notify`
  size_t held_ = 0;         // written frames with `notify`
  size_t early_ = 0;        // frames with `early`
  uint64_t confirming_bytes_ = 0;
  bool wants_confirm_ = false;
};

}  // namespace unisono

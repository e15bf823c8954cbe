// The sending half of a link: frames go out through the ring, payloads through slots of our arena.
//
// send() copies what fits into a slot at once. What does not is kept as a reference in a queue and moved by service() in
// pieces, through slots kept for results: the receiver takes pieces out at once, so they never wait for anything else. A
// frame that has begun arrives whole, also after cancel(), which copies what is still to be moved.
//
// A payload written into a slot by acquire and read there by the receiver crosses without any copy. Reading the sender's memory
// from the receiver (process_vm_readv) was built, measured and left out:
// docs/design/decisions/0005-how-shared-memory-is-written.md.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "transports/shm/shm_host.h"
#include "transports/shm/shm_ring.h"
#include "wire/frame.h"

namespace unisono::shm {

// Frames without payload that wait because the peer does not read: 4 MiB of headers. Beyond it the link is given up.
inline constexpr size_t overflow_max = 65536;

class Outbound {
 public:
  Outbound(Host& host, const LinkMemory& memory, int bell);
  ~Outbound();
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  size_t credit();
  // As Transport::send.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  // A whole frame whose payload (if any) lies in a slot that this link holds. publish_in_a_row: the reader is not woken by it,
  // but by wake_reader() after a publication_fence.
  void publish(const FrameHeader& header, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);
  void wake_reader() { bell_.after_frame(); }
  // One will follow.
  void prefetch() const { ring_.prefetch(); }
  // A slot could not be had for this link; `shared` slots beyond the guarantees would be needed. service() tells when to ask
  // again.
  void want(Place place, Purpose purpose, uint32_t shared);
  // The ring was full.
  void want_ring() { wants_ring_ = true; }
  bool wants_releases() const;
  // Takes back what the peer has released.
  void drain();
  // Moves what waits. True if anything moved.
  bool service();
  // True once after credit() or acquire was refused, when slots are there again.
  bool credit_is_back();
  // Whether service() or credit_is_back() would do something now, and whether only the peer can change that.
  bool ready();
  void cancel(uint64_t match, uint64_t mask);
  // The end: pending sends are reported as sent, slots held by the peer come back only with forget().
  void finish();
  // The peer cannot read any more.
  void forget();
  // The ring takes a frame now. Payloads wait until it does, so that no operation is over while something of it could still be
  // lost.
  bool open() { return overflow_.empty() && ring_.has_credit(); }
  // Something was given to it that the peer cannot see yet.
  bool holds_frames() const { return !overflow_.empty() || !pending_.empty(); }
  // The peer's progress through the ring is waited for.
  bool overflowing() {
    return !overflow_.empty() || ((wants_credit_ || wants_ring_ || any_want_ || !pending_.empty()) && !ring_.has_credit());
  }
  // The peer wrote nonsense, or does not read at all.
  const char* fault() const { return fault_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Waiting {  // for room in the ring
    FrameHeader header;
    CellType type;
    uint32_t ref;
  };
  struct Pending {  // for a slot
    FrameHeader header;
    const std::byte* data;
    size_t done;
    uint64_t id;
    uint64_t block;  // not 0: data is a copy of ours, nobody waits for sent(id)
  };
  struct Want {
    bool wanted = false;
    uint32_t shared = 0;
  };

  void put(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);
  bool take_slot(Place place, Purpose purpose, size_t bytes, uint32_t& ref);
  bool copy_whole(const FrameHeader& header, const std::byte* data);
  bool push_piece(Pending& pending);
  bool pump();
  void finish_pending();
  bool cancel_pending(Pending& pending);
  Want& want_of(Place place, Purpose purpose) { return wants_[(place == Place::large ? 2 : 0) + static_cast<int>(purpose)]; }
  bool satisfied(int index);
  size_t free_now();

  Host& host_;
  LinkMemory memory_;
  Bell bell_;
  RingWriter ring_;
  ReleaseReader releases_;
  Fifo<Waiting> overflow_;
  Fifo<Pending> pending_;
  std::array<Want, 4> wants_{};
  bool any_want_ = false;
  bool wants_credit_ = false;  // credit() was 0
  bool wants_ring_ = false;
  const char* fault_ = nullptr;
  uint64_t sent_bytes_ = 0;
};

}  // namespace unisono::shm

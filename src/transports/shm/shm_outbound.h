// The sending half of a link: frames go through the ring, payloads through slots of our arena.
//
// send() copies a payload into a slot at once if one is free. Otherwise the payload stays in the sender's memory, in a queue.
// service() moves it later in pieces through slots reserved for results: the receiver copies pieces out at once, so they never
// wait for anything else. A frame that has begun arrives whole, also after cancel(), which copies the rest.
//
// A payload that acquire() writes into a slot and the receiver reads there crosses without any copy. Reading the sender's
// memory from the receiver (process_vm_readv) was built, measured and rejected:
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

// How many frames may wait because the peer does not read: 4 MiB of headers. Beyond it the link is lost.
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
  // Publishes a whole frame whose payload (if any) is in a slot that this link holds. With publish_in_a_row it does not wake
  // the reader: the caller makes a publication_fence and calls wake_reader().
  void publish(const FrameHeader& header, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);
  void wake_reader() { bell_.after_frame(); }
  // Prefetches the next cell, before a publish.
  void prefetch() const { ring_.prefetch(); }
  // acquire() found no slot for this link, or needs `shared` slots beyond the guarantees. credit_is_back() tells when to ask
  // again.
  void want(Place place, Purpose purpose, uint32_t shared);
  // acquire() found the ring full.
  void want_ring() { wants_ring_ = true; }
  bool wants_releases() const;
  // Collects the slots that the peer has released.
  void drain();
  // Sends queued frames. True if anything moved.
  bool service();
  // Returns true once after credit() or acquire was refused, when slots are free again.
  bool credit_is_back();
  // Whether service() or credit_is_back() has work now.
  bool ready();
  void cancel(uint64_t match, uint64_t mask);
  // Ends the link: pending sends are reported as sent. Slots that the peer holds come back only with forget().
  void finish();
  // The peer cannot read any more: returns all slots that it holds.
  void forget();
  // True if the ring takes a frame now. Payloads wait until it does, so that no operation ends while a frame of it could still
  // be lost.
  bool open() { return overflow_.empty() && ring_.has_credit(); }
  // True if it holds frames that the peer cannot see yet.
  bool holds_frames() const { return !overflow_.empty() || !pending_.empty(); }
  // True if progress depends on the peer reading its ring.
  bool overflowing() {
    return !overflow_.empty() || ((wants_credit_ || wants_ring_ || any_want_ || !pending_.empty()) && !ring_.has_credit());
  }
  // Why the link must end: the peer wrote invalid data, or does not read at all.
  const char* fault() const { return fault_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Waiting {  // for the ring
    FrameHeader header;
    CellType type;
    uint32_t ref;
  };
  struct Pending {  // for a slot
    FrameHeader header;
    const std::byte* data;
    size_t done;
    uint64_t id;
    uint64_t block;  // not 0: data is our copy, and no sent(id) follows
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

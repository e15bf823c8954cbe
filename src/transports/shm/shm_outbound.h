// The sending half of a link. It sends frames through the ring, and payloads through slots of our arena.
//
// If a slot is free for the whole payload, send() copies the payload into the slot at once. Otherwise the payload stays in the
// sender's memory until it is sent. It is then sent in pieces through the slots that are reserved for results, unless a slot
// for the whole payload has become free. The receiver copies each piece out at once, so pieces never wait for anything else. If
// a frame is cancelled after its first piece, the rest of its payload is copied and still sent.
//
// A payload that the caller writes into a slot from acquire() is never copied: the receiver reads it in the slot. With
// process_vm_readv instead, the receiver would read the sender's memory. This alternative was built, measured and rejected:
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

// This many frames may wait for a peer that does not read its ring; their headers need 4 MiB. If there are more, the link is
// lost.
inline constexpr size_t overflow_max = 65536;

class Outbound {
 public:
  Outbound(Host& host, const LinkMemory& memory, int socket);
  ~Outbound();
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  size_t credit();
  // Works like Transport::send, for this link's peer.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  // Publishes a frame that is not in pieces. If the frame has a payload, this link must hold the slot with the payload. If
  // `order` is batched_publish_order, this function does not wake the reader; the caller must then call publication_fence() and
  // wake_reader().
  void publish(const FrameHeader& header, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);
  void wake_reader() { bell_.after_frame(); }
  // Prefetches the cell that the next publish() will write.
  void prefetch() const { ring_.prefetch(); }
  // Call this when acquire() found no slot for this link. Later, credit_is_back() returns true when two conditions hold: this
  // link may take a slot, and `shared` slots are left that are not guaranteed to any link.
  void want(SlotKind kind, Purpose purpose, uint32_t shared);
  // Call this when acquire() found that the ring is full.
  void want_ring() { wants_ring_ = true; }
  bool wants_releases() const;
  // Collects the slots that the peer has released.
  void drain();
  // Sends queued frames. Returns true if it sent anything.
  bool service();
  // After credit() or acquire() has refused, returns true once, as soon as slots are free again.
  bool credit_is_back();
  // Returns true if service() or credit_is_back() has work now.
  bool ready();
  void cancel(uint64_t match, uint64_t mask);
  // Ends the link, and reports all pending sends as sent. The slots that the peer holds stay in use until release_peer_slots().
  void finish();
  // Frees all slots that the peer holds. Call this only when the peer cannot read our memory any more.
  void release_peer_slots();
  // Returns true if the ring has space for a frame now. A payload may be copied into a slot only then. The reason: once the
  // payload is copied, it counts as sent, but if its frame still waited for the ring, the end of the link would drop it.
  bool ring_is_open() { return overflow_.empty() && ring_.has_credit(); }
  // Returns true if this half holds frames that the peer cannot see yet.
  bool holds_frames() const { return !overflow_.empty() || !pending_.empty(); }
  // Returns true if queued frames or callers must wait until the peer reads its ring.
  bool overflowing() {
    return !overflow_.empty() || ((wants_credit_ || wants_ring_ || any_want_ || !pending_.empty()) && !ring_.has_credit());
  }
  // Returns why the link must end: the peer wrote invalid data, or it does not read its ring at all. Null means that there is
  // no fault.
  const char* fault() const { return fault_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Waiting {  // a frame that waits for the ring
    FrameHeader header;
    CellType type;
    uint32_t ref;
  };
  struct Pending {  // a frame whose payload waits for a slot
    FrameHeader header;
    const std::byte* data;
    size_t done;
    uint64_t id;
    uint64_t block;  // If not 0, `data` is a copy in this pool block, and sent(id) is not reported.
  };
  struct Want {
    bool wanted = false;
    uint32_t shared = 0;
  };

  void put(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);
  bool take_slot(SlotKind kind, Purpose purpose, size_t bytes, uint32_t& ref);
  bool copy_whole(const FrameHeader& header, const std::byte* data);
  bool push_piece(Pending& pending);
  bool pump();
  void finish_pending();
  bool cancel_pending(Pending& pending);
  Want& want_of(SlotKind kind, Purpose purpose) {
    return wants_[(kind == SlotKind::large ? 2 : 0) + static_cast<int>(purpose)];
  }
  bool satisfied(int index);
  size_t available_credit();

  Host& host_;
  LinkMemory memory_;
  Bell bell_;
  RingWriter ring_;
  ReleaseReader releases_;
  Fifo<Waiting> overflow_;
  Fifo<Pending> pending_;
  std::array<Want, 4> wants_{};
  bool any_want_ = false;
  bool wants_credit_ = false;  // credit() has returned 0
  bool wants_ring_ = false;
  const char* fault_ = nullptr;
  uint64_t sent_bytes_ = 0;
};

}  // namespace unisono::shm

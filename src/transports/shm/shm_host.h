// `Host` is the state that all links of one shared-memory transport share. `LinkMemory` describes the memory that one link uses
// in both processes.
#pragma once

#include <cstdint>

#include "transports/payload_pool.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_fifo.h"
#include "transports/shm/shm_slots.h"
#include "transports/transport.h"

namespace unisono::shm {

struct Host {
  Arena arena;     // this process's arena
  SlotPool small;  // the small slots of `arena`
  SlotPool large;
  PayloadPool buffers{PayloadPoolLimits{}};  // for frames that arrive in pieces, and for the copies that cancel() makes
  Fifo<uint64_t> sent;                       // ids that the next poll reports to Sink::sent
  TransportCounters counters;
  bool payload_checksum = false;

  SlotPool& pool(SlotKind kind) { return kind == SlotKind::small ? small : large; }
};

// Wakes the peer if it sleeps: sends one byte on the link's socket. An event counter per process would be cheaper to write, but
// every peer would need a descriptor of it. After each publication, the publisher reads the peer's wake word. Before a peer
// sleeps, it first sets its wake word and then looks for publications. All these accesses use seq_cst, so at least one of the
// two processes sees what the other has done.
class Bell {
 public:
  Bell() = default;
  Bell(const std::atomic<uint32_t>* wake, int socket) : wake_(wake), socket_(socket) {}
  void after_frame() { ring_if(1); }
  void after_release() { ring_if(2); }

 private:
  void ring_if(uint32_t bit) {
    const uint32_t word = wake_->load(std::memory_order_seq_cst);
    if ((word & bit) != 0 && word != rung_) [[unlikely]]
      ring(word);
  }
  void ring(uint32_t word);
  const std::atomic<uint32_t>* wake_ = nullptr;
  int socket_ = -1;  // the socket of the link
  // The value of the peer's wake word when we last woke the peer. While the word has this value, the peer need not be woken
  // again.
  uint32_t rung_ = 0;
};

// The messages on a link's socket after the hellos: one byte each. The first wakes the receiver. A process sends the second
// before it ends a link normally, and the third before it ends one because of invalid data. A socket that ends without either
// belongs to a process that has died.
inline constexpr char wake_byte = 'W';
inline constexpr char goodbye_byte = 'G';
inline constexpr char given_up_byte = 'L';

// The memory of one link: a region of our arena, and the region of the peer's arena that the peer reserves for us.
struct LinkMemory {
  uint16_t region = 0;  // The number of our region. It also identifies the link in the slot pools and in handles.
  uint32_t peer_region = 0;
  const Arena* peer = nullptr;
};

// A zero-copy view in a slot has a handle that is made from the region and the ref, and that is never 0. The handles of pool
// blocks have the top bit set.
inline constexpr uint64_t block_handle_bit = uint64_t{1} << 63;
constexpr uint64_t slot_handle(uint32_t region, uint32_t ref) { return (uint64_t{region} + 1) << 32 | ref; }

}  // namespace unisono::shm

// State that all links of one shared-memory transport share, and the parts of both sides' memory that one link uses.
#pragma once

#include <cstdint>

#include "transports/payload_pool.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/shm_fifo.h"
#include "transports/shm/shm_slots.h"
#include "transports/transport.h"

namespace unisono::shm {

struct Host {
  Arena arena;     // this process's own
  SlotPool small;  // its small slots
  SlotPool large;
  PayloadPool buffers{PayloadPoolLimits{}};  // for frames put together from pieces, and copies made by cancel
  Fifo<uint64_t> sent;                       // ids to be reported by the next poll
  TransportCounters counters;
  bool payload_checksum = false;

  SlotPool& pool(Place place) { return place == Place::small ? small : large; }
};

// Wakes a sleeping peer. The peer's wake word is read after every publication. Both sides use seq_cst, so either the publisher
// sees the word or the sleeper sees the publication.
class Bell {
 public:
  Bell() = default;
  Bell(const std::atomic<uint32_t>* wake, int fd) : wake_(wake), fd_(fd) {}
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
  int fd_ = -1;
  uint32_t rung_ = 0;  // one ring per sleep is enough
};

// The two ends of one link: our region of our arena, and the region of the peer's arena that is for us.
struct LinkMemory {
  uint16_t region = 0;  // ours; it also names the link in the slot pools and in handles
  uint32_t peer_region = 0;
  const Arena* peer = nullptr;
};

// Handles of slots given out as zero-copy views: ref and region, never 0. Handles of pool blocks have the top bit set.
inline constexpr uint64_t block_handle_bit = uint64_t{1} << 63;
constexpr uint64_t slot_handle(uint32_t region, uint32_t ref) { return (uint64_t{region} + 1) << 32 | ref; }

}  // namespace unisono::shm

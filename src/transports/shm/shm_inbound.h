// The receiving half of a link: takes frames out of the peer's ring, gives the sink zero-copy views of payloads, and puts
// pieces together.
//
// A broken or hostile process may have written everything read here, and may change it at any time. So a cell is copied before
// it is checked, indices and lengths are checked against the geometry of the peer's arena, and a fault ends the link. Nobody
// can ensure that the bytes of a zero-copy view stay as they are: decoders must not trust them.
#pragma once

#include <cstdint>

#include "transports/shm/shm_host.h"
#include "transports/shm/shm_ring.h"
#include "transports/transport.h"

namespace unisono::shm {

class Inbound {
 public:
  Inbound(Host& host, const LinkMemory& memory, PeerIndex from, int bell);
  ~Inbound();
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // Takes up to `limit` cells. True if there was any. Stops early after a fault, after stop(), when a frame in pieces finds no
  // memory (the next call tries again), and when the sink has enough.
  bool receive(Sink& sink, uint32_t limit);
  // Takes everything that was published; the link ends after it.
  bool receive_rest(Sink& sink);
  bool ready() const;
  // As Transport::next and take_next. After take_next the caller makes a publication_fence and calls wake_writer().
  Next next(const FrameHeader& expected, const std::byte*& payload);
  void take_next();
  void wake_writer() { bell_.after_release(); }
  // Returns the slot of a view; also allowed after stop().
  void release(uint32_t ref);
  // The receive buffer of a half-received frame of this operation must not be touched any more.
  void cancel(uint32_t group, uint64_t operation);
  // Ends all upcalls.
  void stop();
  // How many views of the peer's slots the sink still holds.
  uint32_t views_out() const { return views_out_; }
  const char* fault() const { return fault_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  enum class Stage : uint8_t { none, placing, filling, discarding };
  // A frame that arrives in pieces.
  struct Incoming {
    FrameHeader header;
    std::byte* target = nullptr;
    uint64_t block = 0;  // block of the buffer pool; 0 if the target belongs to the sink
    uint32_t done = 0;
    Stage stage = Stage::none;
  };

  bool receive_next(Sink& sink);
  bool step(Sink& sink);
  bool find_payload(uint32_t ref, uint32_t bytes, View& view, const char*& why) const;
  bool take_whole(Sink& sink);
  bool take_piece(Sink& sink);
  void finish_incoming(Sink& sink);
  void drop_incoming();
  FrameFault check(const FrameHeader& header) const;
  bool payload_intact(const FrameHeader& header, const std::byte* data);
  void count(uint32_t payload_bytes);
  bool refuse(FrameFault fault, const char* why);
  void give_back(uint32_t ref);

  Host& host_;
  LinkMemory memory_;
  PeerIndex from_;
  Bell bell_;
  RingReader ring_;
  ReleaseWriter releases_;
  Entry entry_;                             // the cell being handled
  uint32_t next_ref_ = 0, next_bytes_ = 0;  // ref and size of the payload that next() has shown
  Incoming incoming_;
  bool stalled_ = false;      // entry_ waits for memory
  size_t stalled_bytes_ = 0;  // bytes that the sink holds of the pool; returning some of them makes memory for it
  bool stopped_ = false;
  uint32_t views_out_ = 0;
  const char* fault_ = nullptr;
  uint64_t received_bytes_ = 0;
};

}  // namespace unisono::shm

// The receiving half of a link: takes frames out of the peer's ring, lends payloads where they lie, puts pieces together.
//
// Everything read here may have been written by a broken or hostile process and may change while it is looked at. So a cell
// is copied before it is checked, indices and lengths are checked against the geometry of the peer's arena, and a fault ends
// the link. What nobody can check is that the bytes of a lent payload stay as they are: decoders must not trust them.
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

  // Takes up to `limit` cells. True if there was any. Stops early after a fault, after stop(), when a frame in pieces
  // finds no memory (the next call tries again), and when the sink has enough.
  bool receive(Sink& sink, uint32_t limit);
  // Takes all that has been published: there will be no next call.
  bool receive_rest(Sink& sink);
  bool ready() const;
  // As Transport::next and take_next; wake_writer() follows, after a publication_fence.
  Next next(const FrameHeader& expected, const std::byte*& payload);
  void take_next();
  void wake_writer() { bell_.after_release(); }
  // Gives back a lent slot; also after stop().
  void release(uint32_t ref);
  // The target of a half-received frame of this operation must not be touched any more.
  void cancel(uint32_t group, uint64_t operation);
  // No upcall is made any more.
  void stop();
  // Slots of the peer that the sink still looks at.
  uint32_t lent() const { return lent_; }
  const char* fault() const { return fault_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  enum class Stage : uint8_t { none, placing, filling, discarding };
  // A frame that comes in pieces.
  struct Incoming {
    FrameHeader header;
    std::byte* target = nullptr;
    uint64_t block = 0;  // of the buffer pool; 0 if the target is the sink's
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
  Entry entry_;                             // being received
  uint32_t next_ref_ = 0, next_bytes_ = 0;  // of what next() has shown
  Incoming incoming_;
  bool stalled_ = false;      // entry_ waits for memory,
  size_t stalled_bytes_ = 0;  // which is there when the sink has given back some of these
  bool stopped_ = false;
  uint32_t lent_ = 0;
  const char* fault_ = nullptr;
  uint64_t received_bytes_ = 0;
};

}  // namespace unisono::shm

// The receiving half of a link. It takes frames out of the peer's ring, and gives the sink zero-copy views of their payloads.
// It also assembles payloads that come in pieces.
//
// A broken or hostile process may write anything into its arena, at any time. Therefore each cell is copied before it is
// checked. Indices and lengths are checked against the geometry of the peer's arena. A fault ends the link. The bytes of a
// zero-copy view may change while they are read, so decoders must not trust them.
#pragma once

#include <cstdint>

#include "transports/shm/shm_host.h"
#include "transports/shm/shm_ring.h"
#include "transports/transport.h"

namespace unisono::shm {

class Inbound {
 public:
  Inbound(Host& host, const LinkMemory& memory, PeerIndex from, int socket);
  ~Inbound();
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // Takes up to `limit` cells. Returns true if it took any. It stops early after a fault, after stop(), and when the sink wants
  // no more frames. It also stops if there is no memory for a frame that comes in pieces; the next call then tries again.
  bool receive(Sink& sink, uint32_t limit);
  // Takes all cells that the peer has published; these are at most one whole ring. Called when the link is ending.
  bool receive_rest(Sink& sink);
  bool ready() const;
  // These functions work like next() and take_next() of Transport. After take_next() the caller must call publication_fence()
  // and wake_writer().
  Next next(const FrameHeader& expected, const std::byte*& payload);
  void take_next();
  void wake_writer() { bell_.after_release(); }
  // Releases the slot of a view. This is allowed even after stop().
  void release(uint32_t ref);
  // If a frame of this operation is half received into the sink's buffer, this half writes no more bytes into that buffer, and
  // discards the rest of the frame.
  void cancel(uint32_t group, uint64_t operation);
  // After this call the sink gets no more upcalls.
  void stop();
  // The sink still holds this many views of the peer's slots.
  uint32_t views_out() const { return views_out_; }
  const char* fault() const { return fault_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  enum class Stage : uint8_t { none, placing, filling, discarding };
  // A frame whose payload arrives in pieces.
  struct Incoming {
    FrameHeader header;
    std::byte* target = nullptr;
    uint64_t block = 0;  // the pool block that contains `target`; 0: `target` is in the sink's receive buffer
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
  void push_release(uint32_t ref);

  Host& host_;
  LinkMemory memory_;
  PeerIndex from_;
  Bell bell_;
  RingReader ring_;
  ReleaseWriter releases_;
  Entry entry_;                             // the cell being handled
  uint32_t next_ref_ = 0, next_bytes_ = 0;  // slot reference and size of the payload that the last next() returned
  Incoming incoming_;
  bool stalled_ = false;  // entry_ waits for pool memory
  // The pool bytes that views of this peer held when entry_ began to wait. When views hold fewer bytes, ready() returns true.
  size_t stalled_bytes_ = 0;
  bool stopped_ = false;
  uint32_t views_out_ = 0;
  const char* fault_ = nullptr;
  uint64_t received_bytes_ = 0;
};

}  // namespace unisono::shm

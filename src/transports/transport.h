// The interface below the engine: a transport moves frames between peers. It knows nothing about tensors, never blocks, and
// never reads the clock.
//
// One Transport serves several peers. In each process, every peer belongs to exactly one Transport (its route). Only one thread
// at a time may call a Transport. Only poll() makes upcalls. Each frame arrives exactly once, unless the link is lost before it
// arrives. Frames to one peer may arrive in any order, because a link may have several streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "unisono/event.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

class DatagramService;

// Memory of the transport, into which a sender writes a payload. data is null if no slot is free now.
struct Slot {
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint64_t handle = 0;
  explicit operator bool() const { return data != nullptr; }
};

// A received payload. If it is a zero-copy view (its handle is not 0), the memory belongs to the transport, and may be read
// until release(view).
struct View {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;
};

// What Transport::cancel takes back: pending sends, and the receive buffers for frames of one operation.
struct Cancellation {
  uint64_t match = 0, mask = 0;  // the sends with (id & mask) == match
  uint32_t group = 0;
  uint64_t operation = 0;
  // If set, only the receive buffers for frames from this peer. Messages of two senders may have equal operation numbers.
  std::optional<PeerIndex> from{};

  bool concerns_send(uint64_t id) const { return (id & mask) == match; }
  bool concerns_frames_from(PeerIndex peer) const { return !from || *from == peer; }
};

// What is known about the process at the other end of a link that is lost.
enum class PeerFate : uint8_t {
  unknown,  // it may live: it does not answer, or only the link has failed
  ended,    // it has ended or has left in order: this is proven
};

// Receives the events of a transport. Only Transport::poll calls it. During an upcall, the sink may call send, commit, acquire,
// release and credit of any transport, but not poll.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns the buffer into which this frame's payload is to be written. Returns null to get the payload as a zero-copy view
  // instead. The buffer has header.payload_bytes bytes, and stays valid until received, Transport::cancel or lost. The
  // transport asks at most once per frame. It need not ask if the whole payload is already in memory that it can lend as a
  // view.
  virtual std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) = 0;
  // Delivers a whole frame. The frame has passed check_frame and, if it has a payload checksum, the check of this checksum. If
  // the header came through shared memory, header_checksum may be 0. `view` is empty, or is the buffer from receive_buffer()
  // (handle 0), or is a zero-copy view (handle not 0). The sink must release a zero-copy view, now or later.
  virtual void received(PeerIndex from, const FrameHeader& header, const View& view) = 0;
  // Returns true if the sink wants no more frames for now. In that case poll() may return, and a later poll() delivers the
  // frames that are left.
  virtual bool has_enough() const { return false; }
  // Reports that the transport no longer needs the payload that was passed to send(…, id).
  virtual void sent(uint64_t id) = 0;
  // Reports that the link is gone: nothing more will come from or go to this peer. Before this call, sent() reports all pending
  // sends to the peer. lost() is called once per link, never with the code ok, and not after close(). After it, the peer can be
  // added again.
  virtual void lost(PeerIndex peer, const Status& why, PeerFate fate) = 0;
  // Reports that credit(peer) was 0 and is now positive.
  virtual void credit(PeerIndex peer) = 0;
  // Reports an event of the link that no operation returns. The text calls the peer "it".
  virtual void noticed(PeerIndex /*peer*/, EventKind /*kind*/, const std::string& /*text*/) {}
};

struct TransportCounters {
  uint64_t sent_frames = 0, sent_bytes = 0;          // headers included
  uint64_t received_frames = 0, received_bytes = 0;  // headers included
  uint64_t refused_frames[frame_fault_count] = {};   // indexed by FrameFault
  // connections that were refused because the peer is unauthenticated: other jobs, scanners, other protocols
  uint64_t refused_connections = 0;
};

// The result of Transport::next(): no frame is there, the expected frame is there, or another frame is there.
enum class Next : uint8_t { none, expected, other };

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* name() const = 0;

  // Returns how many frames may be sent to the peer now; 0 if the peer is lost. If credit() has returned 0, the upcall
  // Sink::credit reports when there is credit again.
  virtual size_t credit(PeerIndex peer) = 0;
  // Returns the size of the largest payload that fits into a slot. A payload in a slot reaches the peer without being copied
  // again. If the result is 0, the transport has no slots; use send().
  virtual size_t slot_bytes() const = 0;
  // Returns a slot for one payload of up to `bytes`, which will be committed to all of `peers`. `result` is true if the payload
  // completes a chunk, so that its receiver can use the chunk at once. Some slots are reserved for results, so contributions
  // can never block results. If no slot is free, returns a null slot, and Sink::credit follows when one is free. A transport
  // without slots always returns a null slot.
  virtual Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) = 0;
  // Sends the first header.payload_bytes bytes of the slot to the peers that were passed to acquire(). Seals the header.
  virtual void commit(const Slot& slot, const FrameHeader& header) = 0;
  // Gives back a slot that will not be committed.
  virtual void abandon(const Slot& slot) = 0;
  // Sends one frame, and seals its header. Call this only if credit(peer) > 0. Two kinds of frames need no credit: frames
  // without payload, and the frame that tells why an operation failed. Returns true if the transport no longer needs the
  // payload. Otherwise the payload must stay valid until poll() calls Sink::sent(id). If the peer is lost, send() sends nothing
  // and returns true.
  virtual bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) = 0;
  // Gives back what the network says has arrived of the sends with (id & mask) == match. Copies nothing. Returns true if sent()
  // follows for any of these sends in the next poll().
  virtual bool release_acknowledged(uint64_t /*match*/, uint64_t /*mask*/) { return false; }
  // Asks for the memory of the sends with (id & mask) == match, because their caller can do nothing else. A transport that may
  // have to send a payload again copies what it still needs, if its memory for copies suffices; sent() then follows in the next
  // poll(). Without that memory sent() follows, as always, when the payload is no longer needed.
  virtual void release_early(uint64_t /*match*/, uint64_t /*mask*/) {}
  // Gives a zero-copy view back to the transport.
  virtual void release(const View& view) = 0;
  // looks_ahead(), next() and take_next() are for callers that exchange short frames and wait for them. These functions use no
  // slots, views or upcalls. looks_ahead() returns true if next() costs almost nothing, as in shared memory. If looks_ahead()
  // returns false, next() never returns `expected`.
  virtual bool looks_ahead() const { return false; }
  // Copies a payload, and sends the copy to all of `peers`. If acquire() returns a null slot, sends nothing and returns false.
  virtual bool send_copies(std::span<const PeerIndex> peers, const FrameHeader& header, const std::byte* payload) {
    if (header.payload_bytes == 0) {
      for (const auto peer : peers) send(peer, header, {}, 0);
      return true;
    }
    const auto slot = acquire(peers, header.payload_bytes, false);
    if (!slot) return false;
    std::memcpy(slot.data, payload, header.payload_bytes);
    commit(slot, header);
    return true;
  }
  // Looks at the next frame from the peer, and leaves it there. Sets `payload` only if it returns `expected`.
  // - expected: the frame is whole, its payload can be read, and its header equals `expected` except for magic and checksums
  // - other: the frame is another one, which poll() must handle
  // take_next() takes the expected frames; after it their payloads must not be read any more. Do not call poll() between next()
  // and take_next().
  virtual Next next(PeerIndex /*from*/, const FrameHeader& /*expected*/, const std::byte*& /*payload*/) { return Next::none; }
  virtual void take_next(std::span<const PeerIndex> /*from*/) {}
  // After this call the transport no longer uses the payloads of these sends, nor these receive buffers. If a payload is half
  // sent, its rest is copied; if a payload is half received, it is discarded. Neither sent() nor received() follows for these
  // sends and frames.
  virtual void cancel(const Cancellation& what) = 0;

  // Moves bytes and makes upcalls. Returns true if anything happened.
  virtual bool poll(Nanos now, Sink& sink) = 0;
  // Returns the time at which poll() must be called even if nothing arrives. `never` means that there is no such time.
  virtual Nanos next_deadline() const = 0;
  // Ends the link normally. The peer still gets the frames that were begun or copied, and is told the end. Sends that were not
  // begun are dropped. The payloads of all sends may be freed afterwards; sent() follows for those that were pending. No `lost`
  // follows.
  virtual void close(PeerIndex peer) = 0;

  // Returns true while the transport still has to write data of closed links or finished operations. In that case the caller
  // must poll even if no operation is in flight: when wait_handle() is readable after arm(), and at next_deadline().
  virtual bool draining() const { return false; }
  // Returns true if a peer waits for a confirmation, or if a confirmation or another answer of a peer is missing. Then the
  // caller must poll every few milliseconds even if no operation is in flight. It need not watch wait_handle().
  virtual bool awaits_confirmations() const { return false; }
  // Returns true if there is a frame that was sent, or the end of a link, that may not arrive without further calls of poll().
  // A process that leaves the job calls poll() until the result is false, or until its time limit has passed. The result is
  // false if the kernel delivers the data, or if the data is in memory that exists longer than this process.
  virtual bool has_pending() const { return false; }
  // Returns a descriptor on which the caller can sleep: after arm() has returned true, the descriptor becomes readable when
  // poll() has work. -1 means that there is no descriptor.
  virtual int wait_handle() const = 0;
  // Returns a descriptor that is readable when poll() must be called although no operation is in flight and nothing is
  // draining: a peer may be connecting anew. -1: there is none.
  virtual int idle_handle() const { return -1; }
  // Call this before sleeping on wait_handle(). If it returns false, there is work already: then poll instead of sleeping.
  virtual bool arm() = 0;
  // Call after sleeping.
  virtual void disarm() = 0;

  // Returns the service for lossy operations; null if this transport delivers everything.
  virtual DatagramService* datagrams() { return nullptr; }

  virtual TransportCounters counters() const = 0;
  // Describes the link to the peer, for messages: "tcp 127.0.0.1:1234 -> 127.0.0.1:999 (eth0)", "shm pid 42".
  virtual std::string describe(PeerIndex peer) const = 0;
  // Says what holds up the data to this peer, as far as the transport knows, for errors and reports. The text calls the peer
  // "it": "datagrams to it are now 1200 bytes, because larger ones get no acknowledgement". Empty: nothing is known.
  virtual std::string link_state(PeerIndex /*peer*/) const { return {}; }
};

}  // namespace unisono

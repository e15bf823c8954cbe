// The seam below the engine: moves frames between peers. It knows no tensor, never blocks and never reads the clock.
//
// One Transport serves several peers; exactly one Transport (its route) serves each peer of a process. All calls come from one
// thread at a time. Frames to one peer may arrive in any order, because a link may have several streams. Each frame arrives
// exactly once or, after `lost`, not at all. acquire, commit, send, credit, release and cancel make no upcall: all upcalls come
// from poll().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

class DatagramService;

// Transport memory into which a sender writes a payload. data is null if no slot is free now.
struct Slot {
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint64_t handle = 0;
  explicit operator bool() const { return data != nullptr; }
};

// A received payload. If it is a zero-copy view (handle not 0), the memory belongs to the transport until release(view).
struct View {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;
};

// Receives the events of a transport. Only Transport::poll calls it. An upcall may call send, commit, acquire, release and
// credit of any transport, but not poll.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns the receive buffer for the payload of this frame: header.payload_bytes writable bytes that stay valid until
  // received, Transport::cancel or lost. Returns null to get a zero-copy view instead. The transport asks at most once per
  // frame, and only for payloads that have not landed anywhere yet. A transport that already holds the whole payload in memory
  // that it can lend need not ask.
  virtual std::byte* place(PeerIndex from, const FrameHeader& header) = 0;
  // A whole frame. It passed check_frame, and the payload checksum if it has one; header_checksum may be 0 where memory carried
  // the header. view.data is what place gave (handle 0), or a zero-copy view (handle not 0: the sink must release it, now or
  // later), or empty.
  virtual void received(PeerIndex from, const FrameHeader& header, const View& view) = 0;
  // True if the sink wants to work on what it has before more comes: the transport may end its poll() and keeps the rest.
  virtual bool has_enough() const { return false; }
  // The transport no longer needs the payload of send(…, id).
  virtual void sent(uint64_t id) = 0;
  // The link is gone: nothing more will come from or go to this peer. Pending sends to it are reported by sent() before this
  // call. It is called once per peer, never with the code ok, and not after close().
  virtual void lost(PeerIndex peer, const Status& why) = 0;
  // credit(peer) had been 0 and now is not.
  virtual void credit(PeerIndex peer) = 0;
};

struct TransportCounters {
  uint64_t sent_frames = 0, sent_bytes = 0;          // headers included
  uint64_t received_frames = 0, received_bytes = 0;  // headers included
  uint64_t refused_frames[frame_fault_count] = {};   // by FrameFault
  uint64_t refused_connections = 0;                  // unauthenticated peers: other jobs, scanners, other protocols
};

// The result of Transport::next().
enum class Next : uint8_t { none, expected, other };

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* name() const = 0;

  // How many frames may be sent to the peer now; 0 after it is lost. After a 0, Sink::credit tells when there is credit again.
  virtual size_t credit(PeerIndex peer) = 0;
  // The largest payload that can be written into a slot and then reaches the peer without another copy. 0: the transport has no
  // slots; use send().
  virtual size_t slot_bytes() const = 0;
  // Transport memory for one payload of up to `bytes`, to be committed to all of `peers`. `result` marks payloads that end a
  // chunk: their receiver needs nothing else before using them. Some slots are reserved for them, so that contributions can
  // never block results. Null when no slot is free; Sink::credit follows. A transport without slots always returns null.
  virtual Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) = 0;
  // Sends the slot to the peers that were given to acquire; header.payload_bytes says how many bytes of it. Seals the header.
  virtual void commit(const Slot& slot, const FrameHeader& header) = 0;
  // Returns a slot that will not be committed.
  virtual void abandon(const Slot& slot) = 0;
  // Sends one frame. The payload must stay valid until Sink::sent(id), which poll() delivers. Returns true if the payload is
  // already not needed any more; then sent(id) is not called. Requires credit(peer) > 0, except for frames without payload and
  // for the reason of a failed operation: these are always accepted. Seals the header. For a lost peer it returns true and
  // sends nothing.
  virtual bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) = 0;
  // Returns a zero-copy view.
  virtual void release(const View& view) = 0;
  // looks_ahead(), next() and take_next() are for callers that exchange short frames and wait for them, without slots, views
  // and upcalls. looks_ahead() is true if looking at the next frame costs next to nothing, as in shared memory. Elsewhere
  // next() never finds the expected frame.
  virtual bool looks_ahead() const { return false; }
  // Copies a payload and sends it to all of `peers`. Returns false and sends nothing where acquire() gives null.
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
  // Shows the next frame from the peer without taking it. `expected`: the frame equals `expected` in all but magic and
  // checksums, is whole, and its payload can be read. `other`: poll() must handle the frame. take_next() takes the frames that
  // were expected; their payloads must not be read after that. poll() must not be called between the two.
  virtual Next next(PeerIndex /*from*/, const FrameHeader& /*expected*/, const std::byte*& /*payload*/) { return Next::none; }
  virtual void take_next(std::span<const PeerIndex> /*from*/) {}
  // After this call the transport does not touch the memory of pending sends with these ids (id & mask == match), nor receive
  // buffers for frames of this group and operation. A half-sent payload is copied; a half-received one is discarded. Neither
  // sent() nor received() is called for them afterwards.
  virtual void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) = 0;

  // Moves bytes and makes upcalls. Returns true if anything happened.
  virtual bool poll(Nanos now, Sink& sink) = 0;
  // The time at which poll must be called even if nothing arrives; `never` if there is none.
  virtual Nanos next_deadline() const = 0;
  // Ends the link in order: queued frames are written if the kernel takes them now. No `lost` follows.
  virtual void close(PeerIndex peer) = 0;

  // True while the transport still has something to write for closed links, or for operations that are over for their
  // sender. Then poll() must be called when wait_handle() is readable after arm(), and at next_deadline(), even while no
  // operation is in flight.
  virtual bool draining() const { return false; }
  // True if something that was sent, or announced by close(), is not known to have arrived, and only poll() can deliver it. A
  // leaving process polls until this is false, or as long as it likes. False where the kernel, or memory that outlives this
  // process, holds the data.
  virtual bool has_pending() const { return false; }
  // Sleeping: a descriptor that becomes readable when poll() would do something, after arm() returned true; -1 if none.
  virtual int wait_handle() const = 0;
  // Call before sleeping on wait_handle(). False: there is work already, poll instead of sleeping.
  virtual bool arm() = 0;
  // Call after sleeping.
  virtual void disarm() = 0;

  // The service for lossy operations; null: this transport delivers everything.
  virtual DatagramService* datagrams() { return nullptr; }

  virtual TransportCounters counters() const = 0;
  // For messages: "tcp 127.0.0.1:1234 -> 127.0.0.1:999 (eth0)", "shm pid 42".
  virtual std::string describe(PeerIndex peer) const = 0;
};

}  // namespace unisono

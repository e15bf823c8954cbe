// The seam below the engine: moves frames between peers. Knows no tensor, never blocks, never reads the clock.
//
// One Transport serves several peers; each peer of a node is served by exactly one Transport (its route). All calls come
// from one thread at a time. Frames to one peer may arrive in any order (a link may have several streams), each exactly
// once or, after `lost`, not at all. No upcall is made from inside acquire, commit, send, room, release or cancel: all
// news come from poll().
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

// Transport memory to write a payload into. Null data: none free now.
struct Slot {
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint64_t handle = 0;
  explicit operator bool() const { return data != nullptr; }
};

// A received payload. If lent (handle not 0), the memory is the transport's until release(view).
struct View {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;
};

// The receiver of news. Called only from Transport::poll. It may call send, commit, acquire, release and room of any
// transport from inside an upcall, but not poll.
class Sink {
 public:
  virtual ~Sink() = default;
  // Where the payload of this frame may land right now (header.payload_bytes writable bytes that stay valid until
  // received, cancel_place or lost), or null = lend me yours. Asked at most once per frame, only for payloads that have not
  // landed anywhere yet; a transport that already holds the whole payload in lendable memory need not ask.
  virtual std::byte* place(PeerIndex from, const FrameHeader& header) = 0;
  // A whole frame, checked as check_frame does (and the payload checksum if it has one); header_checksum may be 0 where memory
  // carried the header. view.data is what place gave (handle 0), or lent memory (handle not 0: the sink must release it, now or
  // later), or empty.
  virtual void received(PeerIndex from, const FrameHeader& header, const View& view) = 0;
  // True if it would rather work on what it has before more comes: the transport may end its turn, and keeps the rest.
  virtual bool has_enough() const { return false; }
  // The payload of send(…, id) is no longer needed.
  virtual void sent(uint64_t id) = 0;
  // The link is gone: nothing more will come from or go to this peer. Sends still pending to it are reported by sent()
  // before this call. Said once per peer; ok code is never used; after close() it is not said.
  virtual void lost(PeerIndex peer, const Status& why) = 0;
  // room(peer) had been 0 and now is not.
  virtual void credit(PeerIndex peer) = 0;
};

struct TransportCounters {
  uint64_t sent_frames = 0, sent_bytes = 0;          // headers included
  uint64_t received_frames = 0, received_bytes = 0;  // likewise
  uint64_t refused_frames[frame_fault_count] = {};   // by FrameFault
  uint64_t refused_connections = 0;                  // unauthenticated peers: other jobs, scanners, other protocols
};

// What a look at the next frame found.
enum class Next : uint8_t { none, expected, other };

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* name() const = 0;

  // How many frames may be sent to the peer now; 0 after it is lost. A refusal is followed by Sink::room.
  virtual size_t credit(PeerIndex peer) = 0;
  // The largest payload that can be written into a slot, and then reaches the peer without another copy. 0: it lends none,
  // send().
  virtual size_t slot_bytes() const = 0;
  // Transport memory for one payload of up to `bytes`, to be committed to all of `peers`. `result` marks payloads that end
  // a chunk (nobody waits for anything else before using them); some slots are kept back for them, so that contributions
  // can never block results. Null when none is free: credit() follows. Transports that do not lend always return null.
  virtual Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) = 0;
  // Sends the slot to the peers given to acquire; header.payload_bytes says how much of it. The header is sealed here.
  virtual void commit(const Slot& slot, const FrameHeader& header) = 0;
  // Gives back a slot that will not be committed.
  virtual void abandon(const Slot& slot) = 0;
  // Sends one frame; the payload must stay valid until Sink::sent(id), which poll() delivers. Returns true if the payload is
  // not needed any more already (then sent(id) is not called). Must only be called when room(peer) > 0; small
  // frames without payload, and why an operation has failed, are always accepted. The header is sealed here. To a lost peer:
  // returns true, sends nothing.
  virtual bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) = 0;
  // Gives back a lent view.
  virtual void release(const View& view) = 0;
  // For who exchanges short frames and waits for them: without slots, views and upcalls. What looks_ahead() is true for is
  // memory, where looking costs next to nothing; elsewhere next() never finds what is expected.
  virtual bool looks_ahead() const { return false; }
  // Copies a payload and sends it to all of `peers`. False, and nothing is sent, where acquire() gives null.
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
  // Shows the next frame from the peer, which stays where it is. `expected`: it is that one in all but magic and checksums,
  // whole, and its payload is there to be read. `other` frames are poll()'s. take_next() takes those that were expected; their
  // payloads must not be read after that. Between the two, poll() must not be called.
  virtual Next next(PeerIndex /*from*/, const FrameHeader& /*expected*/, const std::byte*& /*payload*/) { return Next::none; }
  virtual void take_next(std::span<const PeerIndex> /*from*/) {}
  // The memory of pending sends with these ids (id & mask == match), and of placements promised for frames of this group and
  // operation, must not be touched after this call: what is half sent is copied, what is half received is thrown away.
  // Neither sent() nor received() is called for them afterwards.
  virtual void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) = 0;

  // Moves bytes and makes upcalls. Returns true if anything happened.
  virtual bool poll(Nanos now, Sink& sink) = 0;
  // When poll must be called even if nothing arrives; `never` if not.
  virtual Nanos next_deadline() const = 0;
  // Ends the link in order: queued frames are flushed if the kernel takes them now. No `lost` follows.
  virtual void close(PeerIndex peer) = 0;

  // Sleeping. A descriptor that becomes readable when poll() would do something, after arm() returned true; -1 if none.
  // Something is still to be written, of links that were closed or of operations that are over for their sender: poll() is due
  // after arm() when wait_handle() is readable, and at next_deadline(), also while nothing is in flight.
  virtual bool draining() const { return false; }
  // Something that was sent, or said by close(), is not known to have arrived, and nobody but poll() can bring it there: who
  // leaves polls until it is, or for as long as it likes. False where the kernel, or memory that outlives this process, has it.
  virtual bool has_pending() const { return false; }
  virtual int wait_handle() const = 0;
  // Call before sleeping on wait_handle(). False: there is work already, poll instead of sleeping.
  virtual bool arm() = 0;
  // Call after sleeping.
  virtual void disarm() = 0;

  // For lossy operations; null: this transport delivers everything.
  virtual DatagramService* datagrams() { return nullptr; }

  virtual TransportCounters counters() const = 0;
  // For messages: "tcp 127.0.0.1:1234 -> 127.0.0.1:999 (eth0)", "shm pid 42".
  virtual std::string describe(PeerIndex peer) const = 0;
};

}  // namespace unisono

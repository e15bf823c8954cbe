// What an operation may ask of its surroundings. The engine implements it over real or simulated transports.
//
// Nothing here calls back into the operation: news come as calls of Operation's event functions, later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "codecs/codec.h"
#include "kernels/dispatch.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

// Memory lent by a transport to write a message into; the same shape as the transport's own slot.
struct PortSlot {
  std::byte* data = nullptr;
  uint64_t handle = 0;
  uint32_t route = 0;
  explicit operator bool() const { return data != nullptr; }
};

// Received bytes that an operation holds until it has used them.
struct Piece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;  // 0: not lent
  uint32_t route = 0;
  bool staged = false;  // data came from Port::stage
};

class Port {
 public:
  virtual ~Port() = default;
  // Messages that may be sent to the rank now.
  virtual size_t credit(Rank to) = 0;
  // Sends; true if the payload's memory is free again already, else Operation::sent(lane) follows. Needs room.
  virtual bool send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) = 0;
  // The largest message to this rank that can be written straight into memory that it reads; 0: none.
  virtual size_t slot_bytes(Rank to) = 0;
  // Memory that all these ranks (all lending) will read; empty if there is none now.
  virtual PortSlot acquire(std::span<const Rank> to, size_t bytes, bool result) = 0;
  // Writes the payload.
  virtual void fill(const PortSlot& slot, const std::byte* source, size_t bytes) = 0;
  virtual void commit(const PortSlot& slot, FrameHeader header) = 0;
  virtual void abandon(const PortSlot& slot) = 0;
  // Gives back a piece: a lent view or staged memory.
  virtual void release(const Piece& piece) = 0;
  // Memory for one incoming contribution.
  virtual std::byte* stage(size_t bytes) = 0;
  // Allows a rank to send this operation's messages up to `bytes` in total.
  virtual void grant(Rank to, uint64_t bytes) = 0;
  // Asks a rank to give back, of all operations, what is lent to it. again: this operation did so before; then it is enough if
  // one of all operations does since there was room last.
  virtual void request_credit(Rank to, bool again) = 0;
  // "host b, pid 42": what lies behind a rank, for messages.
  virtual std::string place(Rank rank) const = 0;
  // Arithmetic: true if done at once, else Operation::computed(lane) follows. The task's sources are valid until then.
  virtual bool reduce(const kernels::Reduction& task, uint32_t lane) = 0;
  virtual bool copy(void* destination, const void* source, size_t bytes, uint32_t lane) = 0;
  // What this rank keeps of its own. Always done at once.
  virtual void copy_now(void* destination, const void* source, size_t bytes) = 0;
  // Likewise; encoding is always done at once. Counts are added to.
  virtual void encode(const EncodeTask& task, kernels::BlockCounts& counts) = 0;
  virtual bool decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  virtual bool fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  // When it is by now, after what was computed at once since an event that came at `event`.
  virtual Nanos time_since(Nanos event) const { return event; }
};

}  // namespace unisono

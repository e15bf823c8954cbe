// The services that an operation needs from its surroundings. The engine implements them over real or simulated transports.
//
// No function here calls back into the operation. Events arrive later, through Operation's event functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "codecs/codec.h"
#include "kernels/dispatch.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

// Transport memory to write a message into; same layout as the transport's own slot.
struct PortSlot {
  std::byte* data = nullptr;
  uint64_t handle = 0;
  uint32_t route = 0;
  explicit operator bool() const { return data != nullptr; }
};

// Received bytes that an operation holds until it no longer needs them.
struct Piece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;  // 0: not a view of transport memory
  uint32_t route = 0;
  bool staged = false;  // data came from Port::stage
};

class Port {
 public:
  virtual ~Port() = default;
  // Number of messages that may be sent to the rank now.
  virtual size_t credit(Rank to) = 0;
  // Returns true if the payload's memory is free again; otherwise Operation::sent(lane) follows. Needs send credit.
  virtual bool send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) = 0;
  // The largest message that can be written directly into memory which this rank reads; 0: none.
  virtual size_t slot_bytes(Rank to) = 0;
  // Memory that all these ranks will read; slot_bytes() of each must not be 0. Empty if there is none now.
  virtual PortSlot acquire(std::span<const Rank> to, size_t bytes, bool result) = 0;
  // Copies the payload into the slot.
  virtual void fill(const PortSlot& slot, const std::byte* source, size_t bytes) = 0;
  virtual void commit(const PortSlot& slot, FrameHeader header) = 0;
  virtual void abandon(const PortSlot& slot) = 0;
  // Gives back a piece: a zero-copy view or staged memory.
  virtual void release(const Piece& piece) = 0;
  // Memory for one incoming contribution.
  virtual std::byte* stage(size_t bytes) = 0;
  // Allows a rank to send up to `bytes` of this operation in total.
  virtual void grant(Rank to, uint64_t bytes) = 0;
  // Asks a rank to return the memory that it holds of this one, in all operations. again: this operation has asked before; then
  // one request of all operations since the last send credit suffices.
  virtual void request_credit(Rank to, bool again) = 0;
  // "host b, pid 42": location of a rank, for error messages.
  virtual std::string place(Rank rank) const = 0;
  // Arithmetic. Returns true if it is done; otherwise Operation::computed(lane) follows. The task's sources stay valid until
  // then.
  virtual bool reduce(const kernels::Reduction& task, uint32_t lane) = 0;
  virtual bool copy(void* destination, const void* source, size_t bytes, uint32_t lane) = 0;
  // Copies data that this rank keeps for itself. Always done on return.
  virtual void copy_now(void* destination, const void* source, size_t bytes) = 0;
  // encode is always done on return; decode and fold return as reduce does. All three add to counts.
  virtual void encode(const EncodeTask& task, kernels::BlockCounts& counts) = 0;
  virtual bool decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  virtual bool fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  // The current time: `event` was the time of the last event, and computation since then may have taken a while.
  virtual Nanos time_since(Nanos event) const { return event; }
};

}  // namespace unisono

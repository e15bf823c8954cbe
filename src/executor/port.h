// The services that an operation uses: transports, arithmetic and memory. The engine implements them with real or simulated
// transports.
//
// No function of Port calls back into the operation. Events arrive later, through the event functions of Operation.
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

// Memory of a transport, into which a message is written. The members are those of the transport's slot type.
struct PortSlot {
  std::byte* data = nullptr;
  uint64_t handle = 0;
  uint32_t route = 0;
  explicit operator bool() const { return data != nullptr; }
};

// Received bytes. An operation holds them until it has used them.
struct Piece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t handle = 0;  // 0: `data` is not a view of transport memory
  uint32_t route = 0;
  bool staged = false;  // true: Port::stage allocated `data`
};

class Port {
 public:
  virtual ~Port() = default;
  // Returns how many messages may be sent to the rank now.
  virtual size_t credit(Rank to) = 0;
  // Sends a message. It requires send credit. Returns true if the memory of the payload is free again. Otherwise
  // Operation::sent(lane) is called when it is.
  virtual bool send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) = 0;
  // Asks for the memory of the lane's messages, or of all messages of the operation: nothing else keeps the lane, or the
  // operation, from going on (Transport::release_early). Operation::sent(lane) follows later.
  virtual void release_early(uint32_t lane) = 0;
  virtual void release_all_early() = 0;
  // Returns the size of the largest message that this rank can write into memory from which `to` reads. 0: there is no shared
  // memory with `to`.
  virtual size_t slot_bytes(Rank to) = 0;
  // Returns memory that all ranks in `to` will read. If no memory is free now, returns none. slot_bytes() must not be 0 for any
  // of these ranks.
  virtual PortSlot acquire(std::span<const Rank> to, size_t bytes, bool result) = 0;
  // Copies the payload into the slot.
  virtual void fill(const PortSlot& slot, const std::byte* source, size_t bytes) = 0;
  virtual void commit(const PortSlot& slot, FrameHeader header) = 0;
  virtual void abandon(const PortSlot& slot) = 0;
  // Returns a piece (a zero-copy view or staged memory) to its owner.
  virtual void release(const Piece& piece) = 0;
  // Allocates memory for one incoming contribution.
  virtual std::byte* stage(size_t bytes) = 0;
  // Allows a rank to send up to `bytes` bytes of this operation. They are counted from the start of the operation.
  virtual void grant(Rank to, uint64_t bytes) = 0;
  // Asks rank `to` to return all memory of this rank that it holds, for any operation. `again`: this operation has asked
  // before. A repeated request is not sent if any operation has asked since the last send credit.
  virtual void request_credit(Rank to, bool again) = 0;
  // Returns where a rank runs, for error messages; for example "host b, pid 42".
  virtual std::string location(Rank rank) const = 0;
  // Says what holds up the data to a rank, for error messages (Transport::link_state). Empty: nothing is known.
  virtual std::string link_state(Rank) const { return {}; }
  // Arithmetic. These functions return true if the result is complete. Otherwise Operation::computed(lane) is called when it
  // is, and the sources of the task stay valid until then.
  virtual bool reduce(const kernels::Reduction& task, uint32_t lane) = 0;
  virtual bool copy(void* destination, const void* source, size_t bytes, uint32_t lane) = 0;
  // Copies data that this rank keeps for itself. The copy is complete on return.
  virtual void copy_now(void* destination, const void* source, size_t bytes) = 0;
  // The result of encode() is complete on return. decode() and fold() return the same as reduce(). All three functions add to
  // `counts`.
  virtual void encode(const EncodeTask& task, kernels::BlockCounts& counts) = 0;
  virtual bool decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  virtual bool fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) = 0;
  // Returns the current time. `event` is the time of the last event, since which the operation may have computed for a while.
  virtual Nanos time_since(Nanos event) const { return event; }
};

}  // namespace unisono

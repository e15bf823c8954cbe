// One rank's request for one operation, checked and in one form for all collectives; the descriptor that all ranks must agree
// on; and the memory of each chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "schedules/schedule.h"
#include "unisono/codec.h"
#include "unisono/delivery.h"
#include "unisono/options.h"
#include "unisono/status.h"
#include "unisono/tensor.h"
#include "wire/peer_id.h"

namespace unisono {

// Whether the collective's elements may be encoded.
constexpr bool takes_codec(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::all_to_all;
}

inline constexpr Codec plain_codec{};

struct OperationRequest {
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;           // this rank's contribution; may be null if it gives nothing
  void* output = nullptr;                // this rank's result; may equal input
  size_t count = 0;                      // elements: of the tensor (all_reduce, broadcast, reduce, send, recv) or of one block
  std::vector<size_t> send_counts = {};  // all_to_all, scatter (root), reduce_scatter with uneven blocks; else empty
  std::vector<size_t> recv_counts = {};  // all_to_all, gather (root), all_gather with uneven blocks; else empty
  bool in_place_blocks = false;          // reduce_scatter, all_gather: input == output == the whole buffer
  Rank root = 0;                         // broadcast, reduce, gather, scatter; the other rank for send and recv
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  Nanos timeout = 0;
  // plain if the collective takes none. Owned by the caller until the call has been submitted.
  const Codec* codec = &plain_codec;
  float* encode_error = nullptr;  // as CallOptions::encode_error
  bool error_feedback = false;    // as CallOptions::error_feedback
  uint64_t agreement = 0;         // as CallOptions::agreement
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};  // unless delivery is reliable
  // As CallOptions::shard_unit. Only for lossy reduce_scatter and all_gather; their count is that of the whole tensor.
  uint32_t shard_unit = 0;
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;  // owned by the caller until the call has been submitted
  // Why an automatic call cannot be lossy; equal on all ranks. Static text, empty if it can.
  std::string_view reliable_because{};
};

// Every frame carries it, so that the first message reveals calls that differ.
// bits: collective 4 | dtype 4 | reduce op 4 | schedule 4 | hash 16 of (root, slice bytes, even or uneven counts, codec options
// that the messages do not show, agreement).
struct CallDescriptor {
  uint32_t bits = 0;
  // Lower bits: elements of all blocks together, if all ranks know them; 0 if sizes are per pair. Upper 24 bits: more of the
  // agreement's hash.
  uint64_t amount = 0;
};
inline constexpr uint32_t amount_bits = 40;  // of elements: no tensor has more
CallDescriptor describe(const OperationRequest& request, ScheduleKind schedule, uint64_t slice_bytes, uint32_t world);
// "all_reduce(f32 sum, 1000 elements, two_step)"
std::string to_string(const CallDescriptor& descriptor);
// Describes the first difference: "calls all_gather, we call all_reduce".
std::string difference(const CallDescriptor& theirs, const CallDescriptor& ours);

// Memory of one chunk on this rank.
struct ChunkMemory {
  const std::byte* input = nullptr;  // this rank's own value; null if it has none
  std::byte* output = nullptr;       // destination of received or summed values; null if the chunk is not wanted here
  size_t elements = 0;
  bool wanted = false;  // the final value must be here at the end
  bool owned = false;   // not wanted, but completed here on the way to a root that collects such chunks
};

// Bytes that determine the schedule; equal on all ranks.
uint64_t schedule_bytes(const OperationRequest& request, uint32_t world);
// Bytes of the larger of this rank's two buffers, as benchmarks count them.
uint64_t tensor_bytes(const OperationRequest& request, uint32_t world, Rank self);
// Bytes of this rank's input and output together.
uint64_t memory_bytes(const OperationRequest& request, uint32_t world, Rank self);
// How a tensor is cut: the number of chunks, of equal size or in proportion to shares.
struct Partition {
  uint32_t chunks = 1;
  std::span<const uint32_t> shares{};  // per chunk, with a sum in [1, 2^31); empty: equal
  size_t unit_elements = 0;            // smallest unit that is not cut; 0: as many as fill a cache line
};
// The memory of one chunk of a schedule. The partition is that of a tensor; blocks of ranks have sizes of their own.
ChunkMemory chunk_memory_of(const OperationRequest& request, uint32_t chunk, const Partition& partition, Rank self,
                            uint32_t world);

}  // namespace unisono

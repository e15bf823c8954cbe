// What one rank asks of one operation, checked and in one form for all collectives; the descriptor that all ranks must
// agree on; and where in memory each chunk lives.
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

// Whether elements may be encoded.
constexpr bool takes_codec(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::all_to_all;
}

inline constexpr Codec plain_codec{};

struct OperationRequest {
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;           // what this rank gives; may be null where it gives nothing
  void* output = nullptr;                // what this rank gets; may equal input
  size_t count = 0;                      // elements: of the tensor (all_reduce, broadcast, reduce, send, recv) or of one block
  std::vector<size_t> send_counts = {};  // all_to_all, scatter (root), reduce_scatter with uneven blocks; else empty
  std::vector<size_t> recv_counts = {};  // all_to_all, gather (root), all_gather with uneven blocks; else empty
  bool in_place_blocks = false;          // reduce_scatter, all_gather: input == output == the whole buffer
  Rank root = 0;                         // broadcast, reduce, gather, scatter; the other rank for send and recv
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  Nanos timeout = 0;
  const Codec* codec =
      &plain_codec;               // plain where the collective takes none; of the caller's, until the call has been submitted
  float* encode_error = nullptr;  // as CallOptions::encode_error
  bool error_feedback = false;    // as CallOptions::error_feedback
  uint64_t agreement = 0;         // as CallOptions::agreement
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};  // where delivery is not reliable
  uint32_t shard_unit =
      0;  // as CallOptions::shard_unit; of lossy reduce_scatter and all_gather, whose count is that of the whole tensor
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;  // of the caller's, until the call has been submitted
  std::string_view
      reliable_because{};  // why an automatic call cannot be lossy, alike on all ranks; static text, empty if it can
};

// What travels in every frame so that differing calls are found and named at the first message.
// bits: collective 4 | dtype 4 | reduce op 4 | schedule 4 | hash 16 of (root, slice bytes, even or uneven counts, options of a
// codec that its messages do not show, agreement).
struct CallDescriptor {
  uint32_t bits = 0;
  uint64_t amount = 0;  // elements of the operation, all blocks together, where all ranks agree on it, 0 where sizes are per
                        // pair; the upper 24 bits: more of the agreement's hash
};
inline constexpr uint32_t amount_bits = 40;  // of elements: a tensor has fewer
CallDescriptor describe(const OperationRequest& request, ScheduleKind schedule, uint64_t slice_bytes, uint32_t world);
// "all_reduce(f32 sum, 1000 elements, two_step)"
std::string to_string(const CallDescriptor& descriptor);
// Names the first difference: "calls all_gather, we call all_reduce".
std::string difference(const CallDescriptor& theirs, const CallDescriptor& ours);

// Where one chunk lives on this rank.
struct ChunkPlace {
  const std::byte* input = nullptr;  // this rank's own value, or null if it has none
  std::byte* output = nullptr;       // where received or summed values go, or null if the chunk is not wanted here
  size_t elements = 0;
  bool wanted = false;  // must hold the final value here at the end
  bool owned = false;   // not wanted, but completed here on the way to a root that collects the owners' chunks
};

// Bytes that decide about the schedule (the same on all ranks).
uint64_t schedule_bytes(const OperationRequest& request, uint32_t world);
// Of the larger one of this rank's two buffers, as benchmarks count it.
uint64_t tensor_bytes(const OperationRequest& request, uint32_t world, Rank self);
// Of this rank's input and output.
uint64_t memory_bytes(const OperationRequest& request, uint32_t world, Rank self);
// How a tensor is cut: into so many chunks, of equal size or in proportion to shares.
struct Partition {
  uint32_t chunks = 1;
  std::span<const uint32_t> shares{};  // per chunk; empty: equal ones. Else their sum is not 0 and below 2^31
  size_t unit_elements = 0;            // that are not cut apart; 0: as many as make a cache line
};
// The place of one chunk of a schedule. The partition is that of a tensor; blocks of ranks have their own sizes.
ChunkPlace place_of(const OperationRequest& request, uint32_t chunk, const Partition& partition, Rank self, uint32_t world);

}  // namespace unisono

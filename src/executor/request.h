// One rank's request for one operation. It has been checked, and has the same form for all collectives. This header also has
// the descriptor of a call, which must be equal on all ranks, and the memory of each chunk.
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

// Returns true if the collective supports codecs.
constexpr bool takes_codec(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::all_to_all;
}

inline constexpr Codec plain_codec{};

struct OperationRequest {
  Collective collective = Collective::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  const void* input = nullptr;  // this rank's contribution; null if it has none
  void* output = nullptr;       // this rank's result; may be the same pointer as input
  // For all_reduce, broadcast, reduce, send and recv: number of elements of the tensor. For other collectives: of one block.
  size_t count = 0;
  std::vector<size_t> send_counts = {};  // Set if blocks are uneven, for all_to_all, scatter (on the root) and reduce_scatter.
  std::vector<size_t> recv_counts = {};  // Set if blocks are uneven, for all_to_all, gather (on the root) and all_gather.
  bool in_place_blocks = false;          // for reduce_scatter and all_gather: input and output are the same whole buffer
  Rank root = 0;  // the root of a broadcast, reduce, gather or scatter; for send and recv, the other rank
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  uint64_t slice_bytes = 0;
  Nanos timeout = 0;
  // Must be plain if the collective supports no codecs. The caller keeps the codec until the call has been submitted.
  const Codec* codec = &plain_codec;
  float* encode_error = nullptr;  // see CallOptions::encode_error
  bool error_feedback = false;    // see CallOptions::error_feedback
  uint64_t agreement = 0;         // see CallOptions::agreement
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};  // ignored if delivery is reliable
  // See CallOptions::shard_unit. Only lossy reduce_scatter and all_gather use it. In these, `count` is the size of the whole
  // tensor.
  uint32_t shard_unit = 0;
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;  // The caller keeps it until the call has been submitted.
  // Says why the call cannot be lossy; empty if it can be. Static text. It decides if `delivery` is automatic, and must be
  // equal on all ranks.
  std::string_view reliable_because{};
};

// Identifies a call. Every frame carries the descriptor, so that the first message shows whether the sender makes a different
// call. `bits` consists of these parts, with their numbers of bits: collective 4 | dtype 4 | reduce op 4 | schedule 4 | hash
// 16. The hash covers the root, the slice bytes, whether counts are uneven, the agreement, and the codec options that the
// messages do not show.
struct CallDescriptor {
  uint32_t bits = 0;
  // The lower 40 bits are the number of elements of all blocks. They are 0 if each pair of ranks has its own size. The upper 24
  // bits are a second hash of CallOptions::agreement. They are 0 if the agreement is 0. If each pair has its own size, a
  // message shows the number of elements of its block instead; in an all-to-all, its upper bits are the share of its sender
  // (executor/block_balance.h).
  uint64_t amount = 0;
};
// This many bits of `amount` hold the number of elements. The API refuses a tensor whose number of elements does not fit.
inline constexpr uint32_t amount_bits = 40;
// Returns true if only two ranks know the size of a block.
constexpr bool sizes_per_pair(Collective c) {
  return c == Collective::all_to_all || c == Collective::gather || c == Collective::scatter;
}
// Returns the number of elements that the amount of a message or a descriptor shows.
constexpr uint64_t elements_in(uint64_t amount) { return amount & ((uint64_t{1} << amount_bits) - 1); }
CallDescriptor describe(const OperationRequest& request, ScheduleKind schedule, uint64_t slice_bytes, uint32_t world);
// Returns, for example, "all_reduce(f32 sum, 1000 elements, two_step)". receives: of a message between two ranks, this is the
// receive. (A send and its receive have one descriptor.)
std::string to_string(const CallDescriptor& descriptor, bool receives = false);
// Returns true if to_string() of the two descriptors differs.
bool differ_visibly(const CallDescriptor& a, const CallDescriptor& b);
// Describes the memory of one chunk on this rank.
struct ChunkMemory {
  const std::byte* input = nullptr;  // this rank's value of the chunk; null if it has none
  std::byte* output = nullptr;       // the buffer for received values or sums; null if this rank does not want the chunk
  size_t elements = 0;
  bool wanted = false;  // true: this rank must have the final value at the end
  bool owned = false;   // for reduce: this rank completes the chunk, and passes it to the root
};

// Returns the number of bytes that is used to choose the schedule. It is equal on all ranks.
uint64_t schedule_bytes(const OperationRequest& request, uint32_t world);
// Returns the size in bytes of this rank's input or output, whichever is larger. Benchmarks count this size.
uint64_t tensor_bytes(const OperationRequest& request, uint32_t world, Rank self);
// Returns the size in bytes of this rank's input and output together.
uint64_t memory_bytes(const OperationRequest& request, uint32_t world, Rank self);
// Says how a tensor is divided into chunks. Their sizes are equal, or have the ratios of `shares`.
struct Partition {
  uint32_t chunks = 1;
  // One share per chunk. The sum of the shares must be from 1 to 2^31 - 1. Empty: all chunks have equal sizes.
  std::span<const uint32_t> shares{};
  size_t unit_elements = 0;  // chunk boundaries are multiples of this; 0: they are multiples of a cache line
};
// Returns the memory of one chunk of a schedule. `partition` is used for tensors only, because blocks of ranks have explicit
// sizes.
ChunkMemory chunk_memory_of(const OperationRequest& request, uint32_t chunk, const Partition& partition, Rank self,
                            uint32_t world);

}  // namespace unisono

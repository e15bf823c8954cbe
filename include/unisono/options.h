// Options for joining a group (Options), and options of a single call (CallOptions).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unisono/codec.h"
#include "unisono/delivery.h"
#include "unisono/schedules.h"
#include "unisono/store.h"
#include "unisono/tensor.h"

namespace unisono {

using Milliseconds = std::chrono::milliseconds;

// Empty strings and negative numbers mean "from the environment, else the default": see docs/guides/operations.md.
struct Options {
  int32_t rank = -1;        // RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK
  int32_t world_size = -1;  // WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE
  // "tcp://host:port", "tcp://[host,address]:port" or "file:///path". UNISONO_RENDEZVOUS; MASTER_ADDR and MASTER_PORT.
  std::string rendezvous{};
  // Replaces `rendezvous`: rank 0 stores its address here, and the other ranks read it.
  std::shared_ptr<KeyValueStore> store{};
  std::string job{};                  // distinguishes jobs that use one address. UNISONO_JOB, SLURM_JOB_ID, …
  std::string interface {};           // network interface or address to listen on. UNISONO_INTERFACE; else by reachability
  std::string transport{};            // a name of transport_table. UNISONO_TRANSPORT
  bool join_running = false;          // wait until a running group re-forms, and join it then
  Milliseconds join_timeout{60'000};  // time for all ranks to meet
  Milliseconds timeout{300'000};      // default deadline of an operation
  Milliseconds reform_timeout{200};   // during re-forming, a peer that stays silent for this long is removed
  uint32_t min_world = 1;             // re-forming with fewer survivors ends the group (unavailable). Equal on all ranks
  // Re-forming also ends the group when fewer than half the old members survive, or exactly half without rank 0.
  bool require_majority = false;
  // udp: limit on everything that this process sends, in Mbit/s. 0: the measured capacity. UNISONO_RATE_LIMIT_MBPS.
  uint32_t rate_limit_mbps = 0;
  // udp: protects datagrams by CRC-32C instead of SipHash-2-4. It is faster, but anyone who can send to a port may forge
  // datagrams. A link uses it if both ends ask for it; lossy operations use it if all ranks ask. UNISONO_DATAGRAM_CHECKSUM.
  bool datagram_checksum = false;
  uint32_t streams_per_link = 0;  // TCP connections per pair of hosts; 0: automatic
  // File that `unisono tune` wrote. Rank 0's file counts; for streams_per_link each process uses its own. UNISONO_TUNING.
  std::string tuning{};
  // Codec of calls that name none, as Codec::parse() reads it; "": plain. Equal on all ranks. UNISONO_CODEC.
  std::string codec{};
  // Threads that encode and decode large tensors, including the calling one; 0: automatic. UNISONO_COMPUTE_THREADS.
  uint32_t compute_threads = 0;
  bool payload_checksum = false;  // CRC-32C over payloads too; headers always have one
};

// The order of additions. in_rank_order gives the same bits for every schedule, message size, timing, slice size and transport.
// any lets the library choose schedules that add partial sums; all ranks still get the same bits.
enum class Order : uint8_t { automatic = 0, in_rank_order = 1, any = 2 };

struct CallOptions {
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  Milliseconds timeout{0};   // 0 = the group's default; at most 30 days
  uint64_t id = 0;           // not 0: ranks match operations by this number instead of by call order; below 2^56
  uint64_t slice_bytes = 0;  // 0 = automatic
  // Not 0: a number that must be equal on all ranks, such as a hash of the call's purpose. If one rank's number differs, the
  // call ends with invalid on all ranks. Ranks compare a 40-bit hash of it. For all_reduce, reduce_scatter, all_gather,
  // broadcast and reduce.
  uint64_t agreement = 0;
  std::optional<Codec> codec{};  // none = the group's
  // Null, or a buffer of as many elements as the input, which receives this rank's encoding error. The error is the input minus
  // the values that the other ranks decoded. Where this rank adds contributions, the error of the encoded sum is added to it
  // (times the world size for avg). So the sum of all inputs equals the result plus the sum of all encode_error, which error
  // feedback adds to the next input. Elements that were not encoded get zero. For f32 tensors; all_reduce and reduce_scatter.
  float* encode_error = nullptr;
  // Error feedback (EF14: Seide et al., 2014): adds encode_error to the input first, in the same pass. Use one encode_error
  // buffer for all steps, zeros before the first. Excludes measure_error. After a failed call the buffer is unspecified, like
  // the result.
  bool error_feedback = false;
  // Fills Report::measured_error. It costs a second, exact sum, and memory for the input in fp32. For blocking all_reduce (sum,
  // avg) of f32, f16 and bf16 tensors, without id; equal on all ranks.
  bool measure_error = false;
  // lossy: an estimate replaces data that does not arrive in time (docs/guides/packet_loss.md). For all_reduce, reduce_shards
  // and gather_shards of f32, f16 and bf16, sum and avg, over links of the transport "udp"; without id, encode_error,
  // measure_error and agreement. automatic: lossy where that pays, else reliable; all_reduce only. Equal on all ranks.
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};
  // reduce_shards and gather_shards: shard sizes are multiples of this many elements; 0: of the codec's block. Give both calls
  // the same value if their codecs differ.
  uint32_t shard_unit = 0;
  // Lossy gather_shards: null, or for each rank the ranges of its shard that must arrive, in ascending order. The call requests
  // them again until they arrive or their rank falls silent.
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;
};

}  // namespace unisono

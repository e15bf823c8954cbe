// How a process joins a group, and how one call may differ from the group's defaults.
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
  int32_t rank = -1;         // RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK
  int32_t world_size = -1;   // WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE
  std::string rendezvous{};  // "tcp://host:port", "tcp://[host,address]:port" or "file:///path"; UNISONO_RENDEZVOUS,
                             // MASTER_ADDR + MASTER_PORT
  std::shared_ptr<KeyValueStore> store{};  // instead of `rendezvous`: where rank 0 leaves its address for the others
  std::string job{};                       // two jobs at one address are told apart by it; UNISONO_JOB, SLURM_JOB_ID, …
  std::string interface {};           // network interface name or address to listen on; UNISONO_INTERFACE; else by reachability
  std::string transport{};            // a name of transport_table; UNISONO_TRANSPORT
  bool join_running = false;          // wait to be taken in at the next re-forming of a running group
  Milliseconds join_timeout{60'000};  // for everyone to come together
  Milliseconds timeout{300'000};      // default deadline of an operation
  Milliseconds reform_timeout{200};   // how long a silent peer is waited for when the group is re-formed
  uint32_t min_world = 1;             // fewer survivors of a re-forming end the group (unavailable); equal on all ranks
  bool require_majority = false;      // likewise fewer than half the old members, or just half without rank 0
  uint32_t rate_limit_mbps =
      0;  // udp: of all that this process sends; UNISONO_RATE_LIMIT_MBPS; 0 = as the network is found to carry
  // udp: a CRC-32C instead of SipHash-2-4 in each datagram: faster, and anyone who can send to a port may forge. Taken where
  // both ends of a link, and for lossy operations all ranks, ask for it; UNISONO_DATAGRAM_CHECKSUM.
  bool datagram_checksum = false;
  uint32_t streams_per_link = 0;  // TCP connections per pair of hosts; 0 = automatic
  std::string
      tuning{};  // file that `unisono tune` wrote: rank 0's counts, for streams_per_link each process's own; UNISONO_TUNING
  std::string codec{};  // of calls that name none: as Codec::parse reads it; UNISONO_CODEC; "" = plain. Equal on all ranks
  uint32_t compute_threads =
      0;  // that encode and decode large tensors, the calling one included; UNISONO_COMPUTE_THREADS; 0 = automatic
  bool payload_checksum = false;  // CRC-32C over payloads too (headers always have one)
};

// The order of additions. in_rank_order gives the same bits whatever the schedule, message size, timing, slices or
// transport; any lets the library pick schedules that add partial sums (same bits on every rank, still).
enum class Order : uint8_t { automatic = 0, in_rank_order = 1, any = 2 };

struct CallOptions {
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  Milliseconds timeout{0};   // 0 = the group's default; at most 30 days
  uint64_t id = 0;           // not 0: operations are matched by this number instead of by the order of calls; below 2^56
  uint64_t slice_bytes = 0;  // 0 = automatic
  // Not 0: a number that all ranks must give alike, such as a hash of what they mean by this call: where one differs the call
  // ends with invalid on all of them. (What is compared is a hash of 40 bits.) all_reduce, reduce_scatter, all_gather,
  // broadcast, reduce.
  uint64_t agreement = 0;
  std::optional<Codec> codec{};  // none = the group's
  // Null, or as many elements as the input: what encoding at this rank loses goes there: its input minus what the others had of
  // it, and where this rank adds up, also the sum minus what they had of that (times the world size for avg). So the sum over
  // ranks of input equals that of result and encode_error: what error feedback adds to the next input. All zero where nothing
  // is encoded. f32 tensors; all_reduce and reduce_scatter.
  float* encode_error = nullptr;
  // What is in encode_error is added to the input first, in the same pass: error feedback (EF14: Seide et al., 2014), with one
  // encode_error for all steps, zeros before the first. Without measure_error. After an error of the call it is of no more use
  // than the result.
  bool error_feedback = false;
  // Report::measured_error. Costs an exact sum beside the call's own, and memory for the input in fp32. Blocking all_reduce
  // (sum, avg) of f32, f16 and bf16 tensors, without id; all ranks alike.
  bool measure_error = false;
  // lossy: what does not arrive in time is replaced in expectation (docs/guides/packet_loss.md). all_reduce, reduce_shards and
  // gather_shards of f32, f16 and bf16, sum and avg, over links of the transport "udp"; without id, encode_error, measure_error
  // and agreement. automatic: the same where that pays, else reliable; all_reduce only. All ranks alike.
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};
  // reduce_shards and gather_shards: shards have multiples of so many elements; 0: of the codec's block. Equal for both where
  // their codecs are not.
  uint32_t shard_unit = 0;
  // gather_shards, lossy: null, or by rank which of its ranges must come, ascending: they are asked for until they do, or their
  // rank is silent.
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;
};

}  // namespace unisono

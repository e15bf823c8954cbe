// Options are for joining a group; CallOptions are for a single call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unisono/codec.h"
#include "unisono/delivery.h"
#include "unisono/event.h"
#include "unisono/schedules.h"
#include "unisono/store.h"
#include "unisono/tensor.h"

namespace unisono {

using Milliseconds = std::chrono::milliseconds;

// Whether links and the rendezvous are encrypted and authenticated.
// - automatic: with a key they are. Without one, rank 0 of a group that reaches beyond this host warns.
// - required: joining fails without a key, or with one that came through a store, which others may read.
// - off: they are not, and nobody warns.
enum class Security : uint8_t { automatic = 0, required = 1, off = 2 };

// If a field is an empty string or a negative number, the value comes from an environment variable. If that is not set, the
// default holds. The comments name the variables. See docs/guides/operations.md.
struct Options {
  int32_t rank = -1;        // RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK
  int32_t world_size = -1;  // WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE
  // "tcp://host:port", "tcp://[host,address]:port" or "file:///path". Variables: UNISONO_RENDEZVOUS; MASTER_ADDR and
  // MASTER_PORT.
  std::string rendezvous{};
  // If this is set, it replaces `rendezvous`. Rank 0 stores its address in it, and the other ranks read it.
  std::shared_ptr<KeyValueStore> store{};
  // The secret key of the job: 64 hexadecimal digits, as `unisono key` prints them. All processes of the job need the same one.
  // UNISONO_KEY; UNISONO_KEY_FILE: the path of a file that holds it, which other users of the host must not be able to read;
  // UNISONO_KEY_FD: a descriptor that holds it. Without these: the file unisono_key in $CREDENTIALS_DIRECTORY (systemd), if it
  // is there.
  std::string key{};
  Security security = Security::automatic;  // UNISONO_SECURITY: auto, required or off
  std::string job{};                        // distinguishes jobs that use the same address. UNISONO_JOB, SLURM_JOB_ID, …
  // The network interface or the address to listen on. UNISONO_INTERFACE. Default: all interfaces that peers can reach.
  std::string interface {};
  std::string transport{};            // one of the names in transport_table. UNISONO_TRANSPORT
  bool join_running = false;          // true: join() waits until a running group re-forms, and then joins it
  Milliseconds join_timeout{60'000};  // all ranks must have connected within this time
  Milliseconds timeout{300'000};      // default deadline of an operation
  // If a peer is silent for this long, re-forming removes it. A peer whose host does not answer, or whose link is made anew, is
  // waited for up to 10 s. (Over udp, only a lost link is made anew.)
  Milliseconds reform_timeout{200};
  // With fewer survivors than this, reform() ends the group (unavailable). It must be equal on all ranks.
  uint32_t min_world = 1;
  // true: if the network splits a group, at most one part goes on after reform(): the part with more than half of the old
  // members, or with exactly half and the lowest rank. The other part gets unavailable. Members do not count if they have left,
  // or if their processes have provably ended. false: both parts go on, as two groups. UNISONO_REQUIRE_MAJORITY. It must be
  // equal on all ranks.
  bool require_majority = true;
  // For udp: this process sends at most this many Mbit/s in total. 0: the measured capacity is the limit.
  // UNISONO_RATE_LIMIT_MBPS.
  uint32_t rate_limit_mbps = 0;
  // For udp. true: CRC-32C protects datagrams. false: SipHash-2-4 protects them. CRC-32C is faster, but anyone who can send to
  // a port can forge datagrams. A link uses CRC-32C if both its ends set this option. Lossy operations use it if all ranks set
  // it. With a key, datagrams are encrypted, and it is an error to ask for CRC-32C. UNISONO_DATAGRAM_CHECKSUM.
  bool datagram_checksum = false;
  uint32_t streams_per_link = 0;  // number of TCP connections between each pair of hosts; 0: automatic
  // A link between hosts whose connection breaks is connected anew, and loses nothing. If it cannot be connected for this long,
  // the peer counts as lost. UNISONO_LINK_TIMEOUT_MS.
  Milliseconds link_timeout{10'000};
  // Bytes that are copied at most per TCP link, and by all TCP links of this process, so that a new connection can send them
  // again. When this memory is used up, operations wait until the peer has confirmed what they sent. The group that joined last
  // sets the limit of the process. UNISONO_RESEND_MEMORY_PER_LINK, UNISONO_RESEND_MEMORY.
  uint64_t resend_memory_per_link = 16u << 20;
  uint64_t resend_memory = 256u << 20;
  // Path of a file that `unisono tune` wrote. The file of rank 0 applies to all ranks, except for streams_per_link: each
  // process takes it from its own file. UNISONO_TUNING.
  std::string tuning{};
  // The codec for calls that name none, in the form that Codec::parse() reads. "": plain. It must be equal on all ranks.
  // UNISONO_CODEC.
  std::string codec{};
  // The number of threads that encode and decode large tensors. The calling thread counts. 0: automatic.
  // UNISONO_COMPUTE_THREADS.
  uint32_t compute_threads = 0;
  bool payload_checksum = false;  // true: CRC-32C protects payloads, too; headers are always protected
  // Gets what no call returns: see event.h. The log that UNISONO_LOG chooses gets it, too.
  EventHandler on_event{};
};

// The order in which values are added.
// - in_rank_order: the bits of the result do not depend on schedule, message size, timing, slice size or transport.
// - any: schedules may also add partial sums to each other. All ranks still get the same bits.
enum class Order : uint8_t { automatic = 0, in_rank_order = 1, any = 2 };

struct CallOptions {
  ReduceOp op = ReduceOp::sum;
  Order order = Order::automatic;
  ScheduleKind schedule = ScheduleKind::automatic;
  Milliseconds timeout{0};  // 0: the default of the group; at most 30 days
  // If this is not 0, ranks match operations by this number, and not by the order of calls. It must be below 2^56.
  uint64_t id = 0;
  uint64_t slice_bytes = 0;  // 0 = automatic
  // If this is not 0, it must be equal on all ranks. It can be a hash of the call's purpose, for example. If any rank passes
  // another number, the call ends with invalid on all ranks. Ranks compare 40-bit hashes of the number. It works with
  // all_reduce, reduce_scatter, all_gather, broadcast and reduce.
  uint64_t agreement = 0;
  std::optional<Codec> codec{};  // none: the codec of the group
  // For error feedback: null, or a buffer with as many elements as the input. It receives the error of this rank's encoding. It
  // works with all_reduce and reduce_scatter of f32 tensors.
  //
  // The error is the input minus the values that the other ranks decoded. For elements that were not encoded, it is 0. Where
  // this rank adds contributions, the error of the encoded sum is added (times the world size for avg). Therefore, summed over
  // all ranks, sum(inputs) = result + sum(encode_error).
  float* encode_error = nullptr;
  // true: encode_error is first added to the input, in the same pass over memory (EF14: Seide et al., 2014). Pass the same
  // encode_error buffer in all steps, with zeros before the first step. After a failed call its content is unspecified, like
  // that of the result. It cannot be combined with measure_error.
  bool error_feedback = false;
  // true: fills Report::measured_error. This costs a second, exact sum, and memory for the input in fp32. It is only for
  // blocking all_reduce (sum, avg) of f32, f16 and bf16 tensors, without id. It must be equal on all ranks.
  bool measure_error = false;
  // lossy: if data does not arrive in time, an estimate replaces it (docs/guides/packet_loss.md). automatic: the library uses
  // lossy delivery where that is faster, and reliable delivery elsewhere; for all_reduce only. It must be equal on all ranks.
  //
  // lossy works with all_reduce, reduce_shards and gather_shards, for sum and avg of f32, f16 and bf16, over links of the
  // transport "udp". It cannot be combined with id, encode_error, measure_error or agreement.
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};
  // For reduce_shards and gather_shards: the sizes of shards are multiples of this many elements. 0: multiples of the codec's
  // block size. If the two calls have different codecs, pass the same value to both calls.
  uint32_t shard_unit = 0;
  // For lossy gather_shards: null, or one list for each owner of a shard. The list names the ranges of this shard that must
  // arrive, in ascending order. The call requests them again until they arrive or until their owner falls silent.
  const std::vector<std::vector<uint32_t>>* needed_ranges = nullptr;
};

}  // namespace unisono

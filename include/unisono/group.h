// A group of processes that compute collectives together. This is Unisono's C++ API.
//
//   auto group = unisono::Group::join();                       // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   auto report = group->all_reduce(std::span<float>(grad));   // blocking; sum in place
//   auto work = group->all_reduce_async(tensor, {.op = ReduceOp::avg});
//   auto done = work.wait();                                   // Result<Report>
//
// All ranks of a group call the same collectives with matching arguments, in the same order or with the same CallOptions::id.
// The library detects a mismatch and names it. Every rank that gets ok holds the same bits. Every operation ends by its
// deadline: with ok, or with a Status that names the peer, the phase and the missing bytes. After peer_lost or late, call
// reform().
//
// Thread-safe: any thread may start operations and wait for them. Until an operation is done, its buffers must stay valid and
// must not be touched. Group and Work are cheap handles; dropping the last handle of the joined group closes its links.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "unisono/counters.h"
#include "unisono/export.h"
#include "unisono/options.h"
#include "unisono/report.h"
#include "unisono/status.h"
#include "unisono/tensor.h"

namespace unisono {

namespace internal {
struct WorkState;
struct GroupState;
}  // namespace internal

// One operation in flight.
class UNISONO_EXPORT Work {
 public:
  Work() = default;
  // Blocks until the operation is done, at most until its deadline. Returns its report, or the Status of its failure.
  Result<Report> wait();
  // As wait(), but returns late ("still running") after `time`; the operation continues.
  Result<Report> wait_for(Milliseconds time);
  bool done() const;
  // Calls `notice` once when the operation is done, or immediately if it already is. The caller is the thread that notices the
  // end: one of the library's own, or one that waits for another operation. `notice` must be short. It may start operations,
  // but must not wait for any.
  void notify(std::function<void()> notice) const;
  // The report so far. It is complete after done(), also for a failed operation.
  Report report() const;
  explicit operator bool() const { return state_ != nullptr; }

 private:
  friend class Group;
  explicit Work(std::shared_ptr<internal::WorkState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::WorkState> state_;
};

struct Member {
  uint32_t rank = 0;
  std::string host;
  int32_t pid = 0;
  std::string link;  // "shm", "tcp 10.0.0.2:4711 (eth0)", "self"
};

// Speed of the links between members, as schedules use it. It is measured when the group forms, and again when processes join.
// Equal on all ranks.
struct LinkSpeeds {
  struct Kind {
    bool measured = false;    // false: a starting value, as rank 0 has no such link or got no answer in time
    double latency_us = 0;    // one way, for a message of a few bytes
    double bytes_per_us = 0;  // 1000 = 1 GB/s
  };
  struct HostPair {
    std::string host_a, host_b;
    Kind speed;
  };
  Kind inside_hosts, between_hosts;    // between hosts: the median of all pairs
  std::vector<HostPair> host_pairs{};  // the measured pairs; up to 64 hosts
  // "inside hosts 0.4 us, 9.1 GB/s; between hosts 25 us, 1.1 GB/s (not measured)". If pairs differ much, it ends with the
  // slowest: "slowest a-b 26 us, 0.1 GB/s".
  UNISONO_EXPORT std::string to_string() const;
};

// The outcome of re-forming a group.
struct Reformed {
  uint32_t epoch = 0;
  uint32_t rank = 0;        // new rank of this process
  uint32_t world_size = 0;  // new size
  std::vector<Member> lost;
  std::vector<Member> joined;
  int64_t total_us = 0;
};

using Counts = std::span<const size_t>;  // elements per rank; empty = equal blocks

class UNISONO_EXPORT Group {
 public:
  // Meets the other ranks. Returns when all links are up; otherwise the error names the missing ranks and the attempts made.
  static Result<Group> join(const Options& options = {});

  uint32_t rank() const;
  uint32_t world_size() const;
  uint32_t epoch() const;
  std::vector<Member> members() const;
  LinkSpeeds link_speeds() const;
  // Statistics of this group since it was joined, split or re-formed. Empty if it keeps no record: after the group has ended,
  // with UNISONO_RECORD=0, and for sub-groups beyond the 63rd.
  Counters counters() const;
  // Writes the group's record (docs/guides/troubleshooting.md) to a file for `unisono explain` and `unisono trace`, replacing
  // the file. unavailable: there is no record, or the file cannot be written.
  Status dump_record(const std::string& path) const;

  // Every rank ends with the reduction of all ranks' tensors. One tensor: in place.
  Work all_reduce_async(Tensor inout, const CallOptions& options = {});
  Work all_reduce_async(ConstTensor input, Tensor output, const CallOptions& options = {});
  // Rank r ends with block r of the reduction. input holds the blocks of all ranks in rank order.
  Work reduce_scatter_async(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  // In place: the result replaces this rank's block of inout; the other blocks are unspecified afterwards.
  Work reduce_scatter_async(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  // Every rank ends with all ranks' blocks in rank order.
  Work all_gather_async(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  // In place: inout already holds this rank's block at its position.
  Work all_gather_async(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  Work broadcast_async(Tensor inout, uint32_t root, const CallOptions& options = {});
  // Only root's output is written, and it may be the input's memory. The other ranks' outputs are ignored.
  Work reduce_async(ConstTensor input, Tensor output, uint32_t root, const CallOptions& options = {});
  // root ends with all ranks' blocks; counts are needed on root only.
  Work gather_async(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  // Rank r ends with block r of root's input; counts are needed on root only.
  Work scatter_async(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  // Block d of input goes to rank d; block s of output comes from rank s. Equal blocks may be exchanged in place.
  Work all_to_all_async(ConstTensor input, Tensor output, Counts send_counts = {}, Counts recv_counts = {},
                        const CallOptions& options = {});
  Work barrier_async(const CallOptions& options = {});
  // Messages between two ranks match by tag, in order of the calls for one tag. tag < 2^15.
  Work send_async(ConstTensor input, uint32_t to, uint32_t tag = 0, const CallOptions& options = {});
  Work recv_async(Tensor output, uint32_t from, uint32_t tag = 0, const CallOptions& options = {});

  // Receives the first message with this tag from any rank, if no other receive has claimed it. Report::last_rank is its
  // sender. peer_lost: no other member is left. A late error names the members that were lost before.
  Work recv_any_async(Tensor output, uint32_t tag = 0, const CallOptions& options = {});

  // The same, blocking.
  Result<Report> all_reduce(Tensor inout, const CallOptions& options = {});
  Result<Report> all_reduce(ConstTensor input, Tensor output, const CallOptions& options = {});
  Result<Report> reduce_scatter(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  Result<Report> reduce_scatter(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  Result<Report> all_gather(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  Result<Report> all_gather(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  Result<Report> broadcast(Tensor inout, uint32_t root, const CallOptions& options = {});
  Result<Report> reduce(ConstTensor input, Tensor output, uint32_t root, const CallOptions& options = {});
  Result<Report> gather(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  Result<Report> scatter(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  Result<Report> all_to_all(ConstTensor input, Tensor output, Counts send_counts = {}, Counts recv_counts = {},
                            const CallOptions& options = {});
  Result<Report> barrier(const CallOptions& options = {});
  Result<Report> send(ConstTensor input, uint32_t to, uint32_t tag = 0, const CallOptions& options = {});
  Result<Report> recv(Tensor output, uint32_t from, uint32_t tag = 0, const CallOptions& options = {});
  Result<Report> recv_any(Tensor output, uint32_t tag = 0, const CallOptions& options = {});

  // The two halves of an all-reduce for ranks that each keep a shard of the tensor (ShardedStep, docs/guides/packet_loss.md).
  // reduce_shards: rank r gets shard r of the reduction. gather_shards: every rank gets all shards. shard_layout() gives the
  // sizes.
  //
  // With Delivery::lossy, a range (the content of one datagram) may lack contributions. A range that is missing leaves output's
  // old values in place. Report::delivery names those ranges and the silent ranks. Every rank needs a shard that is not empty.
  // gather_shards sets output's own shard to the values that the other ranks decode. `tensor` gives only its size and type.
  // From `options`, both use shard_unit and the codec: reduce_shards its first half, gather_shards its second.
  Result<ShardLayout> shard_layout(ConstTensor tensor, const StepCodec& codec = {}, uint32_t shard_unit = 0) const;
  Work reduce_shards_async(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Result<Report> reduce_shards(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Work gather_shards_async(ConstTensor shard, Tensor output, const CallOptions& options = {});
  Result<Report> gather_shards(ConstTensor shard, Tensor output, const CallOptions& options = {});
  // Bytes of a full datagram between all members, header included. 0: some links carry no datagrams, so no call can be lossy.
  uint32_t datagram_bytes() const;

  // Makes a group of some of this group's ranks, numbered in the given order. Every member of the new group calls it with the
  // same list, and makes its sub-groups in the same order; it sends nothing. The new group ends when its parent re-forms.
  Result<Group> split(std::span<const uint32_t> ranks);

  // Ends this rank's operations in this group, and the other members' operations that need this rank, including later calls.
  // They end with unavailable ("aborted", with the reason). This rank's later calls are refused. The process's other groups,
  // and groups split from this one, continue.
  void abort(const std::string& reason = "");

  // After peer_lost or late: the living ranks agree on the survivors, keep their links and admit processes that wait to join.
  // The group continues under a new epoch with new ranks; the order stays, and joiners come last. All living ranks must call
  // it. A rank that does not answer within Options::reform_timeout is removed, and learns that when it comes back. Operations
  // in flight end with peer_lost.
  Result<Reformed> reform();

 private:
  explicit Group(std::shared_ptr<internal::GroupState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::GroupState> state_;
};

}  // namespace unisono

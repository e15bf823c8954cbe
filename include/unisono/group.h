// A group of processes that compute collectives together. The C++ API of Unisono.
//
//   auto group = unisono::Group::join();                       // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   auto report = group->all_reduce(std::span<float>(grad));   // blocking; sum in place
//   auto work = group->all_reduce_async(tensor, {.op = ReduceOp::avg});
//   auto done = work.wait();                                   // Result<Report>
//
// All ranks of a group call the same collectives with matching arguments, in the same order (or with the same
// CallOptions::id). A mismatch is detected and named. Every rank that gets ok holds the same bits. Every operation ends by
// its deadline: ok, or a Status that names the peer, the phase and the bytes missing. After peer_lost or late, call reform().
//
// Thread-safe: any thread may start and wait for operations. Buffers must stay valid, and must not be touched, until the
// operation is done. Groups and Works are cheap handles; the last handle of the joined group closes its links.
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
  // Blocks until the operation is done: its report, or why it failed. Always returns by the operation's deadline.
  Result<Report> wait();
  // As wait(), but gives up waiting after the time with code late and the message "still running"; the operation goes on.
  Result<Report> wait_for(Milliseconds time);
  bool done() const;
  // `notice` is called once when the operation is done, or at once if it is: by the thread that finds it, which may be this
  // library's own, or one that waits for something else. It must be short, and may start operations, but not wait for any.
  void notify(std::function<void()> notice) const;
  // What happened so far; complete after done(), also when the operation failed.
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

// How quick the links between members are, as far as schedules are chosen by it. They are measured when the group forms, and
// again when processes join it; equal on all ranks.
struct LinkSpeeds {
  struct Kind {
    bool measured = false;    // else a starting value: no such link at rank 0, or no answer in time
    double latency_us = 0;    // from one rank to another, a message of a few bytes
    double bytes_per_us = 0;  // 1000 = 1 GB/s
  };
  struct HostPair {
    std::string host_a, host_b;
    Kind speed;
  };
  Kind inside_hosts, between_hosts;    // between hosts: the median of all pairs
  std::vector<HostPair> host_pairs{};  // those that were measured; up to 64 hosts
  // "inside hosts 0.4 us, 9.1 GB/s; between hosts 25 us, 1.1 GB/s (not measured)"; where pairs differ much, also the slowest:
  // "slowest a-b 26 us, 0.1 GB/s"
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
  // Comes together with the others; returns when all links are up, or an error that names who is missing and what was tried.
  static Result<Group> join(const Options& options = {});

  uint32_t rank() const;
  uint32_t world_size() const;
  uint32_t epoch() const;
  std::vector<Member> members() const;
  LinkSpeeds link_speeds() const;
  // What was done in this group so far. Empty if it keeps no record: after it has ended, with UNISONO_RECORD=0, or for
  // sub-groups beyond the 63rd.
  Counters counters() const;
  // Writes the group's record (docs/guides/troubleshooting.md) to a file, for `unisono explain` and `unisono trace`; a former
  // file is replaced. unavailable: there is no record, or the file cannot be written.
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
  // In place: this rank's block already stands at its place in inout.
  Work all_gather_async(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  Work broadcast_async(Tensor inout, uint32_t root, const CallOptions& options = {});
  // output is written on root only, and may be input's memory there; elsewhere it is ignored.
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

  // The first message with this tag, whoever sends it, among those that no other receive has asked for: Report::last_rank is
  // its sender. peer_lost when no other member is left; whoever was lost before is named when it is late.
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

  // The two halves of an all-reduce for those who keep a shard of the tensor each (ShardedStep, docs/guides/packet_loss.md):
  // rank r's shard of the reduction goes to rank r, and every rank's shard to all. Sizes: shard_layout(). With Delivery::lossy
  // a range (what a datagram carries) may be short of contributions; or missing, and then output keeps what it had there:
  // Report::delivery says which, and names ranks that were silent; no rank may be without a shard then. output's own shard
  // becomes what the others decode. tensor: only its size and type count. options: shard_unit, and the codec, of which
  // reduce_shards takes the first part and gather_shards the last.
  Result<ShardLayout> shard_layout(ConstTensor tensor, const StepCodec& codec = {}, uint32_t shard_unit = 0) const;
  Work reduce_shards_async(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Result<Report> reduce_shards(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Work gather_shards_async(ConstTensor shard, Tensor output, const CallOptions& options = {});
  Result<Report> gather_shards(ConstTensor shard, Tensor output, const CallOptions& options = {});
  // Of a full datagram between all members, header included; 0: not all their links carry datagrams, and nothing can be lossy.
  uint32_t datagram_bytes() const;

  // A group of some of this group's ranks, numbered in the order given. Every member of the new group calls it with the same
  // list, and makes its sub-groups in the same order; nothing is sent. It ends when the parent is re-formed.
  Result<Group> split(std::span<const uint32_t> ranks);

  // Ends what is in flight in this group here, and at the other members that and all that needs something of this rank, also
  // what they call later (unavailable: "aborted", with the reason); refuses what comes after. Its other groups, and what is
  // split from it, go on.
  void abort(const std::string& reason = "");

  // After peer_lost or late: the ranks that are alive agree on who is left, keep their links, take in processes that wait to
  // join, and go on under a new epoch with new ranks (order kept, joiners last). All living ranks must call it; who does not
  // answer within Options::reform_timeout is removed, and is told so when it comes back. Operations in flight end with
  // peer_lost.
  Result<Reformed> reform();

 private:
  explicit Group(std::shared_ptr<internal::GroupState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::GroupState> state_;
};

}  // namespace unisono

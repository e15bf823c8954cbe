// A group of processes that compute collectives together. This is Unisono's C++ API.
//
//   auto group = unisono::Group::join();                       // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   auto report = group->all_reduce(std::span<float>(grad));   // blocking; sum in place
//   auto work = group->all_reduce_async(tensor, {.op = ReduceOp::avg});
//   auto done = work.wait();                                   // Result<Report>
//
// All ranks of a group call the same collectives with matching arguments. They call them in the same order, or give each call
// the same CallOptions::id. The library detects a mismatch and names it. Every rank that gets ok holds the same bits. Every
// operation ends by its deadline. It ends with ok, or with a Status that names the peer, the phase and the missing bytes. After
// peer_lost or late, call reform().
//
// Any thread may start operations and wait for them. Until an operation is done, the caller must keep its buffers alive and
// must not touch them. Group and Work are cheap handles. A Work may be dropped before its operation is done.
//
// The destructor of the last handle of the joined group first waits for those operations that other ranks may need: all but
// receives. Each of them ends by its deadline. So what was sent arrives. Then the destructor closes the links. Buffers of
// operations whose Work was dropped must live until then.
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

// A handle of one operation.
class UNISONO_EXPORT Work {
 public:
  Work() = default;
  // Blocks until the operation is done, which takes at most until its deadline. Returns the operation's report, or the Status
  // of its failure.
  Result<Report> wait();
  // Like wait(), but if the operation is not done after `time`, returns late ("still running"). The operation then continues.
  Result<Report> wait_for(Milliseconds time);
  bool done() const;
  // Calls `notice` once, when the operation is done. If it is done already, notify() calls `notice` at once. `notice` runs on
  // the thread that detects the end. This is a thread of the library, or a thread that waits for another operation. `notice`
  // must be short. It may start operations, but must not wait for any.
  void notify(std::function<void()> notice) const;
  // Returns the report as it is now. It is complete once done() returns true, even if the operation failed.
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
  std::string link;  // "shm", "tcp 10.0.0.2:4711 (eth0)" or "self"
};

// The speeds of the links between members. The library uses them to choose schedules. Rank 0 measures them when the group
// forms, and again when processes join. They are equal on all ranks.
struct LinkSpeeds {
  struct Kind {
    bool measured = false;  // false: the speeds are defaults, because rank 0 has no link of this kind or got no answer in time
    double latency_us = 0;  // time that a message of a few bytes takes in one direction
    double bytes_per_us = 0;  // 1000 = 1 GB/s
  };
  struct HostPair {
    std::string host_a, host_b;
    Kind speed;
  };
  Kind inside_hosts, between_hosts;    // between_hosts: the median over all pairs of hosts
  std::vector<HostPair> host_pairs{};  // the pairs of hosts that were measured; for up to 64 hosts
  // Returns, for example, "inside hosts 0.4 us, 9.1 GB/s; between hosts 25 us, 1.1 GB/s (not measured)". If the pairs of hosts
  // differ much, the text also has the slowest pair: "slowest a-b 26 us, 0.1 GB/s".
  UNISONO_EXPORT std::string to_string() const;
};

// The result of reform().
struct Reformed {
  uint32_t epoch = 0;
  uint32_t rank = 0;        // the new rank of this process
  uint32_t world_size = 0;  // the new number of ranks
  std::vector<Member> lost;
  std::vector<Member> joined;
  int64_t total_us = 0;
};

using Counts = std::span<const size_t>;  // number of elements of each rank; empty: all blocks have equal size

class UNISONO_EXPORT Group {
 public:
  // Connects to the other ranks, and returns when all links are up. The message of an error names the missing ranks and the
  // attempts to reach them.
  static Result<Group> join(const Options& options = {});

  uint32_t rank() const;
  uint32_t world_size() const;
  uint32_t epoch() const;
  std::vector<Member> members() const;
  LinkSpeeds link_speeds() const;
  // Returns statistics of this group since it was joined, split or re-formed. They are empty if the group keeps no record. A
  // group keeps none after its end, with UNISONO_RECORD=0, and if it is a sub-group beyond the 63rd.
  Counters counters() const;
  // Writes the group's record to a file, for `unisono explain` and `unisono trace`. An existing file is replaced. See
  // docs/guides/troubleshooting.md. Error unavailable: there is no record, or the file cannot be written.
  Status dump_record(const std::string& path) const;

  // Every rank gets the reduction of all ranks' tensors. The overload with one tensor works in place.
  Work all_reduce_async(Tensor inout, const CallOptions& options = {});
  Work all_reduce_async(ConstTensor input, Tensor output, const CallOptions& options = {});
  // Rank r gets block r of the reduction. Each rank's input holds the blocks for all ranks, in rank order.
  Work reduce_scatter_async(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  // Works in place: the result replaces this rank's block of inout. The other blocks are unspecified afterwards.
  Work reduce_scatter_async(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  // Every rank gets the blocks of all ranks, in rank order.
  Work all_gather_async(ConstTensor input, Tensor output, Counts counts = {}, const CallOptions& options = {});
  // Works in place: inout must hold this rank's block at its position.
  Work all_gather_async(Tensor inout, Counts counts = {}, const CallOptions& options = {});
  Work broadcast_async(Tensor inout, uint32_t root, const CallOptions& options = {});
  // The root gets the reduction of all ranks' inputs. Its output may be the same memory as its input. The outputs of other
  // ranks are ignored.
  Work reduce_async(ConstTensor input, Tensor output, uint32_t root, const CallOptions& options = {});
  // The root gets the blocks of all ranks, in rank order. Only the root needs counts.
  Work gather_async(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  // Rank r gets block r of the root's input. Only the root needs counts.
  Work scatter_async(ConstTensor input, Tensor output, uint32_t root, Counts counts = {}, const CallOptions& options = {});
  // Block d of a rank's input goes to rank d; block s of its output comes from rank s. Blocks of equal size may be exchanged in
  // place.
  Work all_to_all_async(ConstTensor input, Tensor output, Counts send_counts = {}, Counts recv_counts = {},
                        const CallOptions& options = {});
  Work barrier_async(const CallOptions& options = {});
  // Send and receive messages between two ranks. The n-th send with a tag matches the n-th receive with the same tag. Every
  // number is a tag. Both ranks keep about 64 bytes for each tag that they have used.
  Work send_async(ConstTensor input, uint32_t to, uint32_t tag = 0, const CallOptions& options = {});
  Work recv_async(Tensor output, uint32_t from, uint32_t tag = 0, const CallOptions& options = {});

  // Receives a message with this tag from any rank: the first message that no other receive has claimed. Report::last_rank is
  // the sender. Error peer_lost: no other member is left. Error late: the message of the error names lost members, if there are
  // any.
  Work recv_any_async(Tensor output, uint32_t tag = 0, const CallOptions& options = {});

  // The calls above in blocking form.
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

  // The two halves of an all-reduce, for ranks that each keep one shard of the tensor (ShardedStep,
  // docs/guides/packet_loss.md).
  // - reduce_shards(): rank r gets shard r of the reduction. It uses codec.reduce and shard_unit of `options`.
  // - gather_shards(): every rank gets all shards. It uses codec.gather and shard_unit of `options`. In the output, this rank's
  //   own shard also has the values that the other ranks decode.
  // - shard_layout(): returns the sizes. It uses only the size and the type of `tensor`.
  //
  // With Delivery::lossy, every rank needs a shard that is not empty, and some contributions to a range (the content of one
  // datagram) may be missing. If a whole range is missing, the output keeps its old values there. Report::delivery lists these
  // ranges, and the ranks that were silent.
  Result<ShardLayout> shard_layout(ConstTensor tensor, const StepCodec& codec = {}, uint32_t shard_unit = 0) const;
  Work reduce_shards_async(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Result<Report> reduce_shards(ConstTensor input, Tensor shard, const CallOptions& options = {});
  Work gather_shards_async(ConstTensor shard, Tensor output, const CallOptions& options = {});
  Result<Report> gather_shards(ConstTensor shard, Tensor output, const CallOptions& options = {});
  // Returns the size, in bytes and with its header, of the largest datagram that every link of the group can carry. 0: some
  // link carries no datagrams, so calls cannot be lossy.
  uint32_t datagram_bytes() const;

  // Returns a handle of this group for callers that wait for each operation in pieces of time, to handle signals in between,
  // for example. Its asynchronous calls cost as little as blocking ones: each polls for up to about 1 ms before it returns. An
  // operation that has not ended by then makes progress only after somebody has begun to wait for it.
  Group polling() const;

  // Makes a sub-group of the given ranks, numbered in the given order. All its members must call split() with the same list. If
  // they make several sub-groups, they must make them in the same order. split() sends nothing. The sub-group ends when this
  // group re-forms.
  Result<Group> split(std::span<const uint32_t> ranks);

  // Ends this rank's operations in this group, and refuses its later calls. At the other members, it ends the running and later
  // operations that need this rank. All these operations end with unavailable ("aborted", with the reason). The other groups of
  // this process continue, even if they were split from this group.
  void abort(const std::string& reason = "");

  // Call it on all living ranks after peer_lost or late. They agree on the survivors, keep their links, and admit processes
  // that wait to join. Operations in flight end with peer_lost. The group continues with a new epoch and new ranks: first the
  // survivors in their old order, then the joiners.
  //
  // If a rank does not answer within Options::reform_timeout, it is removed. When it answers again, it is told so. A rank whose
  // link is lost is dialled first. If its link is made anew, or if its host does not answer, it is waited for up to 10 s. If
  // the network has split the group, the smaller part gets unavailable (Options::require_majority).
  Result<Reformed> reform();

 private:
  explicit Group(std::shared_ptr<internal::GroupState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::GroupState> state_;
  bool polls_ = false;
};

}  // namespace unisono

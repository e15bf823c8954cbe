// Tests which rank the errors blame for a late operation. To find that rank, the ranks must ask each other.
#include <gtest/gtest.h>

#include "group/api/calls.h"
#include "sim/checkers.h"
#include "sim/cluster.h"

namespace unisono::sim {
namespace {

constexpr uint32_t world = 4;
constexpr Nanos timeout = 100 * millisecond;

// One ring all-reduce in which each rank calls at a given time.
class LateCalls {
 public:
  explicit LateCalls(const Nanos (&calls)[world])
      : cluster_({.processes = world,
                  .seed = 1,
                  .network = {},
                  .compute = {},
                  .limits = {},
                  .topology = {shared_memory_profile(2), network_tcp_profile(2)}},
                 trace_),
        values_(world, std::vector<int32_t>(1000, 1)) {
    for (PeerIndex p = 0; p < world; ++p) {
      groups_.push_back(&cluster_.make_group(p, 1, {0, 1, 2, 3}, {0, 1, 2, 3}));
      cluster_.at(calls[p], [this, p] { call(p); });
    }
    cluster_.run_until(second);
  }
  const Completion& done(Rank rank) const { return *done_[rank]; }

 private:
  void call(PeerIndex p) {
    const Tensor tensor{std::span<int32_t>(values_[p])};
    auto request = all_reduce_call({p, world, timeout}, tensor, tensor, {.order = Order::any, .schedule = ScheduleKind::ring});
    done_[p] = cluster_.engine(p).submit(*groups_[p], std::move(*request), 0, cluster_.now());
    cluster_.touched(p);
  }

  Trace trace_;
  Cluster cluster_;
  std::vector<GroupCore*> groups_;
  std::vector<std::vector<int32_t>> values_;
  std::shared_ptr<Completion> done_[world];
};

// Rank 1 reaches its deadline first and asks the other ranks for whom they wait. Rank 1 waits for data by way of rank 0. Rank 0
// waits for rank 3, which calls last.
TEST(Late, a_rank_that_calls_during_the_inquiry_is_named) {
  const LateCalls calls({30 * millisecond, 0, 30 * millisecond, 120 * millisecond});
  for (Rank rank = 0; rank < world; ++rank) {
    ASSERT_TRUE(calls.done(rank).done) << rank;
    if (calls.done(rank).status.ok()) continue;
    EXPECT_EQ(calls.done(rank).status.code(), Code::late) << rank;
    EXPECT_EQ(ranks_named(calls.done(rank).status.message()), std::vector<Rank>{3})
        << "rank " << rank << ": " << calls.done(rank).status.to_string();
  }
  EXPECT_FALSE(calls.done(1).status.ok());
}

TEST(Late, a_rank_that_is_asked_before_its_own_deadline_continues) {
  const LateCalls calls({30 * millisecond, 0, 30 * millisecond, 90 * millisecond});
  for (Rank rank = 0; rank < world; ++rank)
    EXPECT_TRUE(calls.done(rank).status.ok()) << "rank " << rank << ": " << calls.done(rank).status.to_string();
}

TEST(Late, a_rank_that_never_calls_is_named_as_not_answering) {
  const LateCalls calls({30 * millisecond, 0, 30 * millisecond, 900 * millisecond});
  for (const Rank rank : {0u, 1u, 2u})
    EXPECT_EQ(ranks_named(calls.done(rank).status.message()).front(), 3u)
        << "rank " << rank << ": " << calls.done(rank).status.to_string();
}

}  // namespace
}  // namespace unisono::sim

// Tests an all-reduce of four ranks in which one allocation of rank 0 fails. The test is repeated for every allocation.
//
// Nothing may throw, hang or leak. Rank 0 fails with Code::unavailable and the text "out of memory". The errors of the other
// ranks name rank 0. This file replaces the global operator new of the whole test program.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/concat.h"
#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/api/calls.h"
#include "testing/replaced_new.h"
#include "transports/testing/loopback.h"

namespace {

thread_local bool armed = false;
thread_local uint64_t allocations = 0, fails_from = 0, fails_to = 0;
thread_local int64_t live = 0;  // number of blocks that this thread has allocated and not freed

}  // namespace

void* unisono::replaced_new::allocate(size_t bytes, size_t alignment) {
  if (armed && ++allocations >= fails_from && allocations <= fails_to) return nullptr;
  ++live;
  return from_heap(bytes, alignment);
}

void unisono::replaced_new::release(void* memory) {
  live -= memory != nullptr;
  std::free(memory);
}

namespace unisono {
namespace {

constexpr uint32_t world = 4;
constexpr size_t count = 4000;
constexpr int operations = 2;

struct Case {
  ScheduleKind schedule = ScheduleKind::two_step;
  bool calls_last = false;  // rank 0 calls after it has received the messages of the other ranks
  bool permanent = false;   // the n-th allocation and all later ones fail
};

// Four engines, connected through memory. Allocations of rank 0 can be made to fail.
class Cluster {
 public:
  explicit Cluster(const Case& test_case) : case_(test_case), hub_(std::move(LoopbackHub::make({.count = world}).value())) {
    for (Rank r = 0; r < world; ++r) {
      engines_.push_back(std::make_unique<Engine>(EngineLimits{}, compute_));
      auto& engine = *engines_.back();
      engine.add_transport(hub_->at(r));
      engine.set_topology({shared_memory_profile(2), network_tcp_profile(2)});
      std::vector<PeerIndex> members;
      for (PeerIndex peer = 0; peer < world; ++peer) {
        members.push_back(peer == r ? self_peer : peer);
        if (peer != r) engine.add_peer(peer, hub_->at(r), concat("process ", peer));
      }
      groups_.push_back(&engine.make_group(1, 7, members, std::vector<uint32_t>(world, 0)));
      for (int i = 0; i < operations; ++i) values_[i].emplace_back(count, static_cast<int32_t>(r + 1));
    }
  }

  // Returns false if rank 0 made fewer than n allocations.
  bool run(uint64_t n) {
    allocations = 0;
    fails_from = n;
    fails_to = case_.permanent ? UINT64_MAX : n;
    for (Rank r = case_.calls_last ? 1 : 0; r < world; ++r) call(r);
    if (case_.calls_last) {
      settle(5);
      call(0);
    }
    settle(2000);
    return allocations >= n;
  }

  const Completion& done(int operation, Rank rank) const { return *done_[operation][rank]; }
  bool right(int operation, Rank rank) const {
    return std::all_of(values_[operation][rank].begin(), values_[operation][rank].end(), [](int32_t v) { return v == 10; });
  }
  size_t held_bytes(Rank rank) const { return engines_[rank]->held_bytes(); }

 private:
  void call(Rank r) {
    for (int i = 0; i < operations; ++i) {
      const Tensor tensor{std::span<int32_t>(values_[i][r])};
      auto request = all_reduce_call({r, world, second}, tensor, tensor,
                                     {.order = Order::any, .schedule = case_.schedule, .slice_bytes = 1024});
      armed = r == 0;
      done_[i][r] = engines_[r]->submit(*groups_[r], std::move(*request), 0, now_);
      armed = false;
    }
  }

  void settle(int milliseconds) {
    for (int turn = 0; turn < milliseconds; ++turn) {
      int polls = 0;
      for (bool progress = true; progress && polls < 1000; ++polls) {
        progress = false;
        for (Rank r = 0; r < world; ++r) {
          armed = r == 0;
          progress |= engines_[r]->poll(now_);
          armed = false;
        }
      }
      ASSERT_LT(polls, 1000) << "the engines never stop making progress";
      now_ += millisecond;
    }
  }

  Case case_;
  InlineCompute compute_;
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<GroupCore*> groups_;
  std::vector<std::vector<int32_t>> values_[operations];
  std::shared_ptr<Completion> done_[operations][world];
  Nanos now_ = 0;
};

void expect_ended(const Cluster& cluster, int operation, Rank rank, const std::string& where) {
  const auto& done = cluster.done(operation, rank);
  ASSERT_TRUE(done.done) << where;
  if (done.status.ok()) {
    EXPECT_TRUE(cluster.right(operation, rank)) << where;
    return;
  }
  const auto text = done.status.to_string();
  // Another rank may report the failure back to rank 0. Even then, the error of rank 0 says "out of memory".
  if (rank == 0) EXPECT_NE(text.find("out of memory"), std::string::npos) << where << ": " << text;
  else EXPECT_NE(text.find("rank 0"), std::string::npos) << where << ": " << text;
}

class Allocation : public testing::TestWithParam<Case> {};

TEST_P(Allocation, any_failed_allocation_ends_the_operations_that_need_it) {
  Cluster(GetParam()).run(UINT64_MAX);  // makes the allocations that happen only once per process
  uint64_t n = 1, failed = 0;
  for (bool more = true; more; ++n) {
    const auto before = live;
    {
      Cluster cluster(GetParam());
      more = cluster.run(n);
      const auto where = concat("allocation ", n);
      for (int i = 0; i < operations; ++i) {
        for (Rank r = 0; r < world; ++r) {
          expect_ended(cluster, i, r, concat(where, ", operation ", i, ", rank ", r));
          failed += !cluster.done(i, r).status.ok();
          ASSERT_TRUE(more || cluster.done(i, r).status.ok())
              << "nothing failed, but " << cluster.done(i, r).status.to_string();
        }
      }
      for (Rank r = 1; r < world; ++r) EXPECT_EQ(cluster.held_bytes(r), 0u) << where;
    }
    ASSERT_EQ(live, before) << "allocation " << n << ": leaked";
  }
  EXPECT_GT(n, 20u);
  EXPECT_GT(failed, n) << "hardly anything failed";
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.schedule)) + (info.param.calls_last ? "_last" : "") +
         (info.param.permanent ? "_permanently" : "");
}

INSTANTIATE_TEST_SUITE_P(All, Allocation,
                         testing::Values(Case{ScheduleKind::two_step, false, false}, Case{ScheduleKind::two_step, true, false},
                                         Case{ScheduleKind::two_step, true, true}, Case{ScheduleKind::ring, false, false},
                                         Case{ScheduleKind::ring, true, true}, Case{ScheduleKind::one_shot, true, false}),
                         case_name);

}  // namespace
}  // namespace unisono

// What an all-reduce of four does when the n-th allocation of one rank fails, for every n.
//
// The library has no answer to it: std::bad_alloc leaves through the call that needed the memory, and the engine that threw must not be
// used any more. What is promised, and checked here: nothing crashes, everything can be destroyed, and the other ranks end as if
// the process had died. This file replaces the global operator new of the whole test program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "node/calls.h"
#include "node/engine.h"
#include "node/inline_compute.h"
#include "transports/loopback.h"

namespace {

thread_local bool armed = false;
thread_local uint64_t allocations = 0, fails_at = 0;

void* allocate(size_t bytes, size_t alignment) {
  if (armed && ++allocations == fails_at) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  auto* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes, 0); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocate_or_throw(bytes, static_cast<size_t>(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return allocate_or_throw(bytes, static_cast<size_t>(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace unisono {
namespace {

constexpr uint32_t world = 4;
constexpr size_t count = 4000;

// Four engines in memory; rank 0's allocations may be made to fail.
class Cluster {
 public:
  Cluster() : hub_(std::move(LoopbackHub::make({.count = world}).value())) {
    for (Rank r = 0; r < world; ++r) {
      engines_.push_back(std::make_unique<Engine>(EngineLimits{}, compute_));
      auto& engine = *engines_.back();
      engine.add_transport(hub_->at(r));
      engine.set_topology({shared_memory_profile(2), network_tcp_profile(2)});
      std::vector<PeerIndex> members;
      for (PeerIndex peer = 0; peer < world; ++peer) {
        members.push_back(peer == r ? self_peer : peer);
        if (peer != r) engine.add_peer(peer, hub_->at(r), "process " + std::to_string(peer));
      }
      groups_.push_back(&engine.make_group(1, 7, members, std::vector<uint32_t>(world, 0)));
      values_.emplace_back(count, static_cast<int32_t>(r + 1));
    }
  }

  void run(uint64_t nth) {
    allocations = 0;
    fails_at = nth;
    for (Rank r = 0; r < world; ++r) {
      guarded(r, [&] {
        const Tensor tensor{std::span<int32_t>(values_[r])};
        auto request = all_reduce_call({r, world, second}, tensor, tensor, {.schedule = ScheduleKind::two_step, .slice_bytes = 1024});
        auto completion = engines_[r]->submit(*groups_[r], std::move(*request), 0, now_);
        done_.resize(world);
        done_[r] = std::move(completion);
      });
    }
    for (int turn = 0; turn < 2000; ++turn) {
      for (bool progress = true; progress;) {
        progress = false;
        for (Rank r = 0; r < world; ++r) guarded(r, [&] { progress |= engines_[r]->poll(now_); });
      }
      now_ += millisecond;
    }
  }

  bool threw() const { return threw_; }
  const Completion* done(Rank rank) const { return rank < done_.size() ? done_[rank].get() : nullptr; }
  const std::vector<int32_t>& values(Rank rank) const { return values_[rank]; }

 private:
  template <typename F>
  void guarded(Rank rank, F&& step) {
    if (rank == 0 && threw_) return;
    armed = rank == 0;
    try {
      step();
    } catch (const std::bad_alloc&) {
      threw_ = true;
    }
    armed = false;
    if (rank == 0 && threw_) hub_->kill(0);
  }

  InlineCompute compute_;
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<GroupCore*> groups_;
  std::vector<std::vector<int32_t>> values_;
  std::vector<std::shared_ptr<Completion>> done_;
  Nanos now_ = 0;
  bool threw_ = false;
};

TEST(Allocation, the_nth_of_one_rank_may_fail_and_the_others_end_with_its_name) {
  uint64_t n = 1;
  for (;; ++n) {
    Cluster cluster;
    cluster.run(n);
    if (!cluster.threw()) break;
    for (Rank r = 1; r < world; ++r) {
      const auto* done = cluster.done(r);
      ASSERT_TRUE(done != nullptr && done->done) << "allocation " << n << ", rank " << r;
      if (done->status.ok()) {
        EXPECT_EQ(cluster.values(r), std::vector<int32_t>(count, 10)) << "allocation " << n << ", rank " << r;
      } else {
        EXPECT_TRUE(done->status.code() == Code::peer_lost || done->status.code() == Code::late) << done->status.to_string();
        EXPECT_NE(done->status.message().find("rank 0"), std::string::npos) << done->status.to_string();
      }
    }
  }
  EXPECT_GT(n, 10u) << "nothing failed";
}

}  // namespace
}  // namespace unisono

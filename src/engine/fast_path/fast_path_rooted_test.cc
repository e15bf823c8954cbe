// Collectives with a root on the fast path: no rank ends before all have begun, calls that differ are invalid on every rank,
// the executor takes over at any point, and the next call is on the fast path again.
#include <numeric>

#include "engine/fast_path/fast_path_test_support.h"

namespace unisono {
namespace {

using Ints = std::vector<int32_t>;

class FastPathRooted : public FastPathCalls, public ::testing::WithParamInterface<Collective> {
 protected:
  static constexpr size_t count = 50;

  void make(uint32_t world) {
    make_cluster(world);
    inputs.assign(world, Ints(2 * count * world));
    outputs.assign(world, Ints(2 * count * world));
  }
  void set_call(Rank r, Rank root, size_t elements = count) {
    const auto world = cluster->world();
    std::iota(inputs[r].begin(), inputs[r].end(), static_cast<int32_t>(1000 * r));
    const auto caller = cluster->caller(r);
    const CallOptions o{.schedule = ScheduleKind::direct};
    const auto in = [&](size_t blocks) { return ConstTensor(std::span<const int32_t>(inputs[r]).first(blocks * elements)); };
    const auto out = [&](size_t blocks) { return Tensor(std::span<int32_t>(outputs[r]).first(blocks * elements)); };
    switch (GetParam()) {
      case Collective::broadcast: calls[r].request = broadcast_call(caller, out(1), root, o).value(); break;
      case Collective::reduce: calls[r].request = reduce_call(caller, in(1), out(1), root, o).value(); break;
      case Collective::gather: calls[r].request = gather_call(caller, in(1), out(world), root, {}, o).value(); break;
      default: calls[r].request = scatter_call(caller, in(world), out(1), root, {}, o).value(); break;
    }
    calls[r].fast_path = {};
  }
  // Makes the call on all ranks, which must all take the fast path.
  void expect_fast_path(Rank root) {
    for (Rank r = 0; r < cluster->world(); ++r) {
      set_call(r, root);
      ASSERT_TRUE(begin(r)) << "rank " << r;
    }
    expect_all_found();
  }
  // All ranks have begun. Each looks, and the executor takes over where the fast path does not end.
  std::vector<std::shared_ptr<Completion>> finish_by_executor() {
    std::vector<std::shared_ptr<Completion>> done(cluster->world());
    for (int turn = 0; turn < 3; ++turn) {
      for (Rank r = 0; r < cluster->world(); ++r) {
        if (done[r] != nullptr) continue;
        const auto found = look(r);
        EXPECT_NE(found, FastPath::Found::all) << "rank " << r << " ends, although calls differ";
        if (found == FastPath::Found::unexpected_frame) done[r] = take_over(r);
      }
    }
    for (Rank r = 0; r < cluster->world(); ++r) {
      if (done[r] == nullptr) done[r] = take_over(r);
    }
    cluster->settle();  // no time passes
    return done;
  }
  void expect_invalid(const std::vector<std::shared_ptr<Completion>>& done, const std::string& one, const std::string& other) {
    for (Rank r = 0; r < done.size(); ++r) {
      ASSERT_TRUE(done[r]->done) << "rank " << r;
      const auto text = done[r]->status.to_string();
      EXPECT_EQ(done[r]->status.code(), Code::invalid) << text;
      EXPECT_NE(text.find(one), std::string::npos) << text;
      EXPECT_NE(text.find(other), std::string::npos) << text;
    }
    for (Rank r = 0; r < done.size(); ++r)
      EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u) << "rank " << r;
  }
  bool has_block_sizes() const { return GetParam() == Collective::gather || GetParam() == Collective::scatter; }

  std::vector<Ints> inputs, outputs;  // indexed by rank
};

TEST_P(FastPathRooted, no_rank_ends_before_all_have_begun) {
  for (const uint32_t world : {2u, 3u, 4u, 5u}) {
    for (const Rank root : {0u, world - 1}) {
      for (Rank last = 0; last < world; ++last) {
        make(world);
        for (Rank r = 0; r < world; ++r) set_call(r, root);
        for (int turn = 0; turn < 3; ++turn) {
          for (Rank r = 0; r < world; ++r) {
            if (r == last) continue;
            if (turn == 0) {
              ASSERT_TRUE(begin(r));
            }
            EXPECT_EQ(look(r), FastPath::Found::incomplete) << concat("rank ", r, " of ", world, ", root ", root);
          }
        }
        ASSERT_TRUE(begin(last));
        expect_all_found();
      }
    }
  }
}

TEST_P(FastPathRooted, roots_that_differ_are_invalid_on_every_rank_and_the_group_stays_usable) {
  for (const uint32_t world : {2u, 3u, 4u, 5u}) {
    for (const Rank root : {0u, world - 1}) {
      for (Rank odd = 0; odd < world; ++odd) {
        SCOPED_TRACE(concat("world ", world, ", root ", root, ", odd rank ", odd));
        const Rank other = (root + 1) % world;
        make(world);
        expect_fast_path(root);
        for (Rank r = 0; r < world; ++r) {
          set_call(r, r == odd ? other : root);
          ASSERT_TRUE(begin(r));
        }
        expect_invalid(finish_by_executor(), concat("with root ", root), concat("with root ", other));
        expect_fast_path(other);
      }
    }
  }
}

// Each rank takes itself for the root, or names another rank that does not.
TEST_P(FastPathRooted, roots_that_all_differ_are_invalid_on_every_rank) {
  for (const uint32_t world : {2u, 3u, 4u, 5u}) {
    for (Rank shift = 0; shift < world; ++shift) {
      SCOPED_TRACE(concat("world ", world, ", shift ", shift));
      make(world);
      expect_fast_path(0);
      for (Rank r = 0; r < world; ++r) {
        set_call(r, (r + shift) % world);
        ASSERT_TRUE(begin(r));
      }
      expect_invalid(finish_by_executor(), "calls differ: rank ", " with root ");
      expect_fast_path(0);
    }
  }
}

TEST_P(FastPathRooted, sizes_that_differ_are_invalid_on_every_rank_and_the_group_stays_usable) {
  for (const uint32_t world : {2u, 3u, 4u, 5u}) {
    for (const Rank root : {0u, world - 1}) {
      for (Rank odd = 0; odd < world; ++odd) {
        SCOPED_TRACE(concat("world ", world, ", root ", root, ", odd rank ", odd));
        make(world);
        expect_fast_path(root);
        for (Rank r = 0; r < world; ++r) {
          set_call(r, root, r == odd ? count + 1 : count);
          ASSERT_TRUE(begin(r));
        }
        const std::string unit = has_block_sizes() ? "" : " elements";
        expect_invalid(finish_by_executor(), concat(' ', count, unit), concat(' ', count + 1, unit));
        expect_fast_path(root);
      }
    }
  }
}

// The root's second frame is missing when the executor takes over, and the fast path has taken the first one.
TEST_P(FastPathRooted, the_executor_takes_over_between_the_two_frames_of_the_root) {
  make(3);
  for (Rank r = 0; r < 3; ++r) set_call(r, 1);
  ASSERT_TRUE(begin(0));
  std::vector<std::shared_ptr<Completion>> done = {nullptr, by_executor(1), nullptr};
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  EXPECT_EQ(calls[0].fast_path.first_taken, has_block_sizes());
  done[0] = take_over(0);
  EXPECT_FALSE(done[0]->done);
  done[2] = by_executor(2);
  cluster->finish(done);
  for (Rank r = 0; r < 3; ++r) {
    EXPECT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
    EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u);
    EXPECT_EQ(cluster->engine(r).counters().frames_stale, 0u);
  }
  const auto outputs_of_executor = outputs;
  make(3);
  expect_fast_path(1);
  EXPECT_EQ(outputs, outputs_of_executor);
}

TEST_P(FastPathRooted, the_call_after_a_slow_one_is_on_the_fast_path) {
  for (const uint32_t world : {2u, 3u, 5u}) {
    for (Rank late = 0; late < world; ++late) {
      make(world);
      expect_fast_path(0);
      std::vector<std::shared_ptr<Completion>> done(world);
      for (Rank r = 0; r < world; ++r) {
        set_call(r, 0);
        if (r == late) continue;
        ASSERT_TRUE(begin(r));
        ASSERT_EQ(look(r), FastPath::Found::incomplete);
        done[r] = take_over(r);
      }
      cluster->settle();
      done[late] = by_executor(late);
      cluster->finish(done);
      for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      expect_fast_path(0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastPathRooted,
                         ::testing::Values(Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace unisono

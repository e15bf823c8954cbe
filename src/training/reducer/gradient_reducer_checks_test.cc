// Tests of ARC-Top-K between ranks of real groups: equal bits for every schedule and processor, bytes sent, random number
// generators, checkpoints. Numbers of checks refer to docs/design/methods/arc_top_k.md, "Checked values".
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <numeric>
#include <random>

#include "kernels/dispatch.h"
#include "kernels/sketch.h"
#include "testing/group_of_threads.h"
#include "training/reducer/gradient_reducer_test_support.h"
#include "training/reducer/reduction_pipeline.h"

namespace unisono {
namespace {

using test::arc;
using test::in_group;
using test::model;
using test::normals;
using test::ReducerRank;
using test::Values;

std::vector<uint32_t> everybody(uint32_t world) {
  std::vector<uint32_t> all(world);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

// Returns how many rows of a tensor have an element that is not zero.
uint64_t rows_of(const Values& values, uint64_t columns) {
  uint64_t rows = 0;
  for (size_t at = 0; at < values.size(); at += columns)
    rows += std::any_of(values.begin() + static_cast<std::ptrdiff_t>(at),
                        values.begin() + static_cast<std::ptrdiff_t>(at + columns), [](float v) { return v != 0; });
  return rows;
}

// Check 10 of docs/design/methods/arc_top_k.md: 10 steps for each world size and schedule, 200 in all. One tensor keeps 8 of 40
// rows, another 13 of 64.
TEST(GradientReducerChecks, all_ranks_choose_the_same_rows_with_every_schedule) {
  for (const uint32_t world : {2u, 3u, 5u, 8u}) {
    for (const std::string schedule : {"ring", "two_step", "halving_doubling", "hierarchical", "one_shot"}) {
      std::vector<const ReducerRank*> ranks(world);
      std::barrier all(world);
      in_group(world, [&](Group& group) {
        ReducerRank rank(group);
        ranks[group.rank()] = &rank;
        const auto made = rank.make(arc("values_schedule=" + schedule));
        EXPECT_TRUE(made.ok()) << made.to_string();
        for (uint64_t step = 0; step < 10; ++step) {
          const auto report = rank.step(step);
          EXPECT_TRUE(report.ok()) << schedule << ": " << report.status().to_string();
          EXPECT_EQ(rows_of(rank.values[0], 50), 8u) << schedule;
          EXPECT_EQ(rows_of(rank.values[4], 32), 13u) << schedule;
          all.arrive_and_wait();
          EXPECT_EQ(rank.values, ranks[0]->values)
              << schedule << ", step " << step << ", rank " << group.rank() << " of " << world;
          all.arrive_and_wait();
        }
      });
    }
  }
}

// All-reduce has no schedules of these names.
TEST(GradientReducerChecks, an_unsupported_schedule_is_named_and_gradients_are_kept) {
  for (const std::string schedule : {"direct", "tree"}) {
    in_group(2, [&](Group& group) {
      ReducerRank rank(group);
      ASSERT_TRUE(rank.make(arc("values_schedule=" + schedule)).ok());
      rank.fill(0);
      const auto gradient = rank.values[4];
      const auto report = rank.step();
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.status().code(), Code::unsupported) << report.status().to_string();
      EXPECT_NE(report.status().message().find(
                    "no such schedule; there are one_shot, two_step, halving_doubling, ring, hierarchical"),
                std::string::npos)
          << report.status().to_string();
      EXPECT_EQ(test::kept_by(rank)["e"].residual, gradient);
    });
  }
}

// Check 10 of docs/design/methods/arc_top_k.md: if all values are zero, the rows with the lowest numbers are chosen.
TEST(GradientReducerChecks, all_ranks_choose_the_first_rows_of_zeros) {
  for (const uint32_t world : {2u, 3u, 5u, 8u}) {
    in_group(world, [&](Group& group) {
      FeedbackStore store;
      Bucket bucket;
      bucket.feedback = *ErrorFeedback::make(
          {}, *make_arc_top_k(test::arc_options(200'000, 4, 3), 0, {{.number = 0, .shape = {31, 20}}}), {"w"}, store);
      ReductionPipeline pipeline(*group.split(everybody(world)), {});
      for (uint64_t step = 0; step < 5; ++step) {
        Values zeros(31 * 20);
        bucket.gradients = {zeros.data()};
        pipeline.begin_step(step, step + 1);
        pipeline.submit(bucket);
        pipeline.finish();
        ASSERT_TRUE(bucket.status.ok()) << bucket.status.to_string();
        const auto rows = bucket.feedback->compressor().rows(0);
        EXPECT_EQ(std::vector<uint32_t>(rows.begin(), rows.end()), everybody(7));
      }
    });
  }
}

// Simulates ranks with different processors. Each rank uses another instruction set to make its sketch and to choose rows; the
// last rank uses the reference kernel.
class MixedRanks {
 public:
  MixedRanks() {
    for (const char* target : kernels::targets()) targets_.push_back(target);
    targets_.push_back(nullptr);
    for (size_t r = 0; r < targets_.size(); ++r)
      compressors_.push_back(
          *make_arc_top_k(test::arc_options(150'000, 4, seed), 0, {{.number = 5, .shape = {rows, columns}}}));
  }
  ~MixedRanks() { kernels::force_target(""); }
  size_t size() const { return targets_.size(); }

  // Returns the rows that each rank chooses. Sets differed_ if ranks have different sketches of equal values.
  std::vector<std::vector<uint32_t>> choose(uint64_t step, bool zeros = false) {
    std::vector<std::span<float>> sketches;
    std::vector<Values> values;
    for (size_t r = 0; r < size(); ++r) {
      // All ranks have the same values, so only their instruction sets differ.
      values.push_back(zeros ? Values(rows * columns) : normals(3, step, 1, rows * columns));
      sketches.push_back(sketch(r, step, values[r]));
      differed_ = differed_ || !std::equal(sketches[r].begin(), sketches[r].end(), sketches[0].begin());
    }
    Values mean(sketches[0].size());
    for (size_t i = 0; i < mean.size(); ++i) {
      for (const auto& each : sketches) mean[i] += each[i];
      mean[i] /= static_cast<float>(size());
    }
    std::vector<std::vector<uint32_t>> chosen;
    for (size_t r = 0; r < size(); ++r) {
      force(r);
      std::copy(mean.begin(), mean.end(), sketches[r].begin());
      EXPECT_TRUE(compressors_[r]->choose().ok());
      chosen.emplace_back(compressors_[r]->rows(0).begin(), compressors_[r]->rows(0).end());
      EXPECT_EQ(compressors_[r]->fingerprint(), compressors_[0]->fingerprint());
    }
    return chosen;
  }
  bool sketches_differed() const { return differed_; }

 private:
  static constexpr size_t rows = 61, columns = 203;
  static constexpr uint64_t seed = 4;

  void force(size_t r) const { EXPECT_TRUE(kernels::force_target(targets_[r] == nullptr ? "" : targets_[r])); }
  std::span<float> sketch(size_t r, uint64_t step, Values& values) {
    force(r);
    const CompressorInput inputs[] = {{.values = values.data()}};
    const auto made = compressors_[r]->begin(step, inputs);
    if (targets_[r] != nullptr) return made;
    Values numbers(columns * 4), directions(columns * 4);
    RandomStream{.seed = seed, .step = step, .tensor = 5, .purpose = RandomStream::Purpose::sketch}.normals(0, numbers);
    for (size_t c = 0; c < columns; ++c) {
      for (size_t j = 0; j < 4; ++j) directions[j * columns + c] = numbers[c * 4 + j];
    }
    kernels::sketch_reference({.values = values.data(),
                               .rows = rows,
                               .columns = columns,
                               .directions = directions.data(),
                               .rank = 4,
                               .scale = 0.5f,
                               .sketch = made.data()});
    return made;
  }

  std::vector<const char*> targets_;  // by rank; null: the reference kernel
  std::vector<std::unique_ptr<Compressor>> compressors_;
  bool differed_ = false;
};

// Check 10 of docs/design/methods/arc_top_k.md, for ranks with scalar and ranks with vector instructions.
TEST(GradientReducerChecks, ranks_of_different_processors_choose_the_same_rows) {
  MixedRanks ranks;
  ASSERT_GE(ranks.size(), 2u);
  for (uint64_t step = 0; step < 200; ++step) {
    const auto chosen = ranks.choose(step);
    for (const auto& each : chosen) ASSERT_EQ(each, chosen[0]) << "step " << step;
  }
  EXPECT_TRUE(ranks.sketches_differed()) << "nothing was tried: all sketches had the same bits";
  for (const auto& each : ranks.choose(200, true)) EXPECT_EQ(each, everybody(10));
}

// Check 20 of docs/design/methods/arc_top_k.md, with one tensor in one bucket: 1,695,744 values. In a ring all-reduce, each
// value is sent 2 (world - 1) times, summed over all ranks.
TEST(GradientReducerChecks, sends_the_bytes_of_a_ring_of_sketch_and_rows) {
  constexpr uint32_t world = 4;
  constexpr uint64_t payload = 4096 * 4 + 410 * 4096, around = 2 * (world - 1) * sizeof(float);
  static_assert(payload == 1'695'744 && payload * around == 40'697'856);
  const auto plan = CompressionPlan::make(std::vector<Parameter>{{"w", {4096, 4096}}}, arc("ratio=0.1"));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->payload, payload);
  std::array<CompressionCosts, world> costs;
  in_group(world, [&](Group& group) {
    FeedbackStore store;
    Bucket bucket;
    bucket.feedback = *ErrorFeedback::make(
        {}, *make_arc_top_k(test::arc_options(100'000, 4, 0), 0, {{.number = 0, .shape = {4096, 4096}}}, 2 * world), {"w"},
        store);
    bucket.side_values.assign(2 * world, 0);
    Values gradient(4096 * 4096);
    for (size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>((i * 2654435761u + group.rank()) % 1000) - 500;
    bucket.gradients = {gradient.data()};
    ReductionPipeline::Calls calls;
    calls.sketch.order = calls.values.order = Order::any;
    calls.sketch.schedule = calls.values.schedule = ScheduleKind::ring;
    ReductionPipeline pipeline(*group.split(everybody(world)), calls);
    pipeline.begin_step(0, 1);
    pipeline.submit(bucket);
    pipeline.finish();
    ASSERT_TRUE(bucket.status.ok() && bucket.finite) << bucket.status.to_string();
    costs[group.rank()] = bucket.costs;
  });
  uint64_t sent = 0;
  for (const auto& each : costs) {
    EXPECT_EQ(each.collectives, 2u);
    EXPECT_EQ(each.payload_elements, payload + 1);  // counts the flag, but not the ranks' side values
    const auto quarter = static_cast<int64_t>(payload * around / world);
    // The chunks of a ring differ in size, so ranks differ a little in bytes sent.
    EXPECT_LE(std::abs(static_cast<int64_t>(each.sent_payload) - quarter), int64_t{2} << 10);
    EXPECT_LT(each.sent_headers, each.sent_payload / 100);
    sent += each.sent_payload;
  }
  // The flag and two side values per rank are sent with the sketch.
  EXPECT_EQ(sent, (payload + 1 + 2 * world) * around);
}

std::vector<long> drawn() {
  std::vector<long> numbers;
  for (int i = 0; i < 20; ++i) numbers.push_back(std::rand()), numbers.push_back(::random()), numbers.push_back(::lrand48());
  return numbers;
}

void seed_all(unsigned seed) {
  std::srand(seed);
  ::srand48(seed);
}

// Check 27 of docs/design/methods/arc_top_k.md: the reducer does not touch the random generators of C and C++. If ranks seed
// their generators differently, the numbers still differ afterwards.
TEST(GradientReducerChecks, does_not_touch_the_programs_random_generators) {
  seed_all(11);
  const auto before = drawn();
  seed_all(11);
  std::array<std::vector<uint32_t>, 2> masks;
  in_group(2, [&](Group& group) {
    std::mt19937 own(group.rank()), copy(own);
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc("refresh=8")).ok());
    for (uint64_t step = 0; step < 100; ++step) ASSERT_TRUE(rank.step(step).ok());
    EXPECT_EQ(own, copy);
    for (int i = 0; i < 20; ++i) masks[group.rank()].push_back(static_cast<uint32_t>(own()));
  });
  EXPECT_EQ(drawn(), before);
  EXPECT_NE(masks[0], masks[1]);
}

// Part of check 28 of docs/design/methods/arc_top_k.md: a checkpoint of a group with another number of ranks.
TEST(GradientReducerChecks, refuses_a_checkpoint_of_another_world_size_and_keeps_its_state) {
  std::array<std::vector<std::byte>, 3> saved;
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(rank.step(step).ok());
    saved[group.rank()] = rank.reducer->save();
  });
  in_group(2, [&](Group& group) {
    ReducerRank rank(group), other(group), fresh(group);
    for (auto* each : {&rank, &other, &fresh}) ASSERT_TRUE(each->make(arc()).ok());
    for (uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(rank.step(step).ok() && other.step(step).ok());
    const auto before = rank.reducer->save();
    const auto status = rank.reducer->load(saved[group.rank()]);
    EXPECT_EQ(status.code(), Code::invalid);
    for (const char* part : {"roster_changed", "world of 3", "world of 2"})
      EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
    EXPECT_EQ(rank.reducer->save(), before);
    EXPECT_EQ(rank.reducer->step(), 3u);
    // `rank` must go on exactly like `other`: its load() was refused, and `other` did not call load(). `fresh` fails to load,
    // too, and starts without residuals.
    for (uint64_t step = 3; step < 6; ++step) {
      ASSERT_TRUE(rank.step(step).ok() && other.step(step).ok());
      EXPECT_EQ(rank.values, other.values);
    }
    EXPECT_FALSE(fresh.reducer->load(saved[group.rank()]).ok());
    ASSERT_TRUE(fresh.step(0).ok());
    EXPECT_EQ(fresh.reducer->step(), 1u);
    EXPECT_GT(fresh.reducer->total().compressed, 0u);
  });
}

TEST(GradientReducerChecks, neither_saves_nor_loads_in_the_middle_of_a_step) {
  in_group(2, [](Group& group) {
    ReducerRank rank(group), other(group);
    for (auto* each : {&rank, &other}) ASSERT_TRUE(each->make(arc()).ok() && each->step(0).ok());
    const auto saved = rank.reducer->save();
    for (auto* each : {&rank, &other}) {
      each->fill(1);
      ASSERT_TRUE(each->reduce({4, 3}).ok());
    }
    EXPECT_TRUE(rank.reducer->save().empty());
    const auto status = rank.reducer->load(saved);
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_NE(status.message().find("middle of a step"), std::string::npos) << status.to_string();
    // Neither reducer is affected by the refused load().
    for (auto* each : {&rank, &other}) ASSERT_TRUE(each->reduce({2, 1, 0}).ok() && each->reducer->finish().ok());
    EXPECT_EQ(rank.values, other.values);
    EXPECT_EQ(rank.reducer->save(), other.reducer->save());
    EXPECT_TRUE(rank.reducer->load(saved).ok());
  });
}

TEST(GradientReducerChecks, destructor_in_a_step_waits_for_all_reduces_in_flight) {
  in_group(2, [](Group& group) {
    for (int time = 0; time < 20; ++time) {
      ReducerRank rank(group);
      ASSERT_TRUE(rank.make(arc()).ok());
      rank.fill(0);
      ASSERT_TRUE(rank.reduce({4, 3}).ok() && rank.reduce({2, 1, 0}).ok());
      rank.reducer.reset();
    }
    EXPECT_TRUE(group.barrier().ok());
  });
}

}  // namespace
}  // namespace unisono

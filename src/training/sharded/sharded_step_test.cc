// The sharded step of whole groups, without loss: over datagrams, and reliably over shared memory. It must compute exactly what
// one process computes.
#include "unisono/sharded_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/concat.h"
#include "base/random.h"
#include "testing/group_of_threads.h"

namespace unisono {
namespace {

using test::in_group;
using Values = std::vector<float>;

constexpr uint32_t world = 3;
constexpr size_t elements = 5'003;

Options over(const char* transport) {
  Options options;
  options.transport = transport;
  options.timeout = Milliseconds(60'000);
  return options;
}

Values noise(uint64_t seed, size_t count = elements) {
  Values values(count);
  Random random(mix64(seed));
  for (auto& value : values) value = static_cast<float>(random.next() >> 40) * 0x1p-23f - 1;
  return values;
}
Values gradient_of(uint32_t rank, uint32_t step) { return noise(1000 * step + rank); }

std::unique_ptr<ShardOptimizer> adamw() { return make_adamw({.rate = 1e-2}); }
ShardedOptions options_of(const std::string& text) {
  auto parsed = ShardedOptions::parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *parsed;
}

// Trains in one process, which averages gradients in rank order as the owners do.
Values trained_alone(uint32_t steps, double clip = 0) {
  auto values = noise(7);
  auto optimizer = adamw();
  optimizer->resize(elements);
  for (uint32_t step = 1; step <= steps; ++step) {
    Values sum(elements);
    for (uint32_t rank = 0; rank < world; ++rank) {
      const auto gradient = gradient_of(rank, step);
      for (size_t i = 0; i < elements; ++i) sum[i] += gradient[i];
    }
    double squares = 0;
    for (auto& value : sum) value /= world, squares += double{value} * value;
    const float scale = clip > 0 ? static_cast<float>(std::min(1.0, clip / (std::sqrt(squares) + 1e-6))) : 1;
    optimizer->update({.begin = 0, .values = values, .gradient = sum, .scale = scale, .step = step});
  }
  return values;
}

ShardedStep make(Group& group, const std::string& options, const Values& initial = noise(7)) {
  // A long fixed deadline: on a busy machine, a learnt deadline could exclude a late rank.
  auto made = ShardedStep::make(group, initial, adamw(), options_of("deadline=30s" + (options.empty() ? "" : "," + options)));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *std::move(made);
}

void train(Group& group, ShardedStep& step, uint32_t steps, std::vector<ShardedReport>* reports = nullptr) {
  for (uint32_t i = 0; i < steps; ++i) {
    const auto report = step.run(gradient_of(group.rank(), step.step() + 1));
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    if (reports != nullptr) reports->push_back(*report);
  }
}

bool equal(std::span<const float> a, std::span<const float> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

TEST(ShardedStepInGroup, without_loss_equals_one_process_that_averages_in_rank_order) {
  const auto expected = trained_alone(30);
  for (const auto* transport : {"udp", "shm"}) {
    in_group(
        world,
        [&](Group& group) {
          auto step = make(group, transport == std::string("udp") ? "" : "delivery=reliable");
          train(group, step, 30);
          EXPECT_TRUE(equal(step.parameters(), expected)) << transport;
          Values owners(elements);
          ASSERT_TRUE(step.owners_values(owners).ok());
          EXPECT_TRUE(equal(owners, expected));
        },
        over(transport));
  }
}

TEST(ShardedStepInGroup, clips_by_the_norm_of_the_whole_average) {
  const auto expected = trained_alone(25, 3);
  in_group(
      world,
      [&](Group& group) {
        std::vector<ShardedReport> reports;
        auto step = make(group, "clip=3");
        train(group, step, 25, &reports);
        for (size_t i = 0; i < elements; ++i) ASSERT_NEAR(step.parameters()[i], expected[i], 1e-5) << i;
        EXPECT_NEAR(reports.back().clipped, 3 / reports.back().gradient_norm, 1e-6);
        EXPECT_EQ(reports.back().scalars_missing, 0u);
      },
      over("udp"));
}

TEST(ShardedStepInGroup, a_step_with_nonfinite_values_on_one_rank_changes_no_rank) {
  in_group(
      world,
      [&](Group& group) {
        auto step = make(group, "finite=on");
        train(group, step, 3);
        const Values before(step.parameters().begin(), step.parameters().end());
        auto gradient = gradient_of(group.rank(), 4);
        if (group.rank() == 1) gradient[elements - 1] = std::numeric_limits<float>::quiet_NaN();
        const auto report = step.run(gradient);
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        EXPECT_FALSE(report->applied);
        EXPECT_EQ(report->step, 4u);
        EXPECT_TRUE(equal(step.parameters(), before));
        train(group, step, 1);
        EXPECT_FALSE(equal(step.parameters(), before));
      },
      over("udp"));
}

// Values are sent as bf16 or with few bits. Replicas must be equal bit by bit, and the owners' values exact.
TEST(ShardedStepInGroup, encoded_values_are_the_same_on_all_ranks) {
  for (const std::string codecs :
       {"values=bf16,gradients=bf16", "values=int8,gradients=int4", "values=bf16,gradients=int8,delivery=reliable"}) {
    std::mutex mutex;
    std::vector<Values> replicas;
    in_group(
        world,
        [&](Group& group) {
          auto step = make(group, codecs);
          train(group, step, 5);
          const std::lock_guard lock(mutex);
          replicas.emplace_back(step.parameters().begin(), step.parameters().end());
        },
        over("udp"));
    ASSERT_EQ(replicas.size(), world);
    for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]) << codecs;
    EXPECT_NE(replicas[0], trained_alone(5));
  }
}

TEST(ShardedStepInGroup, reliable_calls_follow_the_configured_steps) {
  in_group(
      world,
      [&](Group& group) {
        std::vector<ShardedReport> reports;
        auto step = make(group, "backup=4,drift=5,resync=6");
        train(group, step, 30, &reports);
        for (const auto& report : reports) {
          EXPECT_EQ(report.drift.has_value(), report.step % 5 == 0) << report.step;
          if (report.drift) {
            EXPECT_EQ(report.drift->owner, 0) << report.to_string();
          }
        }
        EXPECT_GT(reports.back().drift->second_moment, 0);
      },
      over("udp"));
}

// Drift depends on the updates of the last few steps only. The rate falls from 1 to 0.1, so the reported second moment must
// fall to 0.1^2 = 0.01 of its value.
TEST(ShardedStepInGroup, drift_is_reported_with_the_updates_since_the_last_measurement) {
  in_group(
      world,
      [&](Group& group) {
        std::vector<ShardedReport> reports;
        auto made = ShardedStep::make(group, noise(7), make_sgd({.rate = 1}), options_of("drift=10,deadline=30s"));
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        train(group, *made, 20, &reports);
        made->set_rate(0.1);
        train(group, *made, 10, &reports);
        EXPECT_NEAR(reports[29].drift->second_moment / reports[19].drift->second_moment, 0.01, 0.001);
      },
      over("udp"));
}

TEST(ShardedStepInGroup, continues_bit_for_bit_from_a_checkpoint) {
  const auto expected = trained_alone(12);
  in_group(
      world,
      [&](Group& group) {
        std::vector<std::byte> saved;
        {
          auto step = make(group, "drift=0");
          train(group, step, 7);
          saved = step.save();
          train(group, step, 2);
        }
        auto step = make(group, "drift=0", noise(8));
        train(group, step, 1);
        ASSERT_TRUE(step.load(saved).ok());
        EXPECT_EQ(step.step(), 7u);
        train(group, step, 5);
        EXPECT_TRUE(equal(step.parameters(), expected));
        // The checkpoint of rank 2 is damaged, so no rank may load.
        if (group.rank() == 2) saved[saved.size() / 2] ^= std::byte{1};
        const auto refused = step.load(saved);
        EXPECT_EQ(refused.code(), group.rank() == 2 ? Code::corrupt : Code::invalid) << refused.to_string();
        EXPECT_EQ(step.step(), 12u);
        EXPECT_TRUE(equal(step.parameters(), expected));
        train(group, step, 1);
      },
      over("udp"));
}

TEST(ShardedStepInGroup, ranks_with_other_options_are_named) {
  in_group(
      2,
      [&](Group& group) {
        const auto made =
            ShardedStep::make(group, noise(7), adamw(), options_of(group.rank() == 0 ? "stale_max=5" : "stale_max=6"));
        EXPECT_EQ(made.status().code(), Code::invalid);
        const auto text = made.status().message();
        EXPECT_TRUE(text.starts_with("config_mismatch: options of the sharded step differ: rank ")) << text;
        EXPECT_NE(text.find(concat(", rank ", group.rank(), " has stale_max=", 5 + group.rank())), std::string::npos) << text;
        EXPECT_NE(text.find(concat(") has stale_max=", 6 - group.rank())), std::string::npos) << text;
        const auto sizes = ShardedStep::make(group, noise(7, 100 + group.rank()), adamw());
        EXPECT_NE(sizes.status().message().find(concat("rank ", group.rank(), " has ", 100 + group.rank(), " parameters")),
                  std::string::npos)
            << sizes.status().message();
      },
      over("udp"));
}

TEST(ShardedStepInGroup, refuses_invalid_arguments) {
  in_group(
      2,
      [&](Group& group) {
        EXPECT_EQ(ShardedStep::make(group, {}, adamw()).status().code(), Code::invalid);
        EXPECT_EQ(ShardedStep::make(group, noise(7), nullptr).status().code(), Code::invalid);
        // Shared memory has no datagrams, so delivery=lossy is refused.
        const auto lossy = ShardedStep::make(group, noise(7), adamw());
        EXPECT_EQ(lossy.status().code(), Code::unsupported) << lossy.status().to_string();
        auto step = make(group, "delivery=reliable");
        EXPECT_EQ(step.run(noise(1, 10)).status().code(), Code::invalid);
        train(group, step, 1);
      },
      over("shm"));
}

TEST(ShardedStepInGroup, one_rank_trains_alone) {
  in_group(1, [&](Group& group) {
    auto step = make(group, "clip=100");
    train(group, step, 3);
    EXPECT_EQ(step.step(), 3u);
    EXPECT_FALSE(equal(step.parameters(), noise(7)));
  });
}

TEST(ShardedStepInGroup, few_parameters_leave_ranks_without_a_shard) {
  for (const size_t count : {size_t{1}, size_t{17}}) {
    in_group(
        world,
        [&](Group& group) {
          auto step = make(group, "clip=1,backup=2,drift=3", noise(7, count));
          for (uint32_t i = 0; i < 25; ++i) {
            const auto report = step.run(noise(i * 10 + group.rank(), count));
            ASSERT_TRUE(report.ok()) << report.status().to_string();
            EXPECT_EQ(report->stale_ranges, 0u);
          }
          EXPECT_FALSE(equal(step.parameters(), noise(7, count)));
        },
        over("udp"));
  }
}

// A rank that joins gets the others' parameters and its part of their optimizer state. All continue training together.
TEST(ShardedStepInGroup, a_joiner_receives_the_others_parameters) {
  std::mutex mutex;
  std::vector<Values> replicas;
  const auto continue_training = [&](Group& group, ShardedStep& step) {
    EXPECT_EQ(step.resumed().step, 6u);
    EXPECT_TRUE(step.resumed().lost.empty());
    EXPECT_EQ(group.world_size(), world + 1);
    for (int i = 0; i < 4; ++i) {
      const auto report = step.run(gradient_of(group.rank(), step.step() + 1));
      ASSERT_TRUE(report.ok()) << report.status().to_string();
    }
    EXPECT_EQ(step.step(), 10u);
    const std::lock_guard lock(mutex);
    replicas.emplace_back(step.parameters().begin(), step.parameters().end());
  };
  in_group(
      world,
      [&](Group& group) {
        auto step = make(group, "");
        train(group, step, 6);
        ASSERT_TRUE(group.barrier().ok());
        while (group.world_size() == world) ASSERT_TRUE(group.reform().ok());
        const auto resumed = step.resume(group);
        ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
        continue_training(group, step);
      },
      over("udp"),
      [&](Group& group) {
        auto step = make(group, "", noise(99));
        continue_training(group, step);
      });
  ASSERT_EQ(replicas.size(), world + 1);
  for (const auto& replica : replicas) EXPECT_EQ(replica, replicas[0]);
}

TEST(ShardedOptions, round_trip_through_text_and_name_the_invalid_option) {
  EXPECT_EQ(ShardedOptions().to_string(), "");
  const std::string text =
      "delivery=reliable,gradients=int8,values=bf16,clip=1.5,finite=on,stale_max=8,resync=50,backup=20,drift=10,loss_budget=0."
      "2,deadline=20ms";
  EXPECT_EQ(options_of(text).to_string(), text);
  EXPECT_EQ(options_of(options_of(text).to_string()), options_of(text));
  for (const std::string wrong : {"clip=-1", "clip=inf", "stale_max=1", "loss_budget=2", "nonsense=1", "values=int9",
                                  "values=int8/int4", "delivery=automatic", "finite", "stale_max=-3"}) {
    const auto parsed = ShardedOptions::parse(wrong);
    EXPECT_EQ(parsed.status().code(), Code::invalid) << wrong;
    EXPECT_NE(parsed.status().message().find("bad_option"), std::string::npos) << wrong << ": " << parsed.status().message();
  }
}

}  // namespace
}  // namespace unisono

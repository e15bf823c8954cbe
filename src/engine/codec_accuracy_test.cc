// Measures the error of encoded collectives through the engine, and compares it with the error model of
// docs/design/methods/flash.md. In the model, each encoding in series adds noise, whatever the world size. Error feedback
// removes the noise over several calls.
//
// The model also covers a ring that encodes sums on every hop. That is not tested here, because the engine refuses such
// schedules (EngineCodec.refuses_a_schedule_that_would_encode_sums_on_every_hop).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

#include "base/random.h"
#include "engine/codec_test_support.h"

namespace unisono {
namespace {

using Metadata = StepCodec::Metadata;
using test::Vectors;
using Exact = std::vector<double>;

constexpr auto two_step = ScheduleKind::two_step, one_shot = ScheduleKind::one_shot, hierarchical = ScheduleKind::hierarchical;
constexpr uint64_t seed = 20'241;

// With 512 groups of 128 elements, chance changes a result by less than 0.1 dB.
constexpr size_t element_count = 1 << 16;

class CodecAccuracy : public testing::Test {
 protected:
  void SetUp() override { std::printf("seed %llu\n", static_cast<unsigned long long>(seed)); }

  // Normally distributed values, mean 0 and deviation 1 (Box-Muller). Each call returns new values.
  std::vector<float> normal(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - random_.unit())), angle = 2 * std::numbers::pi * random_.unit();
      values[i] = static_cast<float>(radius * std::cos(angle));
      if (i + 1 < count) values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return values;
  }
  Vectors independent(uint32_t world, size_t count = element_count) {
    Vectors inputs;
    for (uint32_t r = 0; r < world; ++r) inputs.push_back(normal(count));
    return inputs;
  }

 private:
  Random random_{seed};
};

Exact sum_of(const Vectors& inputs) {
  Exact sum(inputs.front().size());
  for (const auto& values : inputs) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// Signal-to-noise ratio in dB of scale * result against `exact`.
template <typename Result>
double snr_db(const Exact& exact, const Result& result, double scale = 1) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = scale * static_cast<double>(result[i]) - exact[i];
    signal += exact[i] * exact[i], noise += error * error;
  }
  return 10 * std::log10(signal / noise);
}

// Returns the signal-to-noise ratio in dB of one sum over all ranks. Checks that the requested codec ran and that all ranks
// have the same bits.
double snr_of_sum(const Vectors& inputs, ScheduleKind schedule, const Codec& codec) {
  TestCluster cluster(static_cast<uint32_t>(inputs.size()));
  const auto outcome = test::all_reduce(cluster, inputs, {.schedule = schedule, .codec = codec});
  EXPECT_EQ(outcome.reports.front().codec, codec);
  test::digest(outcome);
  return snr_db(sum_of(inputs), outcome.values.front());
}

Codec codec_of(uint8_t bits, bool own_exact = false) {
  auto codec = Codec::of(test::step(bits, 128, Metadata::f16));
  codec.own_exact = own_exact;
  return codec;
}

struct Expected {
  const char* what;
  uint32_t world;
  ScheduleKind schedule;
  bool own_exact;
  double int8_db, int4_db;
};

TEST_F(CodecAccuracy, errors_of_sums_stay_within_the_bound_of_their_encodings) {
  const Expected all[] = {
      {"one_shot", 2, one_shot, false, 44.6, 20.0}, {"one_shot", 5, one_shot, false, 44.6, 20.0},
      {"two_step", 4, two_step, false, 41.6, 17.0}, {"own_exact", 2, two_step, true, 42.9, 18.2},
      {"own_exact", 4, two_step, true, 42.2, 17.6}, {"two host groups of two", 4, hierarchical, false, 39.9, 15.2}};
  for (const auto& e : all) {
    const auto inputs = independent(e.world);
    const double int8_db = snr_of_sum(inputs, e.schedule, codec_of(8, e.own_exact));
    const double int4_db = snr_of_sum(inputs, e.schedule, codec_of(4, e.own_exact));
    std::printf("%-18s %u ranks: int8 %.2f dB (%.1f), int4 %.2f dB (%.1f)\n", e.what, e.world, int8_db, e.int8_db, int4_db,
                e.int4_db);
    EXPECT_NEAR(int8_db, e.int8_db, 0.2) << e.what << ", " << e.world << " ranks";
    EXPECT_NEAR(int4_db, e.int4_db, 0.2) << e.what << ", " << e.world << " ranks";
  }
}

TEST_F(CodecAccuracy, two_step_errors_do_not_grow_with_the_number_of_ranks) {
  for (const auto& [bits, expected_db] : {std::pair<uint8_t, double>{8, 41.6}, {4, 17.0}}) {
    std::vector<double> measured;
    for (const uint32_t world : {2u, 3u, 4u, 6u, 8u, 11u, 16u}) {
      measured.push_back(snr_of_sum(independent(world), two_step, codec_of(bits)));
      std::printf("int%u, %u ranks: %.2f dB\n", bits, world, measured.back());
      EXPECT_NEAR(measured.back(), expected_db, 0.2) << world << " ranks";
    }
    const auto [least, most] = std::minmax_element(measured.begin(), measured.end());
    EXPECT_LT(*most - *least, 0.2) << "int" << int{bits};
  }
}

// The contributions largely cancel. An input is x + 3 (y - mean of y over the four ranks), with independent x and y. The second
// term sums to 0 over the ranks. So an input has 1 + 9 · 3/4 = 7.75 times the energy of x, but the sum has only that of the x.
// Therefore the code width of the reduce step dominates the error.
TEST_F(CodecAccuracy, if_contributions_cancel_wider_codes_in_the_reduce_step_are_more_accurate) {
  const uint32_t world = 4;
  auto inputs = independent(world);
  const auto apart = independent(world);
  const auto total = sum_of(apart);
  for (uint32_t r = 0; r < world; ++r) {
    for (size_t i = 0; i < element_count; ++i) inputs[r][i] += static_cast<float>(3 * (apart[r][i] - total[i] / world));
  }
  const struct {
    uint8_t reduce, gather;
    double expected_db;
  } all[] = {{8, 8, 35.2}, {4, 8, 11.1}, {8, 4, 19.9}, {4, 4, 10.6}};
  for (const auto& e : all) {
    const auto codec = test::both(test::step(e.reduce, 128, Metadata::f16), test::step(e.gather, 128, Metadata::f16));
    const double measured = snr_of_sum(inputs, two_step, codec);
    std::printf("int%u/int%u: %.2f dB (%.1f)\n", e.reduce, e.gather, measured, e.expected_db);
    EXPECT_NEAR(measured, e.expected_db, 0.3) << int{e.reduce} << "/" << int{e.gather};
  }
}

// Repeats one call 64 times with the same inputs. Returns the SNR in dB of the mean of the results so far, after 1, 16 and 64
// calls.
std::vector<double> snr_of_means(const Vectors& inputs, ReduceOp op, bool feedback) {
  const auto world = static_cast<uint32_t>(inputs.size());
  const size_t count = inputs.front().size();
  const double scale = op == ReduceOp::avg ? world : 1;
  const auto exact = sum_of(inputs);
  TestCluster cluster(world);
  const CallOptions options{.op = op, .schedule = two_step, .codec = Codec::of(test::step(4, 128, Metadata::bf16))};
  Vectors residuals(world, std::vector<float>(count));
  Exact mean(count);
  std::vector<double> snr;
  for (int call = 1; call <= 64; ++call) {
    auto sent = inputs;
    for (uint32_t r = 0; feedback && r < world; ++r) {
      for (size_t i = 0; i < count; ++i) sent[r][i] += residuals[r][i];
    }
    const auto outcome = test::all_reduce(cluster, std::move(sent), options, feedback ? &residuals : nullptr);
    test::digest(outcome);
    for (size_t i = 0; i < count; ++i) mean[i] += (static_cast<double>(outcome.values.front()[i]) - mean[i]) / call;
    if (call == 1 || call == 16 || call == 64) snr.push_back(snr_db(exact, mean, scale));
  }
  return snr;
}

TEST_F(CodecAccuracy, with_error_feedback_means_of_results_approach_the_exact_sum) {
  const auto inputs = independent(4, 8192);
  for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
    const auto with = snr_of_means(inputs, op, true);
    const auto without = snr_of_means(inputs, op, false);
    std::printf("%s: %.2f dB after one call; with feedback %+.2f after 16, %+.2f after 64; without %+.2f, %+.2f\n",
                op == ReduceOp::sum ? "sum" : "avg", with[0], with[1] - with[0], with[2] - with[0], without[1] - without[0],
                without[2] - without[0]);
    EXPECT_NEAR(with[1] - with[0], 20 * std::log10(16), 0.5);
    EXPECT_NEAR(with[2] - with[0], 20 * std::log10(64), 0.5);
    EXPECT_NEAR(without[1], without[0], 1e-3);
    EXPECT_NEAR(without[2], without[0], 1e-3);
    EXPECT_NEAR(without[0], with[0], 1e-3);  // in the first call the residuals are zero
  }
}

}  // namespace
}  // namespace unisono

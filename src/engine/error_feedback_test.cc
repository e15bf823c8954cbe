// Compares error feedback within the call to a residual that is added to the input before the call. The results must be equal.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/concat.h"
#include "engine/codec_test_support.h"

namespace unisono {
namespace {

using test::golden;
using test::Vectors;

constexpr size_t block = 700;  // elements per block in reduce_scatter: not a multiple of the group size of 128

enum class Placement { out_of_place, in_place };

// Each rank's result and encoding error after a call.
struct Outputs {
  Vectors results, errors;
};

Outputs all_reduced(uint32_t world, Placement placement, Vectors inputs, Vectors errors, const CallOptions& options) {
  TestCluster cluster(world);
  Vectors results(world, std::vector<float>(inputs[0].size()));
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    const Tensor input{std::span<float>(inputs[r])}, output{std::span<float>(results[r])};
    auto with = options;
    with.encode_error = errors[r].data();
    done.push_back(
        cluster.submit(r, all_reduce_call(cluster.caller(r), input, placement == Placement::in_place ? input : output, with)));
  }
  cluster.finish(done);
  for (const auto& completion : done)
    EXPECT_TRUE(completion->done && completion->status.ok()) << completion->status.to_string();
  return {placement == Placement::in_place ? std::move(inputs) : std::move(results), std::move(errors)};
}

Outputs reduce_scattered(uint32_t world, Placement, Vectors inputs, Vectors errors, const CallOptions& options) {
  TestCluster cluster(world);
  // Blocks of unequal size, one of them empty.
  std::vector<size_t> counts;
  for (Rank r = 0; r < world; ++r) counts.push_back(r == 1 ? 0 : r == 0 && world > 1 ? 2 * block : block);
  Vectors results;
  for (const auto count : counts) results.emplace_back(count);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    auto with = options;
    with.encode_error = errors[r].data();
    done.push_back(cluster.submit(r, reduce_scatter_call(cluster.caller(r), ConstTensor{std::span<const float>(inputs[r])},
                                                         Tensor{std::span<float>(results[r])}, counts, false, with)));
  }
  cluster.finish(done);
  for (const auto& completion : done)
    EXPECT_TRUE(completion->done && completion->status.ok()) << completion->status.to_string();
  return {std::move(results), std::move(errors)};
}

void expect_as_by_hand(auto call, uint32_t world, Placement placement, const CallOptions& options, const std::string& what) {
  const auto inputs = golden(world, world * block);
  Vectors left_before;
  for (Rank r = 0; r < world; ++r) left_before.push_back(gold(world * block, 100 + r));
  auto with = options;
  with.error_feedback = true;
  Vectors errors = left_before, by_hand_errors(world, std::vector<float>(world * block, 1e9f));
  for (int step = 0; step < 3; ++step) {
    auto by_hand = inputs;
    for (Rank r = 0; r < world; ++r) {
      for (size_t i = 0; i < by_hand[r].size(); ++i) by_hand[r][i] += step == 0 ? left_before[r][i] : by_hand_errors[r][i];
    }
    const auto expected = call(world, placement, by_hand, by_hand_errors, options);
    const auto got = call(world, placement, inputs, errors, with);
    ASSERT_EQ(got.results, expected.results) << what << ", step " << step;
    ASSERT_EQ(got.errors, expected.errors) << what << ", step " << step;
    errors = got.errors, by_hand_errors = expected.errors;
  }
}

class ErrorFeedbackOf : public ::testing::TestWithParam<ScheduleKind> {};
INSTANTIATE_TEST_SUITE_P(ErrorFeedback, ErrorFeedbackOf,
                         ::testing::Values(ScheduleKind::two_step, ScheduleKind::one_shot, ScheduleKind::ring,
                                           ScheduleKind::halving_doubling, ScheduleKind::hierarchical, ScheduleKind::automatic),
                         [](const auto& param) { return std::string(name(param.param)); });

TEST_P(ErrorFeedbackOf, equals_adding_the_error_by_hand_bit_for_bit) {
  auto own_exact = Codec::quantized(4);
  own_exact.own_exact = true;
  std::vector<Codec> codecs{Codec{}};
  const bool plain_only = GetParam() == ScheduleKind::ring || GetParam() == ScheduleKind::halving_doubling;
  if (!plain_only)
    codecs.insert(codecs.end(), {Codec::quantized(4), Codec::quantized(2), own_exact, *Codec::parse("bf16"),
                                 *Codec::parse("int8/plain"), *Codec::parse("plain/int4")});
  for (const uint32_t world : {1, 2, 3, 4}) {
    for (size_t c = 0; c < codecs.size(); ++c) {
      for (const auto placement : {Placement::in_place, Placement::out_of_place}) {
        for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
          const auto what =
              concat(world, " ranks, codec ", c, placement == Placement::in_place ? ", in place" : "", ", ", name(op));
          ASSERT_NO_FATAL_FAILURE(expect_as_by_hand(all_reduced, world, placement,
                                                    {.op = op, .schedule = GetParam(), .slice_bytes = 1024, .codec = codecs[c]},
                                                    what));
        }
      }
    }
  }
}

TEST(ErrorFeedback, in_reduce_scatter_equals_adding_the_error_by_hand) {
  for (const uint32_t world : {1, 3, 4}) {
    for (const auto& codec : {Codec{}, Codec::quantized(4), Codec::quantized(8)}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
        ASSERT_NO_FATAL_FAILURE(expect_as_by_hand(reduce_scattered, world, Placement::out_of_place, {.op = op, .codec = codec},
                                                  concat(world, " ranks")));
      }
    }
  }
}

// A NaN in the input must only affect the errors of its own group of elements.
TEST(ErrorFeedback, a_nan_affects_only_its_own_quantization_group) {
  const uint32_t world = 3;
  auto inputs = golden(world, 1000);
  inputs[1][500] = std::numeric_limits<float>::quiet_NaN();
  const auto got = all_reduced(world, Placement::in_place, inputs, Vectors(world, std::vector<float>(1000)),
                               {.schedule = ScheduleKind::two_step, .codec = Codec::quantized(4), .error_feedback = true});
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < 1000; ++i) {
      ASSERT_TRUE(i / 128 == 500 / 128 || std::isfinite(got.errors[r][i])) << r << " " << i;
    }
  }
}

TEST(ErrorFeedback, is_refused_without_a_buffer_for_the_error) {
  TestCluster cluster(2);
  std::vector<float> values(100), error(100);
  const Tensor tensor{std::span<float>(values)};
  const auto refused = [&](const CallOptions& options) {
    return all_reduce_call(cluster.caller(0), tensor, tensor, options).status();
  };
  EXPECT_EQ(refused({.error_feedback = true}).code(), Code::invalid);
  EXPECT_EQ(refused({.error_feedback = true}).message(), "error_feedback needs encode_error");
  EXPECT_EQ(refused({.encode_error = error.data(), .error_feedback = true, .measure_error = true}).code(), Code::invalid);
  EXPECT_TRUE(refused({.encode_error = error.data(), .error_feedback = true}).ok());
}

}  // namespace
}  // namespace unisono

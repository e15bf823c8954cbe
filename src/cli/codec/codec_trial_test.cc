// Tests that a trial's sums do not depend on how the elements are cut into chunks.
#include "cli/codec/codec_trial.h"

#include <cmath>
#include <limits>

#include "cli/codec/codec_test_support.h"

namespace unisono::cli {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

ErrorStatistics statistics(const std::vector<float>& before, const std::vector<float>& after) {
  ErrorStatistics all;
  all.add(before, after);
  return all;
}

TEST(ErrorStatistics, statistics_match_their_definitions) {
  const auto all = statistics({3, 4, 0, -5}, {3, 4.5, 0, -5.5});
  EXPECT_DOUBLE_EQ(*all.snr_db(), 10 * std::log10(50 / 0.5));
  EXPECT_DOUBLE_EQ(*all.rms_error(), std::sqrt(0.5 / 4));
  EXPECT_EQ(all.max_abs_error, 0.5);
  EXPECT_EQ(all.compared, 4u);
  EXPECT_FALSE(all.is_exact());
}

TEST(ErrorStatistics, statistics_cover_elements_that_are_finite_before_and_after) {
  const auto all = statistics({nan, infinity, 1, 2}, {nan, nan, nan, 1});
  EXPECT_EQ(all.elements, 4u);
  EXPECT_EQ(all.nonfinite, 2u);
  EXPECT_EQ(all.compared, 1u);
  EXPECT_EQ(all.max_abs_error, 1);
  EXPECT_DOUBLE_EQ(*all.snr_db(), 10 * std::log10(4.0));
}

TEST(ErrorStatistics, an_infinity_on_one_side_is_no_error) {
  const auto all = statistics({infinity, 1, infinity, 2}, {1, infinity, infinity, 2});
  EXPECT_EQ(all.compared, 1u);
  EXPECT_TRUE(all.is_exact());
}

TEST(ErrorStatistics, there_is_no_ratio_without_an_error_or_without_a_signal) {
  EXPECT_EQ(statistics({1, 2}, {1, 2}).snr_db(), std::nullopt);
  EXPECT_TRUE(statistics({1, 2}, {1, 2}).is_exact());
  EXPECT_EQ(statistics({0, 0}, {1, 2}).snr_db(), std::nullopt);
  EXPECT_EQ(statistics({}, {}).rms_error(), std::nullopt);
  EXPECT_FALSE(statistics({}, {}).is_exact());
  EXPECT_EQ(statistics({nan}, {nan}).rms_error(), std::nullopt);
}

TEST(ErrorStatistics, the_largest_values_of_f32_do_not_overflow) {
  const float most = std::numeric_limits<float>::max();
  const auto all = statistics({most, -most}, {-most, most});
  EXPECT_DOUBLE_EQ(all.max_abs_error, 2.0 * most);
  EXPECT_NEAR(*all.snr_db(), -6.02, 0.01);
}

TEST(CodecTrial, results_do_not_depend_on_how_elements_are_cut_at_groups) {
  const auto codec = codec_for({.kind = StepCodec::Kind::quantize, .bits = 3}, false, DType::f32);
  const auto values = some_values(1000);
  const auto bytes = std::as_bytes(std::span(values));
  TrialMemory memory;
  CodecTrial whole(codec, DType::f32), parts(codec, DType::f32);
  whole.add(bytes, memory);
  std::vector<std::byte> decoded;
  for (size_t first = 0; first < values.size(); first += 128) {
    parts.add(bytes.subspan(4 * first, 4 * std::min<size_t>(128, values.size() - first)), memory);
    decoded.insert(decoded.end(), memory.decoded.begin(), memory.decoded.end());
  }
  whole.add({}, memory);
  EXPECT_EQ(whole.tally().block_bytes, parts.tally().block_bytes);
  EXPECT_EQ(whole.tally().header_bytes, 8u);
  EXPECT_EQ(parts.tally().header_bytes, 64u);
  EXPECT_EQ(whole.errors().max_abs_error, parts.errors().max_abs_error);
  EXPECT_NEAR(*whole.errors().snr_db(), *parts.errors().snr_db(), 1e-9);
  EXPECT_EQ(decoded.size(), bytes.size());
}

TEST(CodecTrial, counts_groups_with_a_nan_and_saturated_elements) {
  auto values = some_values(256);
  values[3] = nan;
  values[200] = 1e6f;
  CodecTrial trial(
      codec_for({.kind = StepCodec::Kind::quantize, .bits = 8, .metadata = StepCodec::Metadata::f16}, false, DType::f32),
      DType::f32);
  TrialMemory memory;
  trial.add(std::as_bytes(std::span(values)), memory);
  EXPECT_EQ(trial.counts().nonfinite_groups, 1u);
  EXPECT_EQ(trial.counts().saturated, 1u);
  EXPECT_EQ(trial.errors().nonfinite, 1u);
  EXPECT_EQ(trial.errors().compared, 128u);
}

TEST(CodecTrial, elements_of_16_bits_travel_as_they_are_under_f16_and_bf16) {
  for (const auto dtype : {DType::f16, DType::bf16}) {
    EXPECT_TRUE(codec_for({.kind = StepCodec::Kind::bf16}, false, dtype).is_plain());
    CodecTrial trial(codec_for({.kind = StepCodec::Kind::f16}, false, dtype), dtype);
    TrialMemory memory;
    const std::vector<std::byte> elements(64, std::byte{0x3c});
    trial.add(elements, memory);
    EXPECT_EQ(memory.message, elements);
    EXPECT_EQ(memory.decoded, elements);
    EXPECT_TRUE(trial.errors().is_exact());
  }
}

TEST(CodecTrial, the_text_of_a_codec_is_parsed_to_the_same_codec) {
  for (const char* text : {"plain", "f16", "int8", "int2", "int3:group=32,spikes=off", "int5:group=256,metadata=f32,spikes=on",
                           "int4:on_overflow=poison"}) {
    const auto codec = *Codec::parse(text);
    const auto wire = codec_for(codec.reduce, codec.poison, DType::f32);
    const auto again = Codec::parse(canonical_text(wire));
    ASSERT_TRUE(again.ok()) << canonical_text(wire);
    EXPECT_EQ(codec_for(again->reduce, again->poison, DType::f32), wire) << canonical_text(wire);
  }
  EXPECT_EQ(canonical_text(codec_for({.kind = StepCodec::Kind::quantize, .bits = 2}, false, DType::f16)),
            "int2:metadata=f16,spikes=on");
}

}  // namespace
}  // namespace unisono::cli

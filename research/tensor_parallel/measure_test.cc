#include "research/tensor_parallel/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/concat.h"
#include "research/tensor_parallel/results.h"
#include "research/tensor_parallel/test_group.h"

namespace tensor_parallel {
namespace {

constexpr Shape small{.blocks = 2, .weight_sets = 1, .hidden = 1536, .heads = 6, .inner = 12, .context = 9};

MeasureOptions all_settings() {
  MeasureOptions options{.settings = {}, .weights = {.seed = 3, .outlier = 20}, .prompt = 6, .tokens = 3, .repetitions = 2};
  for (const char* word : {"exact", "bf16", "int8", "int4", "q80"}) options.settings.push_back(parse_setting(word).value());
  return options;
}

// Returns the results of rank 0. If `different_outlier` is given, rank 1 has other weights, so its results differ.
Measured measured(uint32_t ranks, std::optional<float> different_outlier = {}) {
  Measured result;
  with_group(ranks, [&](unisono::Group& group) {
    const auto options = all_settings();
    auto weights = options.weights;
    if (different_outlier && group.rank() == 1) weights.outlier = *different_outlier;
    Transformer model(small, weights, {.index = group.rank(), .count = ranks});
    auto done = measure(group, model, options, {});
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    if (group.rank() == 0) result = *std::move(done);
  });
  return result;
}

Results results_of(Measured measured) {
  return {.shape = small,
          .options = all_settings(),
          .world_size = 3,
          .links = "some",
          .kernels = "any",
          .weight_bytes = 1 << 20,
          .measured = std::move(measured)};
}

TEST(Measure, every_setting_of_every_repetition_is_counted_once) {
  const auto done = measured(3);
  EXPECT_TRUE(done.faults.empty()) << done.faults.front();
  ASSERT_EQ(done.results.size(), 5u);
  for (const auto& result : done.results) {
    EXPECT_EQ(result.prefill.steps.size(), 2u) << result.setting.name;
    EXPECT_EQ(result.decode.steps.size(), 6u) << result.setting.name;
    for (const auto* phase : {&result.prefill, &result.decode}) {
      for (const Step& step : phase->steps) {
        EXPECT_GT(step.total_s, 0);
        EXPECT_GE(step.communication_s, 0);
        EXPECT_LE(step.communication_s, step.total_s);
      }
      EXPECT_GT(phase->sent_bytes, phase->sent_payload);
      EXPECT_FALSE(phase->alone_s.empty());
    }
  }
}

TEST(Measure, results_are_compared_with_the_first_setting) {
  const auto done = measured(3);
  ASSERT_EQ(done.results.size(), 5u);
  EXPECT_EQ(done.results[0].prefill.snr_db, std::numeric_limits<double>::infinity());
  for (size_t i = 1; i < done.results.size(); ++i) {
    const auto& result = done.results[i];
    if (!result.prefill.codec_note.empty()) continue;  // the codec was not used: inside one host it seldom pays
    EXPECT_GT(result.prefill.snr_db, 5) << result.setting.name;
    EXPECT_LT(result.prefill.snr_db, 90) << result.setting.name;
  }
}

// Each rank sends 4 sums per step (2 for each of 2 blocks) to 2 other ranks. A sum has 1536 values per token, and the prefill
// has 6 tokens. 32 values take 34 bytes.
TEST(Measure, q80_sends_34_bytes_for_32_values_to_each_of_the_others) {
  const auto done = measured(3);
  ASSERT_EQ(done.results.size(), 5u);
  const auto& q80 = done.results.back();
  EXPECT_EQ(q80.decode.sent_payload, 4u * 2 * 1536 / 32 * 34);
  EXPECT_EQ(q80.prefill.sent_payload, 6 * q80.decode.sent_payload);
  EXPECT_DOUBLE_EQ(q80.decode.bits_per_element, 8.5);
  EXPECT_EQ(q80.decode.passes, 1u);
  EXPECT_EQ(q80.decode.codec, "q80");
}

TEST(Measure, a_rank_with_a_different_result_is_named) {
  const auto done = measured(2, 5.0f);
  ASSERT_EQ(done.faults.size(), 5u * 2 * 2);
  EXPECT_NE(done.faults.front().find("exact, repetition 1: after the prefill rank 1 has another hidden state than rank 0"),
            std::string::npos)
      << done.faults.front();
}

TEST(Measure, a_noise_of_a_tenth_is_20_dB) {
  const std::vector<float> exact{10, -10, 10, 10};
  const std::vector<float> other{11, -9, 9, 11};
  EXPECT_NEAR(snr_db(exact, other), 20, 1e-9);
}

TEST(Setting, is_exact_or_q80_or_a_codec) {
  EXPECT_TRUE(parse_setting("exact").value().codec->is_plain());
  EXPECT_FALSE(parse_setting("q80").value().codec.has_value());
  EXPECT_EQ(parse_setting("int5:group=64").value().codec->reduce.bits, 5);
  EXPECT_EQ(parse_setting("int9").status().code(), unisono::Code::invalid);
}

TEST(Results, quantiles_lie_between_values) {
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.25), 7);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.25), 2.5);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(Results, the_table_has_a_line_for_each_setting_and_says_why_a_codec_was_left_out) {
  auto done = measured(3);
  done.results[3].decode.codec_note = "it is Sunday";
  done.results[2].decode.codec_note = "it is Sunday";
  const auto text = table(results_of(std::move(done)));
  for (const char* name : {"\nexact ", "\nbf16 ", "\nint8 ", "\nint4 ", "\nq80 "}) {
    const auto first = text.find(name);
    ASSERT_NE(first, std::string::npos) << name << text;
    EXPECT_NE(text.find(name, first + 1), std::string::npos) << name << text;
  }
  const auto note = text.find("sent as fp32: it is Sunday");
  ASSERT_NE(note, std::string::npos) << text;
  EXPECT_EQ(text.find("it is Sunday", note + 20), std::string::npos) << "told once" << text;
}

TEST(Results, files_are_written) {
  const auto folder = std::filesystem::temp_directory_path() / (unisono::concat("tensor_parallel_results_", getpid()));
  const auto written = write_files(results_of(measured(2)), folder.string());
  ASSERT_TRUE(written.ok()) << written.to_string();
  std::ifstream file(folder / "summary.json");
  const auto summary = nlohmann::json::parse(file);
  EXPECT_EQ(summary["settings"].size(), 5u);
  EXPECT_EQ(summary["settings"][4]["setting"], "q80");
  EXPECT_EQ(summary["settings"][4]["decode"]["total_ms"].size(), 6u);
  EXPECT_TRUE(summary["settings"][0]["prefill"]["snr_db"].is_null());
  for (const char* name : {"times.svg", "alone.svg"}) EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tensor_parallel

// Tests the formatting of numbers for people and for programs.
#include "cli/codec/codec_report.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "cli/codec/codec_test_support.h"

namespace unisono::cli {
namespace {

CodecTrial trial_of(const char* text, const std::vector<float>& values) {
  const auto codec = *Codec::parse(text);
  CodecTrial trial(codec_for(codec.reduce, codec.poison, DType::f32), DType::f32);
  TrialMemory memory;
  trial.add(std::as_bytes(std::span(values)), memory);
  return trial;
}

TEST(CodecReport, bytes_are_in_powers_of_1000) {
  EXPECT_EQ(decimal_bytes(0), "0 B");
  EXPECT_EQ(decimal_bytes(999), "999 B");
  EXPECT_EQ(decimal_bytes(1000), "1.00 kB");
  EXPECT_EQ(decimal_bytes(4'194'304), "4.19 MB");
}

TEST(CodecReport, headers_count_in_the_ratio_and_not_in_bits) {
  const auto json = nlohmann::json::parse(json_of(trial_of("int4", some_values(1024))));
  EXPECT_EQ(json["codec"], "int4:metadata=bf16,spikes=off");
  EXPECT_EQ(json["bytes_in"], 4096);
  EXPECT_EQ(json["header_bytes"], 8);
  EXPECT_EQ(json["block_bytes"], 544);
  EXPECT_EQ(json["message_bytes"], 552);
  EXPECT_EQ(json["bits_per_element"], 4.25);
  EXPECT_DOUBLE_EQ(json["ratio"], 4096.0 / 552);
}

TEST(CodecReport, infinite_and_undefined_numbers_are_null) {
  const auto exact = nlohmann::json::parse(json_of(trial_of("int4", std::vector<float>(256))));
  EXPECT_TRUE(exact["snr_db"].is_null());
  EXPECT_EQ(exact["max_abs_error"], 0);
  EXPECT_EQ(exact["rms_error"], 0);
  const auto nothing = nlohmann::json::parse(json_of(trial_of("int4", {})));
  for (const char* key : {"snr_db", "max_abs_error", "rms_error", "bits_per_element", "ratio"})
    EXPECT_TRUE(nothing[key].is_null()) << key;
}

TEST(CodecReport, the_summary_warns_of_what_is_not_finite_or_too_large) {
  auto values = some_values(1024);
  EXPECT_EQ(summary_of(trial_of("int4", values)).find("caution"), std::string::npos);
  values[0] = std::numeric_limits<float>::infinity();
  values[1000] = 1e9f;
  const auto text = summary_of(trial_of("int4:metadata=f16", values));
  EXPECT_NE(text.find("caution  1 element not finite; 1 group became NaN; errors are over 896 elements"), std::string::npos)
      << text;
  EXPECT_NE(text.find("caution  1 element too large for the codec"), std::string::npos) << text;
}

TEST(CodecReport, a_table_has_a_row_per_codec_and_fits_a_terminal) {
  const auto values = some_values(100'000);
  const CodecComparison comparison{
      .name = "layer.f32",
      .trials = {trial_of("bf16", values), trial_of("int4", values), trial_of("int2", values), trial_of("int8", {})}};
  const auto table = table_of(comparison);
  EXPECT_NE(table.find("# layer.f32: 100,000 elements of f32, 400.00 kB\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  bf16       -     16.000 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n  int4     off      4.250 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n  int2      on      2.6"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  int8     off          -      0.000       -         -           -           -\n"), std::string::npos)
      << table;
  for (size_t at = 0; at < table.size();) {
    const auto end = table.find('\n', at);
    EXPECT_LE(end - at, 80u) << table.substr(at, end - at);
    at = end + 1;
  }
}

TEST(CodecReport, a_table_warns_once_of_what_all_rows_share) {
  auto values = some_values(1024);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[1000] = 1e9f;
  const CodecComparison comparison{
      .name = "x",
      .trials = {trial_of("f16", values), trial_of("int4:metadata=f16", values), trial_of("int2:metadata=f16", values)}};
  const auto table = table_of(comparison);
  EXPECT_NE(table.find("# 1 element not finite; "), std::string::npos) << table;
  EXPECT_NE(table.find("finite before and after\n# 1 element too large for f16, cut to the largest value\n# 1 element too "
                       "large for scales in f16, cut to the largest value\n"),
            std::string::npos)
      << table;
  EXPECT_EQ(table.substr(table.rfind("# ")), "# 1 element too large for scales in f16, cut to the largest value\n");
}

TEST(CodecReport, curves_go_over_the_width_and_levels_across) {
  const auto values = some_values(1000);
  const CodecComparison comparison{.name = "layer.f32",
                                   .trials = {trial_of("bf16", values), trial_of("int4", values), trial_of("int2", values)}};
  const auto panels = panels_of(comparison);
  ASSERT_EQ(panels.size(), 2u);
  ASSERT_EQ(panels[0].series.size(), 3u);
  EXPECT_EQ(panels[0].series[0].points.size(), 1u);
  EXPECT_EQ(panels[0].series[0].points[0].x, 2);
  EXPECT_EQ(panels[0].series[1].points[0].x, 4);
  EXPECT_EQ(panels[0].series[2].name, "bf16 (16 bits)");
  EXPECT_EQ(panels[1].series[2].points[0].y, 2.0);
  EXPECT_EQ(panels[1].y_label, "messages, headers included (kB)");
}

}  // namespace
}  // namespace unisono::cli

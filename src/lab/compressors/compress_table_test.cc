#include "lab/compressors/compress_table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace unisono::lab {

using cli::svg;

namespace {

CompressPlan plan_for() {
  CompressPlan plan;
  plan.gradients.shapes = {{64, 32}};
  return plan;
}

CompressRow row_of(Method method, uint64_t bytes, double us) {
  CompressRow row;
  row.method = method;
  row.payload_bytes = bytes;
  row.sent_bytes = 2 * bytes;
  row.collectives = 2;
  row.phases[4].p50_us = us;
  row.total.p50_us = us;
  row.captured = 0.75;
  row.error = 0.25;
  row.treatments = {"12 of 64 rows"};
  return row;
}

std::vector<CompressRow> rows_of() { return {row_of(Method::dense, 8192, 1000), row_of(Method::arc, 2048, 500)}; }

TEST(CompressTable, the_head_describes_each_tensor_in_comment_lines) {
  const auto head = compress_head(plan_for(), rows_of());
  for (const char* part : {"tensors: 64x32", "decay, noise 0.5, seed 0", "ratio 0.2, feedback ef14",
                           "# arc 64x32: 12 of 64 rows\n", "payload", "captured", "second"})
    EXPECT_NE(head.find(part), std::string::npos) << part << head;
  EXPECT_EQ(head.find("# dense"), std::string::npos);
  for (size_t at = 0; at < head.size(); at = head.find('\n', at) + 1) EXPECT_EQ(head[at], '#');
}

TEST(CompressTable, tensors_that_are_treated_alike_share_a_line) {
  auto plan = plan_for();
  plan.gradients.shapes = {{64, 32}, {64, 32}, {7}};
  auto row = row_of(Method::arc, 2048, 500);
  row.treatments = {"12 of 64 rows", "12 of 64 rows", "whole: it is small"};
  const auto head = compress_head(plan, {row});
  EXPECT_NE(head.find("# arc 64x32: 12 of 64 rows (x2)\n# arc 7: whole: it is small\n"), std::string::npos) << head;
}

TEST(CompressTable, a_row_is_compared_with_dense) {
  const auto rows = rows_of();
  const auto text = compress_row(rows[1], rows);
  for (const char* part : {" arc ", " 2048 ", " 4096 ", " 0.250 ", " 500.0 ", " 0.500 ", " 0.75000 ", " 0.25000\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  const std::vector<CompressRow> alone{rows[1]};
  EXPECT_NE(compress_row(alone[0], alone).find(" - "), std::string::npos);
}

TEST(CompressTable, results_that_differ_between_ranks_are_reported) {
  auto rows = rows_of();
  rows[1].alike = false;
  EXPECT_NE(compress_row(rows[1], rows).find("RANKS DIFFER"), std::string::npos);
}

TEST(CompressTable, a_codec_has_a_row_of_its_own_that_dense_is_not_compared_with) {
  auto rows = rows_of();
  rows.insert(rows.begin(), row_of(Method::dense, 4096, 700));
  rows[0].codec = Codec::quantized(8);
  EXPECT_EQ(rows[0].label(), "dense int8");
  EXPECT_NE(compress_row(rows[0], rows).find(" 0.700 "), std::string::npos) << compress_row(rows[0], rows);
}

TEST(CompressTable, json_has_every_number_and_null_where_there_is_none) {
  const auto rows = rows_of();
  const auto json = nlohmann::json::parse(compress_json(plan_for(), rows[1], rows));
  EXPECT_EQ(json["kind"], "compressor");
  EXPECT_EQ(json["method"], "arc");
  EXPECT_EQ(json["codec"], "plain");
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int>{64, 32}));
  EXPECT_EQ(json["payload_bytes"], 2048);
  EXPECT_EQ(json["sent_to_dense"], 0.25);
  EXPECT_EQ(json["second_us"], 500);
  EXPECT_EQ(json["total_to_dense"], 0.5);
  EXPECT_EQ(json["error"], 0.25);
  const std::vector<CompressRow> alone{rows[1]};
  EXPECT_TRUE(nlohmann::json::parse(compress_json(plan_for(), alone[0], alone))["total_to_dense"].is_null());
}

TEST(CompressTable, the_plot_stacks_phases_and_has_a_dot_for_each_method) {
  const auto panels = compress_panels(rows_of());
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].categories, (std::vector<std::string>{"dense", "arc"}));
  ASSERT_EQ(panels[0].series.size(), phase_count);
  EXPECT_EQ(panels[0].series.back().upper, (std::vector<double>{1, 0.5}));
  ASSERT_EQ(panels[1].series.size(), 2u);
  EXPECT_EQ(panels[1].series[1].points[0].y, 0.25);
  const auto picture = svg(panels);
  EXPECT_NE(picture.find("second average"), std::string::npos);
}

}  // namespace
}  // namespace unisono::lab

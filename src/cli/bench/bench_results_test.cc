#include "cli/bench/bench_results.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "testing/temporary_folder.h"

namespace unisono::cli {
namespace {

struct Times {
  double p25 = 90, p50 = 100, p75 = 110;
};

std::string row(uint64_t bytes, const Times& times, uint64_t wrong = 0, const char* collective = "all_reduce") {
  return fmt::format(
      R"({{"kind":"row","collective":"{}","world_size":2,"bytes":{},"dtype":"f32","op":"sum","root":-1,"order":"auto",)"
      R"("asked_schedule":"auto","in_place":true,"mean_us":120,"p25_us":{},"p50_us":{},"p75_us":{},"p99_us":300,)"
      R"("busbw_gbs":1.5,"wrong":{}}})"
      "\n",
      collective, bytes, times.p25, times.p50, times.p75, wrong);
}

Results parsed(const std::string& text) { return parse_results("file", text).value(); }
std::string refusal(const std::string& text) { return parse_results("file", text).status().message(); }

Change change_of(const Times& before, const Times& now) {
  return compare_rows(parsed(row(4, before)), parsed(row(4, now))).front().change;
}

TEST(BenchResults, a_change_within_the_spread_is_the_same) {
  EXPECT_EQ(change_of({90, 100, 110}, {90, 100, 110}), Change::same);
  EXPECT_EQ(change_of({90, 100, 110}, {105, 120, 130}), Change::same);
  EXPECT_EQ(change_of({90, 100, 110}, {70, 80, 95}), Change::same);
  EXPECT_EQ(change_of({90, 100, 110}, {111, 120, 130}), Change::slower);
  EXPECT_EQ(change_of({90, 100, 110}, {70, 80, 89}), Change::faster);
}

TEST(BenchResults, the_limit_counts_only_beyond_the_spread) {
  const auto noisy = compare_rows(parsed(row(4, {50, 100, 200})), parsed(row(4, {60, 180, 300})));
  EXPECT_DOUBLE_EQ(noisy[0].ratio, 1.8);
  EXPECT_FALSE(fails(noisy, 1.05));
  const auto slower = compare_rows(parsed(row(4, {99, 100, 101})), parsed(row(4, {107, 108, 109})));
  EXPECT_TRUE(fails(slower, 1.05));
  EXPECT_FALSE(fails(slower, 1.10));
  EXPECT_FALSE(fails(slower, 0)) << "without a limit, slower is news and no failure";
}

TEST(BenchResults, wrong_values_fail_whatever_the_time) {
  const auto rows = compare_rows(parsed(row(4, {})), parsed(row(4, {10, 11, 12}, 3)));
  EXPECT_EQ(rows[0].change, Change::wrong);
  EXPECT_TRUE(fails(rows, 0));
}

TEST(BenchResults, several_runs_of_a_row_are_one_with_the_spread_of_all) {
  const auto results = parsed(row(4, {90, 100, 110}) + row(4, {190, 200, 210}) + row(4, {95, 105, 115}));
  ASSERT_EQ(results.rows.size(), 1u);
  EXPECT_EQ(results.rows[0].runs, 3u);
  EXPECT_DOUBLE_EQ(results.rows[0].p50_us, 105);
  EXPECT_DOUBLE_EQ(results.rows[0].p25_us, 90);
  EXPECT_DOUBLE_EQ(results.rows[0].p75_us, 210);
  EXPECT_DOUBLE_EQ(results.rows[0].bus_bandwidth, 1.5 * 120 / 105) << "of the median, not of the mean that the file has";
}

TEST(BenchResults, rows_of_only_one_file_are_named) {
  const auto before = parsed(row(4, {}) + row(8, {}));
  const auto now = parsed(row(8, {}) + row(8, {}, 0, "all_gather"));
  const auto rows = compare_rows(before, now);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].now.bytes, 8u);
  const auto table = comparison_table(before, now, rows);
  EXPECT_NE(table.find("# only in file: all_reduce f32 sum, 2 ranks, 4 B, in place"), std::string::npos) << table;
  EXPECT_NE(table.find("# only in file: all_gather"), std::string::npos) << table;
  EXPECT_NE(table.find("# 1 rows: 1 same, 0 faster, 0 slower; geometric mean of the ratios 1.000"), std::string::npos) << table;
}

TEST(BenchResults, environments_that_differ_are_named) {
  const auto before = parsed(R"({"kind":"environment","cores":2,"kernel":"6.1","impairment":""})"
                             "\n" +
                             row(4, {}));
  const auto now = parsed(R"({"kind":"environment","cores":4,"kernel":"6.1","impairment":"1 Gbit/s"})"
                          "\n" +
                          row(4, {}));
  const auto table = comparison_table(before, now, compare_rows(before, now));
  EXPECT_NE(table.find("cores                2 -> 4\n"), std::string::npos) << table;
  EXPECT_NE(table.find("impairment           none -> 1 Gbit/s\n"), std::string::npos) << table;
  EXPECT_EQ(table.find("6.1"), std::string::npos) << table;
}

TEST(BenchResults, a_time_of_zero_has_no_ratio) {
  const auto rows = compare_rows(parsed(row(4, {0, 0, 0})), parsed(row(4, {})));
  EXPECT_DOUBLE_EQ(rows[0].ratio, 0);
  EXPECT_EQ(comparison_table(parsed(row(4, {0, 0, 0})), parsed(row(4, {})), rows).find("geometric"), std::string::npos);
}

TEST(BenchResults, a_malformed_result_is_refused_with_its_line) {
  EXPECT_NE(refusal("").find("file holds no row"), std::string::npos);
  EXPECT_NE(refusal(row(4, {}) + "{\"kind\":\"row\"").find("file, line 2: this is not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("[1]\n").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("{\"kind\":\"row\"}\n").find("line 1: a row needs \"collective\""), std::string::npos);
  for (const char* bad : {"-1", "\"x\"", "null", "true", "[]"}) {
    auto text = row(4, {});
    text.replace(text.find("\"p50_us\":100"), 12, fmt::format("\"p50_us\":{}", bad));
    EXPECT_NE(refusal(text).find("\"p50_us\""), std::string::npos) << bad;
  }
  EXPECT_NE(refusal(std::string(100'000, '[')).find("not a JSON object"), std::string::npos);
  EXPECT_EQ(read_results("/nonexistent").status().code(), Code::unavailable);
  EXPECT_EQ(read_results("/").status().code(), Code::unavailable) << "a directory";
}

TEST(BenchResults, a_plot_has_a_line_per_collective_and_both_sides) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/plot.svg";
  const auto before = parsed(row(1024, {}) + row(4096, {}) + row(1024, {}, 0, "all_gather"));
  ASSERT_TRUE(plot_results(path, before, &before).ok());
  std::stringstream drawn;
  drawn << std::ifstream(path).rdbuf();
  for (const char* part : {">all_reduce, new<", ">all_reduce, old<", ">all_gather, old<", "<polygon", "size (bytes)"}) {
    EXPECT_NE(drawn.str().find(part), std::string::npos) << part;
  }
  EXPECT_EQ(plot_results("/dev/full", before, nullptr).code(), Code::unavailable);
}

}  // namespace
}  // namespace unisono::cli

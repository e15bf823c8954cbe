#include "lab/drop_compute/drop_search.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

Result<DropSearch> read_search(const std::vector<std::string>& words) {
  DropSearchOptions options;
  const auto app = make_app(drop_search_text);
  add_drop_search_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return make_drop_search(options);
}

void expect_search_refused(const std::vector<std::string>& words, const std::string& message) {
  const auto search = read_search(words);
  EXPECT_EQ(search.status().code(), Code::invalid) << message;
  EXPECT_EQ(search.status().message(), message);
}

TEST(DropSearch, the_plan_follows_the_options) {
  const auto search = read_search({"trace.csv", "--rule", "after", "--lag", "1", "--min-computed", "2", "--objective", "total",
                                   "--search", "grid", "--slack", "0", "--max-drop", "1", "--min-gain", "0"});
  ASSERT_TRUE(search.ok()) << search.status().message();
  EXPECT_EQ(search->trace, "trace.csv");
  EXPECT_EQ(search->rules, std::vector{DropRule::after});
  EXPECT_EQ(search->choice.lag, 1u);
  EXPECT_EQ(search->choice.min_computed, 2u);
  EXPECT_EQ(search->choice.objective, DropOptions::Objective::total);
  EXPECT_EQ(search->choice.search, DropOptions::Search::grid);
  EXPECT_EQ(search->choice.max_drop, 1);
}

TEST(DropSearch, searches_every_rule_where_none_is_named) { EXPECT_EQ(read_search({"trace.csv"})->rules.size(), 3u); }

TEST(DropSearch, refuses_options_without_effect) {
  expect_search_refused({"t", "--rule", "at", "--lag", "1"}, "--lag needs --rule after");
  expect_search_refused({"t", "--rule", "at", "--min-computed", "1"}, "--min-computed needs --rule after or before");
  expect_search_refused({"t", "--search", "all"}, "--search 'all' is none of exact, grid");
  expect_search_refused({"t", "--rule", "during"}, "--rule 'during' is none of after, before, at, all");
}

TEST(DropSearch, a_trace_keeps_its_rank_numbers_and_counts_incomplete_steps) {
  const auto named = named_trace("trace.csv", "step,rank,wall_ns,end_1_ns\n7,3,20,10\n7,9,20,12\n8,3,20,10\n");
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->ranks, (std::vector<uint64_t>{3, 9}));
  EXPECT_EQ(named->trace.steps(), 1u);
  EXPECT_EQ(named->steps_left_out, 1u);
}

TEST(DropSearch, trace_errors_name_the_file_and_the_line) {
  const auto message = [](const char* text) { return named_trace("trace.csv", text).status().message(); };
  EXPECT_TRUE(message("step,rank,wall_ns,end_1_ns,end_2_ns\n1,0,9,3\n").starts_with("trace.csv: truncated_trace: line 2"))
      << message("step,rank,wall_ns,end_1_ns,end_2_ns\n1,0,9,3\n");
  EXPECT_TRUE(message("").starts_with("trace.csv: "));
}

TEST(DropSearch, a_file_that_is_not_there_is_unavailable) {
  const auto read = read_trace("/nonexistent/trace.csv");
  EXPECT_EQ(read.status().code(), Code::unavailable);
  EXPECT_EQ(read.status().message(), "cannot read /nonexistent/trace.csv: No such file or directory");
}

}  // namespace
}  // namespace unisono::lab

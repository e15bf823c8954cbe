#include "training/drop_compute/compute_trace.h"

#include <gtest/gtest.h>

#include <set>

#include "training/drop_compute/compute_trace_test_support.h"

namespace unisono {
namespace {

constexpr const char* head = "step,rank,wall_ns,end_1_ns,end_2_ns\n";

std::string refusal(const std::string& text) {
  const auto trace = ComputeTrace::parse(text);
  EXPECT_FALSE(trace.ok()) << text;
  if (trace.ok()) return "it was read";
  EXPECT_EQ(trace.status().code(), Code::invalid);
  return trace.status().message();
}

#define EXPECT_REFUSED(text, ...)                                                      \
  do {                                                                                 \
    const auto why = refusal(text);                                                    \
    for (const char* word : {__VA_ARGS__}) EXPECT_NE(why.find(word), why.npos) << why; \
  } while (0)

TEST(ComputeTrace, gives_the_times_of_the_documented_example) {
  const auto trace = trace_of({{{1, 1, 1}, {1, 2, 3}}, {{2, 1, 1}, {1, 1, 1}}}, second, second);
  ASSERT_TRUE(trace.check().ok());
  EXPECT_EQ(trace.steps(), 2u);
  EXPECT_EQ(trace.ends_of(0, 1)[1], 3 * second);
  EXPECT_EQ(trace.compute_ns(0), 6 * second);
  EXPECT_EQ(trace.compute_ns(1), 4 * second);
  EXPECT_EQ(trace.other_ns(), 1e9);
  EXPECT_EQ(trace.micro_batch_ns(), 1'333'333'333);
}

TEST(ComputeTrace, other_time_is_never_negative_and_a_mean_is_rounded_to_the_nearest) {
  auto trace = trace_of({{{1, 2}, {1, 1}}}, 1, 10);
  EXPECT_EQ(trace.micro_batch_ns(), 1);  // 5 / 4, rounded
  trace.ends[1] = 4;
  EXPECT_EQ(trace.micro_batch_ns(), 2);  // 6 / 4, rounded
  trace.walls = {1, 4};
  EXPECT_EQ(trace.other_ns(), 0);
  trace.walls = {6, 7};
  EXPECT_EQ(trace.other_ns(), 2.5);
}

TEST(ComputeTrace, is_read_from_lines_in_any_order_with_ranks_and_steps_of_any_numbers) {
  const auto trace = ComputeTrace::parse(std::string(head) + "70,9,100,3,40\n6,2,50,1,2\n70,2,90,5,5\r\n\n6,9,60,0,8");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->workers, 2u);
  EXPECT_EQ(trace->micro_batches, 2u);
  EXPECT_EQ(trace->ends, (std::vector<int64_t>{1, 2, 0, 8, 5, 5, 3, 40}));
  EXPECT_EQ(trace->walls, (std::vector<int64_t>{50, 60, 90, 100}));
}

TEST(ComputeTrace, reads_concatenated_files_with_repeated_heads) {
  const auto trace = ComputeTrace::parse(std::string(head) + "1,0,50,1,2\n" + head + "1,1,60,2,3\n");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->workers, 2u);
}

TEST(ComputeTrace, skips_steps_that_lack_a_rank) {
  const auto trace = ComputeTrace::parse(std::string(head) + "1,0,50,1,2\n2,0,51,1,2\n2,1,52,1,2\n3,1,53,1,2\n");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->walls, (std::vector<int64_t>{51, 52}));
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2\n2,1,52,1,2\n", "too_few_steps", "all 2 ranks");
}

TEST(ComputeTrace, keeps_every_nanosecond) {
  const int64_t large = (int64_t{1} << 53) - 1;
  const auto trace = ComputeTrace::parse(std::string(head) + "1,0,9007199254740993,9007199254740990,9007199254740991\n");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->ends, (std::vector<int64_t>{large - 1, large}));
  EXPECT_EQ(trace->walls, (std::vector<int64_t>{large + 2}));
  EXPECT_EQ(trace->compute_ns(0), large);
  EXPECT_EQ(trace->micro_batch_ns(), int64_t{1} << 52);  // (2^53 - 1) / 2, rounded up
  EXPECT_EQ(trace->other_ns(), 2);
  EXPECT_EQ((ComputeTrace{.workers = 1, .micro_batches = 1, .ends = {large}, .walls = {large}}.micro_batch_ns()), large);
}

TEST(ComputeTrace, refuses_an_empty_file) {
  EXPECT_REFUSED("", "too_few_steps");
  EXPECT_REFUSED("\n\n", "too_few_steps");
  EXPECT_REFUSED(head, "too_few_steps", "0 lines");
}

TEST(ComputeTrace, refuses_a_file_without_its_head) {
  EXPECT_REFUSED("1,0,50,1,2\n", "first line");
  EXPECT_REFUSED("step,rank,wall_ns\n1,0,50\n", "first line");
  EXPECT_REFUSED("step,rank,wall_ns,end_1_ns,end_3_ns\n1,0,50,1,2\n", "first line");
}

TEST(ComputeTrace, refuses_a_line_with_too_few_ends_as_truncated) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2\n1,1,50,1\n", "truncated_trace", "line 3", "4 fields of 5");
}

TEST(ComputeTrace, refuses_an_empty_field_as_truncated) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,\n", "truncated_trace", "line 2", "end_2_ns");
  EXPECT_REFUSED(std::string(head) + "1,0,,1,2\n", "truncated_trace", "line 2", "wall_ns");
}

TEST(ComputeTrace, refuses_a_line_with_too_many_ends) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2,3\n", "line 2", "6 fields");
}

TEST(ComputeTrace, refuses_a_field_that_is_not_a_number) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,x\n", "line 2", "end_2_ns", "\"x\"");
  EXPECT_REFUSED(std::string(head) + "1,0,50,1.5,2\n", "line 2", "end_1_ns", "1.5");
  EXPECT_REFUSED(std::string(head) + "1, 0,50,1,2\n", "line 2", "rank");
  EXPECT_REFUSED(std::string(head) + "1,0,50,0x1,2\n", "line 2", "0x1");
}

TEST(ComputeTrace, refuses_negative_numbers) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,-1,2\n", "line 2", "end_1_ns", "negative");
  EXPECT_REFUSED(std::string(head) + "1,0,-50,1,2\n", "line 2", "wall_ns", "negative");
  EXPECT_REFUSED(std::string(head) + "1,-1,50,1,2\n", "line 2", "rank");
  EXPECT_REFUSED(std::string(head) + "-1,0,50,1,2\n", "line 2", "step");
}

TEST(ComputeTrace, refuses_decreasing_ends) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,7,6\n", "line 2", "end_2_ns is 6", "7");
}

TEST(ComputeTrace, refuses_a_repeated_line) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2\n1,1,50,1,2\n1,0,50,1,2\n", "line 4", "step 1 of rank 0", "line 2");
}

TEST(ComputeTrace, refuses_numbers_that_are_too_large) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,9223372036854775808\n", "line 2", "end_2_ns", "too large");
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,1152921504606846976\n", "line 2", "end_2_ns", "too large");
  EXPECT_REFUSED(std::string(head) + "18446744073709551616,0,50,1,2\n", "line 2", "step", "too large");
  EXPECT_TRUE(ComputeTrace::parse(std::string(head) +
                                  "18446744073709551615,18446744073709551615,1152921504606846975,1,1152921504606846975\n")
                  .ok());
}

TEST(ComputeTrace, checks_a_trace_in_memory_like_one_in_a_file) {
  const auto good = trace_of({{{1, 1}, {1, 2}}, {{2, 1}, {1, 1}}}, second, 1);
  const auto refused = [&](const auto& change, const char* word) {
    auto trace = good;
    change(trace);
    const auto status = trace.check();
    EXPECT_EQ(status.code(), Code::invalid);
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  EXPECT_TRUE(good.check().ok());
  refused([](auto& t) { t.workers = 0; }, "too_few_steps");
  refused([](auto& t) { t.micro_batches = 0; }, "too_few_steps");
  refused([](auto& t) { t.ends.clear(), t.walls.clear(); }, "too_few_steps");
  refused([](auto& t) { t.ends.pop_back(); }, "truncated_trace");
  refused([](auto& t) { t.walls.pop_back(); }, "truncated_trace");
  refused([](auto& t) { t.workers = 3; }, "truncated_trace");
  refused([](auto& t) { t.ends[0] = -1; }, "step 0 of worker 0");
  refused([](auto& t) { t.ends[7] = t.ends[6] - 1; }, "step 1 of worker 1");
  refused([](auto& t) { t.ends[3] = int64_t{1} << 60; }, "step 0 of worker 1");
  refused([](auto& t) { t.walls[2] = -1; }, "step 1 of worker 0");
  refused([](auto& t) { t.walls[2] = int64_t{1} << 60; }, "step 1 of worker 0");
}

TEST(ComputeTrace, hash_depends_on_every_field) {
  const auto trace = trace_of({{{1, 1}, {1, 2}}, {{2, 1}, {1, 1}}}, second, 1);
  std::set<uint64_t> hashes{trace.hash()};
  const auto add = [&](const ComputeTrace& other) { EXPECT_TRUE(hashes.insert(other.hash()).second) << hashes.size(); };
  EXPECT_EQ(trace.hash(), ComputeTrace(trace).hash());
  for (size_t i = 0; i < trace.ends.size(); ++i) {
    auto other = trace;
    ++other.ends[i];
    add(other);
  }
  for (size_t i = 0; i < trace.walls.size(); ++i) {
    auto other = trace;
    ++other.walls[i];
    add(other);
  }
  auto other = trace;
  other.workers = 4;
  add(other);
  other = trace;
  other.workers = 1;
  add(other);
  add(reordered(trace, {1, 0}, {0, 1}));
  add(reordered(trace, {0, 1}, {1, 0}));
}

TEST(ComputeTrace, a_damaged_file_is_refused_or_read_correctly) {
  Random random(53);
  const std::string good = std::string(head) + "1,0,50,1,2\n1,1,60,2,3\n2,0,70,3,4\n2,1,80,4,50\n";
  const std::string_view bytes("0129,,\n\r-.xe \0\xff", 16);
  size_t read = 0;
  for (int i = 0; i < 20000; ++i) {
    auto text = good;
    for (uint64_t edits = random.below(3); edits < 3; ++edits) {
      const size_t at = random.below(text.size());
      if (random.chance(0.3)) text.erase(at, 1 + random.below(12));
      else if (random.chance(0.5)) text.insert(at, 1, bytes[random.below(bytes.size())]);
      else text[at] = bytes[random.below(bytes.size())];
    }
    const auto trace = ComputeTrace::parse(text);
    if (!trace.ok()) continue;
    ++read;
    ASSERT_TRUE(trace->check().ok()) << text;
  }
  EXPECT_GT(read, 100u);
}

TEST(ComputeTrace, is_read_back_from_its_head) {
  EXPECT_EQ(ComputeTrace::head(1), "step,rank,wall_ns,end_1_ns");
  EXPECT_EQ(ComputeTrace::head(2) + "\n", head);
  EXPECT_EQ(ComputeTrace::parse(ComputeTrace::head(3) + "\n0,0,5,1,2,3\n")->micro_batches, 3u);
}

}  // namespace
}  // namespace unisono

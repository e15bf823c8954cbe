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

TEST(ComputeTrace, sums_up_what_the_documented_example_takes) {
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
  EXPECT_EQ(trace.micro_batch_ns(), 1);  // 5 of 4
  trace.ends[1] = 4;
  EXPECT_EQ(trace.micro_batch_ns(), 2);  // 6 of 4
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

TEST(ComputeTrace, of_several_files_is_read_with_their_heads) {
  const auto trace = ComputeTrace::parse(std::string(head) + "1,0,50,1,2\n" + head + "1,1,60,2,3\n");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  EXPECT_EQ(trace->workers, 2u);
}

TEST(ComputeTrace, leaves_out_steps_of_which_a_rank_is_missing) {
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
  EXPECT_EQ(trace->micro_batch_ns(), int64_t{1} << 52);  // (2^53 - 1) / 2, upwards
  EXPECT_EQ(trace->other_ns(), 2);
  EXPECT_EQ((ComputeTrace{.workers = 1, .micro_batches = 1, .ends = {large}, .walls = {large}}.micro_batch_ns()), large);
}

TEST(ComputeTrace, that_is_empty_is_refused) {
  EXPECT_REFUSED("", "too_few_steps");
  EXPECT_REFUSED("\n\n", "too_few_steps");
  EXPECT_REFUSED(head, "too_few_steps", "0 lines");
}

TEST(ComputeTrace, without_its_head_is_refused) {
  EXPECT_REFUSED("1,0,50,1,2\n", "first line");
  EXPECT_REFUSED("step,rank,wall_ns\n1,0,50\n", "first line");
  EXPECT_REFUSED("step,rank,wall_ns,end_1_ns,end_3_ns\n1,0,50,1,2\n", "first line");
}

TEST(ComputeTrace, with_fewer_ends_is_refused_as_truncated) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2\n1,1,50,1\n", "truncated_trace", "line 3", "4 fields of 5");
}

TEST(ComputeTrace, with_an_empty_field_is_refused_as_truncated) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,\n", "truncated_trace", "line 2", "end_2_ns");
  EXPECT_REFUSED(std::string(head) + "1,0,,1,2\n", "truncated_trace", "line 2", "wall_ns");
}

TEST(ComputeTrace, with_more_ends_is_refused) { EXPECT_REFUSED(std::string(head) + "1,0,50,1,2,3\n", "line 2", "6 fields"); }

TEST(ComputeTrace, with_what_is_no_number_is_refused) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,x\n", "line 2", "end_2_ns", "\"x\"");
  EXPECT_REFUSED(std::string(head) + "1,0,50,1.5,2\n", "line 2", "end_1_ns", "1.5");
  EXPECT_REFUSED(std::string(head) + "1, 0,50,1,2\n", "line 2", "rank");
  EXPECT_REFUSED(std::string(head) + "1,0,50,0x1,2\n", "line 2", "0x1");
}

TEST(ComputeTrace, with_negative_numbers_is_refused) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,-1,2\n", "line 2", "end_1_ns", "negative");
  EXPECT_REFUSED(std::string(head) + "1,0,-50,1,2\n", "line 2", "wall_ns", "negative");
  EXPECT_REFUSED(std::string(head) + "1,-1,50,1,2\n", "line 2", "rank");
  EXPECT_REFUSED(std::string(head) + "-1,0,50,1,2\n", "line 2", "step");
}

TEST(ComputeTrace, with_ends_that_fall_is_refused) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,7,6\n", "line 2", "end_2_ns is 6", "7");
}

TEST(ComputeTrace, with_a_line_twice_is_refused) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,2\n1,1,50,1,2\n1,0,50,1,2\n", "line 4", "step 1 of rank 0", "line 2");
}

TEST(ComputeTrace, with_numbers_that_are_too_large_is_refused) {
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,9223372036854775808\n", "line 2", "end_2_ns", "too large");
  EXPECT_REFUSED(std::string(head) + "1,0,50,1,1152921504606846976\n", "line 2", "end_2_ns", "too large");
  EXPECT_REFUSED(std::string(head) + "18446744073709551616,0,50,1,2\n", "line 2", "step", "too large");
  EXPECT_TRUE(ComputeTrace::parse(std::string(head) +
                                  "18446744073709551615,18446744073709551615,1152921504606846975,1,1152921504606846975\n")
                  .ok());
}

TEST(ComputeTrace, in_memory_is_checked_as_one_in_a_file) {
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

TEST(ComputeTrace, has_another_hash_when_anything_of_it_is_another) {
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

TEST(ComputeTrace, that_is_damaged_anywhere_is_refused_or_right) {
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

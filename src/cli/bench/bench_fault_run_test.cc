// Tests how a fault run is shown. Its behaviour needs several processes and is tested in tests/process/bench_faults_test.cc.
#include "cli/bench/bench_fault_run.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace unisono::cli {
namespace {

Failure failure() {
  Failure out{.at = 2'002 * millisecond,
              .operation = 41,
              .status = Status(Code::peer_lost, "rank 1 was lost"),
              .cause = Fault{FaultKind::kill, 1, 2 * second},
              .noticed_after = 1'900 * microsecond,
              .reformed = true,
              .reform_time = 1'300 * microsecond,
              .epoch = 2,
              .before = {0, 1, 2, 3},
              .members = {0, 2, 3}};
  return out;
}

TEST(BenchFaultRun, a_failure_reports_its_time_its_error_and_how_the_survivors_continued) {
  EXPECT_EQ(to_line(failure()),
            "#    2.002 operation 41 ended with peer_lost: rank 1 was lost\n"
            "#          all notified within 1.9 ms after rank 1 was killed\n"
            "#          re-formed in 1.3 ms (epoch 2): ranks 0, 2, 3 go on\n");
  auto alone = failure();
  alone.members = {2};
  EXPECT_NE(to_line(alone).find("rank 2 goes on\n"), std::string::npos);
  const auto json = nlohmann::json::parse(to_json(failure()));
  EXPECT_EQ(json["code"], "peer_lost");
  EXPECT_EQ(json["members"], (std::vector<int>{0, 2, 3}));
  EXPECT_DOUBLE_EQ(json["noticed_after_ms"], 1.9);
}

TEST(BenchFaultRun, a_failure_of_a_re_formed_group_lists_its_ranks_by_their_first_numbers) {
  auto later = failure();
  later.before = {0, 2, 3};
  later.members = {0, 3};
  EXPECT_NE(to_line(later).find(
                "rank 1 was lost\n#          its ranks 0 to 2 are ranks 0, 2, 3 of those that began\n#          all notified"),
            std::string::npos)
      << to_line(later);
  EXPECT_EQ(nlohmann::json::parse(to_json(later))["before"], (std::vector<int>{0, 2, 3}));
}

TEST(BenchFaultRun, a_failure_without_cause_or_reforming_claims_neither) {
  auto bare = failure();
  bare.cause.reset();
  bare.reformed = false;
  EXPECT_EQ(to_line(bare), "#    2.002 operation 41 ended with peer_lost: rank 1 was lost\n");
  EXPECT_FALSE(nlohmann::json::parse(to_json(bare)).contains("reform_ms"));
}

TEST(BenchFaultRun, a_failure_has_the_message_of_the_first_survivor_to_notice_and_the_slowest_times) {
  auto own = failure();
  own.status = Status(Code::peer_lost, "another member re-forms the group");
  auto first = failure();
  first.at -= 1;
  first.status = Status(Code::late, "rank 1 gave nothing");
  first.noticed_after = 1'800 * microsecond;
  first.reform_time = 1'400 * microsecond;
  auto later = failure();
  later.at += 1;
  later.noticed_after = 2'000 * microsecond;
  settle(own, std::vector{survivor_record_of(own), survivor_record_of(first), survivor_record_of(later)});
  EXPECT_EQ(own.status, first.status);
  EXPECT_EQ(own.noticed_after, later.noticed_after);
  EXPECT_EQ(own.reform_time, first.reform_time);
  EXPECT_EQ(own.at, failure().at) << "of this rank, as its stretches are";
}

TEST(BenchFaultRun, a_message_that_is_too_long_is_cut) {
  auto own = failure();
  own.status = Status(Code::late, std::string(5000, 'x'));
  const auto record = survivor_record_of(own);
  settle(own, std::span(&record, 1));
  EXPECT_EQ(own.status, Status(Code::late, std::string(1023, 'x')));
}

TEST(BenchFaultRun, the_outcome_says_how_many_ranks_continued) {
  FaultRunOutcome outcome{.started = 4, .left = 3, .operations = 64, .after = 44, .wrong = 0, .went_on = true};
  EXPECT_EQ(to_line(outcome),
            "# Out of bounds values : 0 OK\n# the survivors went on: 3 of 4 ranks; 64 operations, 44 of them after the last "
            "failure\n");
  outcome.left = 4;
  EXPECT_NE(to_line(outcome).find("all 4 ranks went on; 64 operations"), std::string::npos);
  outcome.wrong = 5;
  EXPECT_NE(to_line(outcome).find("5 FAILED"), std::string::npos);
  outcome.went_on = false;
  EXPECT_NE(to_line(outcome).find("ended at the first failure"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(outcome))["went_on"], false);
}

FaultRunOptions with_two_faults() {
  FaultRunOptions options;
  options.until = 3 * second;
  options.faults = 2;
  return options;
}

TEST(BenchFaultRun, ends_when_its_time_is_over_and_all_has_happened) {
  const auto options = with_two_faults();
  const FaultRunProgress over{.now = 3 * second, .faults = 2, .since_fault = 10, .since_failure = 10};
  EXPECT_FALSE(wants_more(options, over));
}

TEST(BenchFaultRun, waits_for_its_time_its_faults_and_ten_operations_after_them) {
  const auto options = with_two_faults();
  const FaultRunProgress over{.now = 3 * second, .faults = 2, .since_fault = 10, .since_failure = 10};
  const auto with = [&](auto member, auto value) {
    auto progress = over;
    progress.*member = value;
    return wants_more(options, progress);
  };
  EXPECT_TRUE(with(&FaultRunProgress::now, 3 * second - 1));
  EXPECT_TRUE(with(&FaultRunProgress::faults, size_t{1})) << "the second fault is late";
  EXPECT_TRUE(with(&FaultRunProgress::since_fault, uint64_t{9}));
  EXPECT_TRUE(with(&FaultRunProgress::since_failure, uint64_t{9}));
}

TEST(BenchFaultRun, a_stretch_is_a_row_without_a_mark) {
  const Stretch stretch{.from = second,
                        .to = 2 * second,
                        .world_size = 4,
                        .contributors = 3,
                        .operations = 7,
                        .wrong = 1,
                        .timing = {.p50_us = 10, .p99_us = 20, .max_us = 30}};
  const auto line = to_line(stretch);
  EXPECT_EQ(line[0], ' ');
  for (const char* part : {" 1.000 ", " 2.000 ", " 7 ", " 4 ", " 3 ", " 10.0 ", " 20.0 ", " 30.0 ", " 1\n"})
    EXPECT_NE(line.find(part), std::string::npos) << part << line;
  EXPECT_EQ(nlohmann::json::parse(to_json(stretch))["operations"], 7);
  EXPECT_EQ(nlohmann::json::parse(to_json(InjectedFault{{FaultKind::stop, 2, 0}, 0}, second))["fault"], "stop");
}

}  // namespace
}  // namespace unisono::cli

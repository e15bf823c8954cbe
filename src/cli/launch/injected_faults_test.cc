#include "cli/launch/injected_faults.h"

#include <gtest/gtest.h>

#include <csignal>

namespace unisono::cli {
namespace {

Fault kill_of(uint32_t rank, Nanos at) { return {FaultKind::kill, rank, at}; }
Fault stop_of(uint32_t rank, Nanos at) { return {FaultKind::stop, rank, at}; }
Fault resume_of(uint32_t rank, Nanos at) { return {FaultKind::resume, rank, at}; }

std::string refusal(std::vector<Fault> faults, uint32_t world_size) {
  return arrange_faults(std::move(faults), world_size).status().message();
}

TEST(BenchFaults, a_fault_is_parsed_from_a_rank_and_a_time) {
  EXPECT_EQ(parse_fault(FaultKind::kill, "1@2s").value(), kill_of(1, 2 * second));
  EXPECT_EQ(parse_fault(FaultKind::stop, "0@150ms").value(), stop_of(0, 150 * millisecond));
  for (const char* text : {"", "1", "@", "1@", "@2s", "x@2s", "1@x", "-1@2s", "1@2s@3s", "99999999@1s"}) {
    EXPECT_NE(parse_fault(FaultKind::resume, text).status().message().find("--resume-rank '"), std::string::npos) << text;
  }
}

TEST(BenchFaults, faults_are_sorted_by_time) {
  const auto faults = arrange_faults({kill_of(2, 5), stop_of(1, 3), resume_of(1, 4)}, 3).value();
  EXPECT_EQ(faults, (std::vector<Fault>{stop_of(1, 3), resume_of(1, 4), kill_of(2, 5)}));
  EXPECT_EQ(victims_of(faults), (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(arrange_faults({}, 1).value().empty());
}

TEST(BenchFaults, impossible_faults_are_refused_with_the_reason) {
  EXPECT_NE(refusal({kill_of(4, 1)}, 4).find("ranks 0 to 3"), std::string::npos);
  EXPECT_NE(refusal({kill_of(1, second), stop_of(1, 2 * second)}, 3).find("--stop-rank 1@2 s: it is dead by then"),
            std::string::npos);
  EXPECT_NE(refusal({stop_of(1, 1), stop_of(1, 2)}, 3).find("stopped already"), std::string::npos);
  EXPECT_NE(refusal({resume_of(1, 1), stop_of(1, 2)}, 3).find("not stopped then"), std::string::npos);
  EXPECT_NE(refusal({kill_of(0, 1), stop_of(1, 2)}, 2).find("no rank would be left"), std::string::npos);
  EXPECT_TRUE(arrange_faults({kill_of(0, 1)}, 2).ok());
}

TEST(BenchFaults, faults_describe_themselves) {
  EXPECT_EQ(describe(kill_of(1, 0)), "rank 1 was killed");
  EXPECT_EQ(describe(resume_of(0, 0)), "rank 0 was resumed");
  EXPECT_EQ(signal_of(FaultKind::kill), SIGKILL);
  EXPECT_EQ(signal_of(FaultKind::stop), SIGSTOP);
  EXPECT_EQ(signal_of(FaultKind::resume), SIGCONT);
}

}  // namespace
}  // namespace unisono::cli

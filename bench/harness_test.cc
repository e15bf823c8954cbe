#include "harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "base/concat.h"

namespace unisono::bench {
namespace {

// What the ranks of a library under test share. The ranks are threads of one process, so each rank can read the buffers of all
// ranks.
struct World {
  explicit World(uint32_t n) : memories(n), all(static_cast<ptrdiff_t>(n)) {}
  std::vector<Buffers> memories;
  std::barrier<> all;
};

class ThreadSubject final : public Subject {
 public:
  ThreadSubject(World& world, uint32_t rank, std::function<void(float*, size_t)> damage)
      : world_(world), rank_(rank), damage_(std::move(damage)) {}
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return static_cast<uint32_t>(world_.memories.size()); }
  Status prepare(const Job& job, const Buffers& buffers) override {
    if (job.algorithm == "foreign") return {Code::unsupported, "no foreign words"};
    if (!job.algorithm.empty()) return {Code::invalid, "no " + job.algorithm};
    world_.memories[rank_] = buffers;
    job_ = job;
    return {};
  }
  Status call() override {
    calls_ += 1;
    const size_t count = job_.elements() * job_.parts;
    std::vector<float> sum(count);
    world_.all.arrive_and_wait();
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      if (job_.collective == Collective::broadcast && rank != broadcast_root) continue;
      for (size_t i = 0; i < count; ++i) sum[i] += floats(world_.memories[rank].input)[i];
    }
    world_.all.arrive_and_wait();
    std::copy(sum.begin(), sum.end(), floats(world_.memories[rank_].output));
    if (damage_) damage_(floats(world_.memories[rank_].output), count);
    return {};
  }
  Status barrier() override {
    world_.all.arrive_and_wait();
    return {};
  }
  void progress() override {}
  uint32_t calls() const { return calls_; }

 private:
  static float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

  World& world_;
  uint32_t rank_;
  std::function<void(float*, size_t)> damage_;
  Job job_;
  uint32_t calls_ = 0;
};

struct Outcome {
  Status status;
  uint32_t calls = 0;
  std::string output;                 // what rank 0 printed
  uint32_t job = 0, calls_begun = 0;  // read from the board
};

std::string board_path() {
  char path[] = "/tmp/unisono-harness-XXXXXX";
  const int file = ::mkstemp(path);
  EXPECT_GE(file, 0);
  ::close(file);
  return path;
}

Outcome run_world(uint32_t n, BenchOptions options, std::function<void(float*, size_t)> damage_on_last = nullptr) {
  options.board = board_path();
  World world(n);
  std::vector<Outcome> outcomes(n);
  std::vector<std::thread> threads;
  testing::internal::CaptureStdout();
  for (uint32_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadSubject subject(world, rank, rank + 1 == n ? damage_on_last : nullptr);
      outcomes[rank].status = run(subject, options);
      outcomes[rank].calls = subject.calls();
      // A failed rank leaves the barrier, so that the other ranks do not wait for it.
      if (!outcomes[rank].status.ok()) world.all.arrive_and_drop();
    });
  }
  for (auto& thread : threads) thread.join();
  outcomes[0].output = testing::internal::GetCapturedStdout();
  auto& last = outcomes[n - 1];
  std::ifstream board(options.board, std::ios::binary);
  board.seekg(256);  // the offset at which bench/versus reads
  board.read(reinterpret_cast<char*>(&last.job), sizeof(last.job));
  board.read(reinterpret_cast<char*>(&last.calls_begun), sizeof(last.calls_begun));
  ::unlink(options.board.c_str());
  last.output = outcomes[0].output;
  return outcomes[n - 1];
}

BenchOptions few_calls(const std::string& plan) {
  BenchOptions options;
  options.jobs = *parse_plan(plan);
  options.seconds = 0.05;
  options.calls_max = 10;
  return options;
}

TEST(Harness, right_sums_pass_and_every_size_gives_a_line) {
  for (const uint32_t n : {1u, 2u, 3u}) {
    const auto outcome = run_world(n, few_calls("4,1020,65536,3x1020,broadcast/1020"));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    for (const char* part : {"\"bytes\": 4,", "\"bytes\": 1020,", "\"bytes\": 65536,", "\"parts\": 3,",
                             "\"collective\": \"broadcast\"", "\"verified\": true"}) {
      EXPECT_NE(outcome.output.find(part), std::string::npos) << part << " is not in " << outcome.output;
    }
  }
}

TEST(Harness, one_wrong_bit_in_the_last_element_is_detected) {
  const auto outcome = run_world(1, few_calls("4096"), [](float* data, size_t count) { data[count - 1] += 0.0625f; });
  EXPECT_EQ(outcome.status.code(), Code::internal);
  EXPECT_NE(outcome.status.message().find("element 1023"), std::string::npos) << outcome.status.to_string();
  EXPECT_EQ(outcome.output, "");
}

TEST(Harness, a_wrong_last_result_is_detected) {
  int calls = 0;
  const auto outcome = run_world(1, few_calls("4096"), [&calls](float* data, size_t) { data[7] += ++calls > 5 ? 1.0f : 0.0f; });
  EXPECT_EQ(outcome.status.code(), Code::internal);
  EXPECT_NE(outcome.status.message().find("last result"), std::string::npos) << outcome.status.to_string();
}

TEST(Harness, a_refused_algorithm_ends_the_run) {
  const auto outcome = run_world(2, few_calls("4096=magic"));
  EXPECT_EQ(outcome.status.code(), Code::invalid) << outcome.status.to_string();
}

TEST(Harness, time_ends_a_job_but_not_before_the_fewest_calls) {
  auto options = few_calls("4096");
  options.seconds = 0;
  options.calls_max = 1000;
  const auto outcome = run_world(1, options);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_NE(outcome.output.find(concat("\"calls\": ", calls_min)), std::string::npos) << outcome.output;
  EXPECT_LT(outcome.calls, 20u);
}

TEST(Harness, a_job_that_the_library_does_not_support_is_skipped) {
  const auto outcome = run_world(2, few_calls("4096=foreign,1024"));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(outcome.output.find("4096"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("\"job\": 1,"), std::string::npos) << outcome.output;
}

TEST(Harness, the_board_shows_the_progress_of_a_run) {
  const auto outcome = run_world(2, few_calls("4096,1024"));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(outcome.job, 1u);
  EXPECT_GE(outcome.calls_begun, 2 + calls_min);  // 2 verified calls and at least calls_min timed calls
  EXPECT_LE(outcome.calls_begun, 2 + 1 + 10u);    // 2 verified calls, 1 warm-up call, 10 timed calls
  const auto refused = run_world(2, few_calls("4096,1024=magic,512"));
  EXPECT_EQ(refused.job, 1u);
  EXPECT_EQ(refused.calls_begun, 0u);
}

TEST(Harness, blocks_must_be_equal) {
  const auto outcome = run_world(3, few_calls("all_gather/1024"));
  EXPECT_EQ(outcome.status.code(), Code::invalid) << outcome.status.to_string();
}

TEST(Harness, idle_ranks_are_measured_after_the_jobs) {
  auto options = few_calls("1024");
  options.idle_seconds = 0.1;
  const auto outcome = run_world(2, options);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_NE(outcome.output.find("IDLE {\"seconds\": 0.1"), std::string::npos) << outcome.output;
}

TEST(Harness, options_come_from_the_command_line) {
  char program[] = "bench", plan[] = "--plan", entries[] = "1024,65536=ring+any", board[] = "--board", path[] = "unused",
       idle[] = "--idle", five[] = "5";
  char* arguments[] = {program, plan, entries, board, path, idle, five};
  const auto options = parse_options(7, arguments);
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->jobs.size(), 2u);
  EXPECT_EQ(options->board, "unused");
  EXPECT_EQ(options->idle_seconds, 5);
  EXPECT_FALSE(options->keeps_input);
  for (const char* how : {"new", "kept", "none"}) {
    std::string word = how;
    char input[] = "--input";
    char* more[] = {program, board, path, input, word.data()};
    const auto read = parse_options(5, more);
    if (word == "none") EXPECT_EQ(read.status().code(), Code::invalid);
    else EXPECT_EQ(read.ok() && read->keeps_input, word == "kept");
  }
  EXPECT_EQ(parse_options(3, arguments).status().code(), Code::invalid) << "without a board";
}

}  // namespace
}  // namespace unisono::bench

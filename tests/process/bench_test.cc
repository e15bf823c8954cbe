// `unisono bench` and `unisono rendezvous` with real ranks.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "child_process.h"

namespace unisono::testing {
namespace {

Words bench(const Words& more) {
  Words words{UNISONO_TOOL, "bench"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Counts the lines that do not start with '#'.
size_t row_count(const std::string& text) {
  std::istringstream in(text);
  size_t rows = 0;
  for (std::string line; std::getline(in, line);) rows += !line.empty() && line[0] != '#';
  return rows;
}

TEST(Bench, all_reduce_is_measured_and_correct) {
  const auto done = run(bench({"all-reduce", "-n", "2", "--sizes", "0,4,1000,64K", "--iters", "3"}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(row_count(done.out), 4u) << done.out;
  EXPECT_TRUE(contains(done.out, "# Out of bounds values : 0 OK")) << done.out;
  EXPECT_TRUE(contains(done.out, "busbw")) << done.out;
}

TEST(Bench, every_collective_is_measured_and_correct) {
  const auto done =
      run(bench({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
                 "send_recv", "barrier", "-n", "3", "--sizes", "12,4K", "--iters", "2", "-r", "1"}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(row_count(done.out), 9u * 2 + 1) << done.out;
  EXPECT_EQ(count_of(done.out, " 0 OK"), 9u) << done.out;
}

TEST(Bench, types_and_operations_are_correct_over_tcp) {
  for (const Words& options : {Words{"-d", "bf16", "-o", "avg"}, Words{"-d", "half", "-o", "sum"},
                               Words{"-d", "i8", "-o", "bxor"}, Words{"-d", "u64", "-o", "prod"}}) {
    Words words{"all-reduce", "-n", "2", "--sizes", "6,999", "--iters", "1", "--transport", "tcp"};
    words.insert(words.end(), options.begin(), options.end());
    const auto done = run(bench(words));
    EXPECT_EQ(done.code, 0) << done.error << options[1];
    EXPECT_TRUE(contains(done.out, "tcp x1")) << done.out;
  }
}

TEST(Bench, a_file_that_cannot_be_written_is_reported_before_anything_is_measured) {
  for (const char* option : {"--output", "--plot"}) {
    const auto done = run(bench({"all-reduce", "-n", "2", "--sizes", "1K", option, "/no/such/folder/file"}));
    EXPECT_EQ(done.code, 2);
    EXPECT_EQ(done.out, "");
    EXPECT_TRUE(contains(done.error, std::string(option) + ": cannot write /no/such/folder/file: No such file or directory"))
        << done.error;
  }
}

TEST(Bench, json_is_written_to_the_file_and_the_table_is_still_printed) {
  char path[] = "/tmp/unisono-test-XXXXXX";
  ::close(::mkstemp(path));
  const auto done = run(bench({"all-reduce", "-n", "2", "--sizes", "1K", "--iters", "2", "--output", path}));
  std::stringstream json;
  json << std::ifstream(path).rdbuf();
  ::unlink(path);
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(row_count(done.out), 1u);
  EXPECT_EQ(count_of(json.str(), "\"kind\":\"row\""), 2u) << json.str();
  EXPECT_EQ(count_of(json.str(), "\"kind\":\"environment\""), 1u);
  const auto bare = run(bench({"all-reduce", "-n", "2", "--sizes", "1K", "--iters", "2", "--json"}));
  EXPECT_EQ(count_of(bare.out, "\n"), 3u) << bare.out;
  EXPECT_EQ(bare.out[0], '{');
}

TEST(Bench, invalid_options_are_refused_before_anything_starts) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"all-redcue", "-n", "2"}, "all_reduce"},
      {{"-d", "float23", "-n", "2"}, "float32"},
      {{"-o", "bor", "-n", "2"}, "whole numbers"},
      {{"--sizes", "x", "-n", "2"}, "--sizes"},
      {{"-n", "0"}, "-n"},
      {{"-a", "7", "-n", "2"}, "-a"},
      {{}, "how many ranks"},
      {{"--scheduel", "ring", "-n", "2"}, "--schedule"},
      {{"--warmup", "-3", "-n", "2"}, "--warmup = -3: not a value that it takes"}};
  for (const auto& [words, part] : cases) {
    const auto done = run(bench(words));
    EXPECT_EQ(done.code, 2) << part;
    EXPECT_TRUE(contains(done.error, part)) << done.error;
    EXPECT_EQ(done.out, "");
  }
}

TEST(Bench, a_root_that_does_not_exist_is_refused) {
  EXPECT_EQ(run(bench({"broadcast", "-n", "2", "-r", "2", "--sizes", "4", "--iters", "1"})).code, 2);
}

TEST(Rendezvous, serves_jobs_and_ends_on_request) {
  ChildProcess server({UNISONO_TOOL, "rendezvous", "--listen", "127.0.0.1:0"});
  ASSERT_TRUE(server.wait_for("tcp://127.0.0.1:"));
  ASSERT_TRUE(server.wait_for("\n"));
  const auto address = server.out().substr(0, server.out().find('\n'));
  for (int job = 0; job < 2; ++job) {
    const auto done = run(bench({"all-reduce", "-n", "2", "--sizes", "4", "--iters", "1", "--rendezvous", address}));
    EXPECT_EQ(done.code, 0) << done.error << server.error();
  }
  server.signal(SIGTERM);
  const auto done = server.wait();
  EXPECT_EQ(done.code, 0);
  EXPECT_FALSE(done.by_signal);
  EXPECT_EQ(done.out, address + "\n") << "standard output is data";
}

TEST(Rendezvous, an_address_in_use_and_an_invalid_one_are_named) {
  ChildProcess server({UNISONO_TOOL, "rendezvous", "--listen", "127.0.0.1:0"});
  ASSERT_TRUE(server.wait_for("\n"));
  const auto address = server.out().substr(0, server.out().find('\n'));
  const auto taken = run({UNISONO_TOOL, "rendezvous", "--listen", address});
  EXPECT_EQ(taken.code, 1);
  EXPECT_TRUE(contains(taken.error, address.substr(6))) << taken.error;
  EXPECT_EQ(run({UNISONO_TOOL, "rendezvous", "--listen", "nonsense"}).code, 2);
  EXPECT_EQ(run({UNISONO_TOOL, "rendezvous"}).code, 2);
}

}  // namespace
}  // namespace unisono::testing

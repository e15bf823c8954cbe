// `unisono-lab bench compress` with real ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "child_process.h"
#include "testing/temporary_folder.h"

namespace unisono::testing {
namespace {

Words compress(const Words& more) {
  Words words{UNISONO_LAB, "bench", "compress"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Returns the rows of the table, each split into words.
std::vector<Words> rows_of(const std::string& text) {
  std::vector<Words> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) rows.back().push_back(word);
  }
  return rows;
}

TEST(BenchCompress, every_method_is_measured_and_dense_loses_nothing) {
  const auto done = run(compress({"-n", "3", "--shape", "61x67,100", "--steps", "3"}));
  EXPECT_EQ(done.code, 0) << done.error;
  const auto rows = rows_of(done.out);
  ASSERT_EQ(rows.size(), 5u) << done.out;
  const char* const methods[] = {"dense", "arc", "random-k", "top-k", "power_sgd"};
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i][0], methods[i]) << done.out;
  EXPECT_EQ(rows[0].back(), "0.00000");
  EXPECT_EQ(rows[0][1], std::to_string(4 * (61 * 67 + 100)));
  // Expected payloads; a value has 4 bytes. arc: 13 rows of 67 values, a sketch of 61 rows by 4, the small tensor of 100, and a
  // flag. top-k: 818 values with an index each, and the small tensor.
  EXPECT_EQ(rows[1][1], std::to_string(4 * (13 * 67 + 61 * 4 + 100 + 1)));
  EXPECT_EQ(rows[3][1], std::to_string(8 * 818 + 4 * 100));
}

TEST(BenchCompress, one_rank_alone_is_compared_too) {
  const auto done = run(compress({"-n", "1", "--shape", "64x64", "--steps", "2"}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(rows_of(done.out).size(), 5u) << done.out;
}

TEST(BenchCompress, power_sgd_sums_a_shared_rank_one_matrix_exactly_and_sends_less_than_all) {
  const auto done = run(compress({"-n", "2", "--shape", "64x64", "--steps", "2", "--data", "rank-one", "--noise", "0",
                                  "--power-sgd-rank", "1", "--method", "power_sgd,arc"}));
  EXPECT_EQ(done.code, 0) << done.error;
  const auto rows = rows_of(done.out);
  ASSERT_EQ(rows.size(), 2u) << done.out;
  EXPECT_EQ(rows[0].back(), "0.00000") << done.out;
  EXPECT_NE(rows[1].back(), "0.00000") << done.out;
}

TEST(BenchCompress, a_codec_adds_rows_and_files_are_written) {
  const test::TemporaryFolder folder;
  const auto json = folder.path() + "/result.json", plot = folder.path() + "/result.svg";
  const auto done = run(compress({"-n", "2", "--shape", "64x64", "--steps", "2", "--method", "dense,arc,power_sgd", "--codec",
                                  "int8", "--output", json, "--plot", plot}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(rows_of(done.out).size(), 5u) << done.out;
  std::ifstream in(json);
  size_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines)
    EXPECT_TRUE(contains(line, lines == 0 ? R"("kind":"environment")" : R"("kind":"compressor")")) << line;
  EXPECT_EQ(lines, 6u);
  EXPECT_EQ(::access(plot.c_str(), R_OK), 0);
}

TEST(BenchCompress, real_gradients_are_read_by_each_rank_and_a_wrong_size_is_reported) {
  const test::TemporaryFolder folder;
  for (const char* rank : {"0", "1"}) std::ofstream(folder.path() + "/g." + rank) << std::string(64 * 64 * 4, rank[0]);
  const auto done = run(compress(
      {"-n", "2", "--shape", "64x64", "--steps", "2", "--method", "dense,arc", "--gradients", folder.path() + "/g.{rank}"}));
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(rows_of(done.out).size(), 2u) << done.out;
  const auto wrong = run(compress({"-n", "2", "--shape", "64x63", "--gradients", folder.path() + "/g.{rank}"}));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(contains(wrong.error, "g.0 has more bytes; the tensors of --shape have 4032 elements")) << wrong.error;
}

TEST(BenchCompress, invalid_options_are_refused_before_anything_starts) {
  const auto done = run(compress({"-n", "2", "--method", "arcs"}));
  EXPECT_EQ(done.code, 2);
  EXPECT_TRUE(contains(done.error, "did you mean 'arc'?")) << done.error;
  EXPECT_TRUE(contains(done.error, "Try 'unisono-lab bench compress --help'")) << done.error;
  EXPECT_TRUE(contains(run(compress({})).error, "how many ranks?"));
  EXPECT_TRUE(contains(run({UNISONO_LAB, "help", "bench", "compress"}).out, "Usage: unisono-lab bench compress"));
  EXPECT_TRUE(contains(run({UNISONO_LAB, "bench"}).error, "a command is missing; there is compress"));
}

}  // namespace
}  // namespace unisono::testing

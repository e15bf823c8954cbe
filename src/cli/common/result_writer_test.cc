// Tests where results go: standard output, the file of --output, or both.
#include "cli/common/result_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "testing/temporary_folder.h"

namespace unisono::cli {
namespace {

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Writes one table and one line of JSON. Returns what was written to standard output.
std::string written(const OutputOptions& options) {
  ::testing::internal::CaptureStdout();
  Sink sink(options);
  EXPECT_TRUE(sink.open(true).ok());
  sink.table("table\n");
  sink.json("{}\n");
  EXPECT_TRUE(sink.finish().ok());
  return ::testing::internal::GetCapturedStdout();
}

TEST(ResultWriter, standard_output_has_the_text_or_with_json_the_json) {
  EXPECT_EQ(written({}), "table\n");
  EXPECT_EQ(written({.json = true}), "{}\n");
}

TEST(ResultWriter, the_file_has_the_json_beside_either) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/result.json";
  EXPECT_EQ(written({.output = path}), "table\n");
  EXPECT_EQ(contents(path), "{}\n");
  EXPECT_EQ(written({.json = true, .output = path}), "{}\n");
  EXPECT_EQ(contents(path), "{}\n");
}

TEST(ResultWriter, the_file_name_dash_is_standard_output) {
  EXPECT_EQ(written({.output = "-"}), "{}\n");
  EXPECT_EQ(written({.json = true, .output = "-"}), "{}\n");
}

TEST(ResultWriter, a_later_writer_continues_the_file) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/result.json";
  for (const bool first : {true, false}) {
    Sink sink({.output = path});
    ASSERT_TRUE(sink.open(first).ok());
    sink.json(first ? "1\n" : "2\n");
  }
  EXPECT_EQ(contents(path), "1\n2\n");
}

TEST(ResultWriter, a_rank_that_is_not_the_writer_writes_nothing) {
  ::testing::internal::CaptureStdout();
  Sink sink({.json = true});
  sink.table("table\n");
  sink.json("{}\n");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(sink.finish().ok());
}

TEST(ResultWriter, errors_name_the_option_the_file_and_the_reason) {
  Sink missing({.output = "/nonexistent/x"});
  EXPECT_EQ(missing.open(true).message(), "--output: cannot write /nonexistent/x: No such file or directory");
  ::testing::internal::CaptureStdout();
  Sink full({.output = "/dev/full"});
  ASSERT_TRUE(full.open(true).ok());
  full.json("{}\n");
  full.json("{}\n");
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(full.finish().message(), "--output: cannot write /dev/full: No space left on device");
  EXPECT_EQ(write_result("/dev/full", "text").message(), "--output: cannot write /dev/full: No space left on device");
  EXPECT_EQ(write_output_file({"--trace", "/nonexistent/x"}, "text").message(),
            "--trace: cannot write /nonexistent/x: No such file or directory");
}

TEST(ResultWriter, a_file_that_cannot_be_written_is_known_before_a_long_run) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(check_writable({"--plot", ""}).ok());
  EXPECT_TRUE(check_writable({"--plot", "-"}).ok());
  EXPECT_TRUE(check_writable({"--plot", folder.path() + "/new.svg"}).ok());
  EXPECT_FALSE(std::ifstream(folder.path() + "/new.svg").good()) << "it is not made";
  EXPECT_EQ(check_writable({"--plot", "/nonexistent/x.svg"}).message(),
            "--plot: cannot write /nonexistent/x.svg: No such file or directory");
}

TEST(ResultWriter, a_result_of_one_form_goes_to_the_file_or_to_standard_output) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/result";
  ::testing::internal::CaptureStdout();
  EXPECT_TRUE(write_result(path, "in the file").ok());
  EXPECT_TRUE(write_result("", "here, ").ok());
  EXPECT_TRUE(write_result("-", "and here").ok());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "here, and here");
  EXPECT_EQ(contents(path), "in the file");
}

}  // namespace
}  // namespace unisono::cli

// Tests what the parser says about a wrong command line: each message names the option or the word, in plain words.
#include "cli/common/command_line.h"

#include <gtest/gtest.h>

#include "cli/common/result_writer.h"

namespace unisono::cli {
namespace {

const CommandLineText try_text{
    .name = "unisono try", .usage = "unisono try", .description = "Tries it.", .footer = "Exit code: 0."};

struct TryOptions {
  std::vector<std::string> pair;
  std::string shape, file;
  OutputOptions results;
  uint32_t count = 0;
};

// Returns the message about these arguments.
std::string said(const Arguments& arguments, bool takes_file = false) {
  TryOptions options;
  const auto app = make_app(try_text);
  app->add_option("--shape", options.shape, "of it")->type_name("NAME");
  app->add_option("--pair", options.pair, "both")->type_name("FILE")->expected(2);
  app->add_option("--count", options.count, "how many")->type_name("N");
  if (takes_file) app->add_option("file", options.file, "what is read")->type_name("FILE");
  add_output_options(*app, options.results);
  ::testing::internal::CaptureStderr();
  const auto code = parse_arguments(*app, arguments);
  const auto text = ::testing::internal::GetCapturedStderr();
  if (!code) return "";
  EXPECT_EQ(*code, 2);
  EXPECT_TRUE(text.starts_with("unisono try: ")) << text;
  EXPECT_TRUE(text.ends_with("\nTry 'unisono try --help'.\n")) << text;
  return text.substr(13, text.find('\n') - 13);
}

TEST(CommandLine, an_unknown_option_is_named_whether_its_name_is_long_or_short) {
  EXPECT_EQ(said({"--shap", "round"}), "there is no option '--shap'. Did you mean '--shape'?");
  EXPECT_EQ(said({"--xyzzy=3"}), "there is no option '--xyzzy'.");
  EXPECT_EQ(said({"-x", "y"}), "there is no option '-x'.");
  EXPECT_EQ(said({"-x", "y"}, true), "there is no option '-x'.");
  EXPECT_EQ(said({"-J=y"}), "there is no option '-J'.");
}

TEST(CommandLine, a_word_that_nothing_reads_is_named) {
  EXPECT_EQ(said({"round"}), "there is no use for the word 'round'");
  EXPECT_EQ(said({"--shape", "round", "square"}), "there is no use for the word 'square'");
  EXPECT_EQ(said({"-"}), "there is no use for the word '-'");
}

TEST(CommandLine, json_takes_no_file_and_the_message_says_what_does) {
  EXPECT_EQ(said({"--json", "a.json"}),
            "--json takes no value, and there is no other use for the word 'a.json'; --output FILE writes to a file");
  EXPECT_EQ(said({"--json=a.json"}), "--json takes no value");
  EXPECT_EQ(said({"--json", "-o", "a.json"}), "");
}

TEST(CommandLine, missing_and_superfluous_values_name_their_option) {
  EXPECT_EQ(said({"--shape"}), "--shape needs a value: NAME");
  EXPECT_EQ(said({"-o"}), "--output needs a value: FILE");
  EXPECT_EQ(said({"--pair", "a"}), "--pair needs 2 values: FILE");
  EXPECT_EQ(said({"--shape", "round", "--shape", "square"}), "--shape is given more than once");
  EXPECT_EQ(said({"--count", "three"}), "--count = three: not a value that it takes");
}

}  // namespace
}  // namespace unisono::cli

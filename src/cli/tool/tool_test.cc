// Tests a small tool: which command runs, and that no text breaks the manual page or a completion script.
#include "cli/tool/tool.h"

#include <gtest/gtest.h>

#include "cli/tool/completion.h"
#include "cli/tool/manual.h"

namespace unisono::cli {
namespace {

CommandSyntax syntax() { return {.name = "x", .summary = {}, .usage = {}, .description = {}, .footer = {}, .options = {}}; }

constexpr Command commands[] = {
    {"one", "the first", [](const Arguments& words) { return 10 + static_cast<int>(words.size()); }, syntax},
    {"one more", "the second", [](const Arguments& words) { return 20 + static_cast<int>(words.size()); }, syntax},
    {"many", "a group", nullptr, nullptr, "What all have in common."},
    {"many apples", "the third", [](const Arguments& words) { return 30 + static_cast<int>(words.size()); }, syntax},
    {"hidden", "", [](const Arguments&) { return 40; }, nullptr},
};
constexpr MovedCommand moved[] = {{"many pears", "other-tool pears"}};
constexpr Tool try_tool{
    .name = "try-tool", .title = "for this test", .commands = commands, .moved = moved, .first_steps = "", .manual = {}};

TEST(Tool, a_command_of_two_words_goes_before_the_one_of_its_first_word) {
  EXPECT_EQ(run_tool(try_tool, {"one"}), 10);
  EXPECT_EQ(run_tool(try_tool, {"one", "less"}), 11);
  EXPECT_EQ(run_tool(try_tool, {"one", "more", "x", "y"}), 22);
  EXPECT_EQ(run_tool(try_tool, {"help", "one", "more"}), 21);  // `help` runs "one more" with the argument --help: 20 + 1
  EXPECT_EQ(run_tool(try_tool, {"many", "apples"}), 30);
  EXPECT_EQ(run_tool(try_tool, {"hidden"}), 40);
}

TEST(Tool, a_missing_unknown_or_moved_command_is_wrong_usage) {
  for (const Arguments& words : {Arguments{},
                                 {"two"},
                                 {"many"},
                                 {"many", "plums"},
                                 {"many", "--loud"},
                                 {"many", "pears", "-n", "2"},
                                 {"help", "many", "pears"}})
    EXPECT_EQ(run_tool(try_tool, words), 2);
  EXPECT_EQ(run_tool(try_tool, {"many", "--help"}), 0);
  EXPECT_EQ(run_tool(try_tool, {"--version"}), 0);
}

TEST(Tool, texts_name_every_command_for_people_and_no_other) {
  const auto syntaxes = command_syntaxes(try_tool);
  std::vector<std::string> summaries;
  for (const auto& one : syntaxes) summaries.push_back(one.summary);
  ASSERT_EQ(syntaxes.size(), 6u);
  EXPECT_EQ(std::vector(summaries.begin(), summaries.begin() + 4),
            (std::vector<std::string>{"the first", "the second", "a group", "the third"}));
  EXPECT_EQ(syntaxes[2].name, "many");
  ASSERT_FALSE(syntaxes[2].options.empty());
  EXPECT_EQ(syntaxes[2].options.front().choices, std::vector<std::string>{"apples"});
  EXPECT_EQ(syntaxes[4].name, "completion");
  EXPECT_EQ(syntaxes[5].name, "man");
}

CommandSyntax nasty() {
  CommandSyntax command{.name = "try",
                        .summary = "it's [odd]: \\really",
                        .usage = ".usage",
                        .description = "'quoted\n.dotted\n  .kept \\ line   meaning",
                        .footer = "-dashes ^ ~ `",
                        .options = {}};
  command.options.push_back({.names = {"--odd"}, .value = "A:B", .meaning = "it's [odd]: \\really", .choices = {}});
  return command;
}

TEST(Manual, no_letter_of_a_text_is_taken_for_roff) {
  const auto page = manual_page(try_tool, std::vector{nasty()});
  EXPECT_NE(page.find("\n\\(aqquoted\n\\&.dotted\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n.RS 2\n.PD 0\n.TP 4\n\\&.kept \\e line\nmeaning\n.PD\n.RE\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\\-dashes \\(ha \\(ti \\(ga"), std::string::npos) << page;
}

TEST(Completion, quotes_brackets_and_colons_of_a_text_stay_text) {
  const std::vector commands{nasty()};
  EXPECT_NE(zsh_completion("try-tool", commands).find(R"('(--odd)--odd=[it'\''s \[odd\]: \\really]:A\:B: ')"),
            std::string::npos)
      << zsh_completion("try-tool", commands);
  EXPECT_NE(zsh_completion("try-tool", commands).find(R"('try:it'\''s [odd]\: \\really')"), std::string::npos)
      << zsh_completion("try-tool", commands);
  EXPECT_NE(fish_completion("try-tool", commands).find(R"(-l odd -x -d 'it\'s [odd]: \\really')"), std::string::npos)
      << fish_completion("try-tool", commands);
}

}  // namespace
}  // namespace unisono::cli

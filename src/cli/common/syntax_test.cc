// What completion and the manual page are made from, and that no text breaks them.
#include "cli/common/syntax.h"

#include <gtest/gtest.h>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/completion.h"
#include "cli/manual.h"

namespace unisono::cli {
namespace {

struct Values {
  std::string what, shape, path;
  bool loud = false;
};

void add(CLI::App& app, Values& values) {
  set_choices(*app.add_option("what", values.what, "the thing")->type_name(""), {"one", "two"});
  add_choice(app, values.shape,
             {.names = "-s,--shape", .value = "NAME", .meaning = "of it", .words = {"round", "square"}, .fallback = "round"});
  app.add_option("--path", values.path, "where it is")->type_name("FILE");
  app.add_flag("--loud", values.loud, "say more");
}

const CommandLineText text{
    .name = "unisono try", .usage = "unisono try WHAT", .description = "Tries it.", .footer = "Exit code: 0."};

TEST(Syntax, options_are_read_from_the_parser) {
  const auto syntax = syntax_of(text, add);
  EXPECT_EQ(syntax.name, "try");
  ASSERT_EQ(syntax.options.size(), 5u);
  const OptionSyntax what{.names = {"what"}, .value = "", .meaning = "the thing", .choices = {"one", "two"}};
  const OptionSyntax shape{
      .names = {"-s", "--shape"}, .value = "NAME", .meaning = "of it: round square [round]", .choices = {"round", "square"}};
  const OptionSyntax path{.names = {"--path"}, .value = "FILE", .meaning = "where it is", .choices = {}};
  const OptionSyntax loud{.names = {"--loud"}, .value = "", .meaning = "say more", .choices = {}};
  EXPECT_EQ(syntax.options[0], what);
  EXPECT_EQ(syntax.options[1], shape);
  EXPECT_EQ(syntax.options[2], path);
  EXPECT_EQ(syntax.options[3], loud);
  EXPECT_EQ(syntax.options[4].names.back(), "--help");
  EXPECT_TRUE(what.positional() && what.takes_value() && path.takes_file() && shape.takes_value());
  EXPECT_FALSE(loud.takes_value() || loud.positional() || shape.takes_file());
}

TEST(Syntax, choices_do_not_check_values_so_that_other_spellings_pass) {
  Values values;
  const auto app = make_app(text);
  add(*app, values);
  EXPECT_EQ(parse_arguments(*app, {"three", "--shape", "ROUND"}), std::nullopt);
  EXPECT_EQ(values.shape, "ROUND");
}

TEST(Syntax, every_command_for_people_has_one_and_the_agent_none) {
  std::vector<std::string> names;
  for (const auto& command : command_syntaxes()) {
    names.push_back(command.name);
    EXPECT_FALSE(command.summary.empty() || command.usage.empty() || command.options.empty()) << command.name;
    EXPECT_EQ(command.runs_program, command.name == "launch");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"launch",
                                             "bench",
                                             "bench compress",
                                             "tune",
                                             "doctor",
                                             "top",
                                             "explain",
                                             "trace",
                                             "metrics",
                                             "simulate",
                                             "simulate arc",
                                             "simulate averaging",
                                             "simulate loss",
                                             "simulate elastic",
                                             "simulate churn-trace",
                                             "drop-compute",
                                             "drop-compute plan",
                                             "drop-compute search",
                                             "drop-compute simulate",
                                             "codec",
                                             "rendezvous",
                                             "completion",
                                             "man"}));
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
  const auto page = manual_page(std::vector{nasty()});
  EXPECT_NE(page.find("\n\\(aqquoted\n\\&.dotted\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\n.RS 2\n.PD 0\n.TP 4\n\\&.kept \\e line\nmeaning\n.PD\n.RE\n"), std::string::npos) << page;
  EXPECT_NE(page.find("\\-dashes \\(ha \\(ti \\(ga"), std::string::npos) << page;
}

TEST(Completion, quotes_brackets_and_colons_of_a_text_stay_text) {
  const std::vector commands{nasty()};
  EXPECT_NE(zsh_completion(commands).find(R"('(--odd)--odd=[it'\''s \[odd\]: \\really]:A\:B: ')"), std::string::npos)
      << zsh_completion(commands);
  EXPECT_NE(zsh_completion(commands).find(R"('try:it'\''s [odd]\: \\really')"), std::string::npos) << zsh_completion(commands);
  EXPECT_NE(fish_completion(commands).find(R"(-l odd -x -d 'it\'s [odd]: \\really')"), std::string::npos)
      << fish_completion(commands);
}

}  // namespace
}  // namespace unisono::cli

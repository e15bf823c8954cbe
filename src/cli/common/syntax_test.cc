// Tests the syntax data from which completion and the manual page are made.
#include "cli/common/syntax.h"

#include <gtest/gtest.h>

#include "cli/common/command_line.h"

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

}  // namespace
}  // namespace unisono::cli

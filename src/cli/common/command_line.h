// Reads the options of every command. All help pages have the same form. If an option is wrong, the error message suggests what
// the user probably meant.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/syntax.h"
#include "unisono/status.h"

namespace unisono::cli {

using Arguments = std::vector<std::string>;

struct CommandLineText {
  std::string name;   // "unisono launch"
  std::string usage;  // "unisono launch -n COUNT [OPTIONS] -- PROGRAM [ARGUMENTS]"
  std::string description;
  std::string footer;         // examples, exit codes, environment
  bool runs_program = false;  // true: a program and its arguments follow the options of the command
};

// An option that has one of a few values. Its help text ends with a list of these values, and shell completion offers them.
struct Choice {
  std::string names;  // "-d,--dtype"
  std::string value;  // "TYPE"
  std::string meaning;
  std::vector<std::string> words;
  std::string fallback = {};  // the value if the option is not given; empty: the help text shows none
};
void add_choice(CLI::App& app, std::string& target, const Choice& choice);

std::unique_ptr<CLI::App> make_app(const CommandLineText& text);

// Returns the syntax that `app` can parse.
CommandSyntax syntax_of(const CommandLineText& text, CLI::App& app);
// Returns the syntax of a command. The function `add` adds the options of the command to an app.
template <typename Options>
CommandSyntax syntax_of(const CommandLineText& text, void (*add)(CLI::App&, Options&)) {
  Options options;
  const auto app = make_app(text);
  add(*app, options);
  return syntax_of(text, *app);
}

// Parses the command line. Returns an exit code if the process should end now, either because help was printed or because the
// arguments are wrong.
std::optional<int> parse_arguments(CLI::App& app, const Arguments& arguments);

// Prints the message, and how to get help. Returns the exit code for wrong usage.
int usage_error(const std::string& command, std::string_view message);
// Prints the message of the status, and returns exit code 1.
int failed(const CommandLineText& text, const Status& status);

}  // namespace unisono::cli

// How every command reads its options: help pages look alike, and errors say what was probably meant.
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
  bool runs_program = false;  // the words behind its options are a command of their own
};

// An option that has a few values: they end its help text, and completion offers them.
struct Choice {
  std::string names;  // "-d,--dtype"
  std::string value;  // "TYPE"
  std::string meaning;
  std::vector<std::string> words;
  std::string fallback = {};  // what it is if not given; empty: nothing to say
};
void add_choice(CLI::App& app, std::string& target, const Choice& choice);

std::unique_ptr<CLI::App> make_app(const CommandLineText& text);

// The syntax of the command whose command line `app` reads.
CommandSyntax syntax_of(const CommandLineText& text, CLI::App& app);
// The same from the function that adds the command's options; their values go nowhere.
template <typename Options>
CommandSyntax syntax_of(const CommandLineText& text, void (*add)(CLI::App&, Options&)) {
  Options options;
  const auto app = make_app(text);
  add(*app, options);
  return syntax_of(text, *app);
}

// The exit code if the process should end now (help was asked for, or the words are wrong), else nothing.
std::optional<int> parse_arguments(CLI::App& app, const Arguments& arguments);

// Prints the message and where help is; gives the exit code for wrong usage.
int usage_error(const std::string& command, std::string_view message);
// Prints what went wrong; gives the exit code for that.
int failed(const CommandLineText& text, const Status& status);

}  // namespace unisono::cli

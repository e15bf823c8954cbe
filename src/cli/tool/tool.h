// A command-line tool as data: its commands and its help texts. Everything that needs them takes a Tool as its argument:
// running a command, the overview, shell completion, and the manual page. So all of these know the same commands.
//
// Every tool also has `completion`, `man`, `help` and `--version`. These are not in its table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/syntax.h"

namespace unisono::cli {

// A command of a tool. Its data goes to standard output, and everything else to standard error.
struct Command {
  std::string_view name;  // one word, or two: "drop-compute plan"
  // one line for the overview; if it is empty, this is an internal command, which no help text mentions
  std::string_view summary;
  // Gets the words that follow the name, and returns the exit code. If it is null, this is a group: the first word of several
  // commands.
  int (*run)(const Arguments& arguments);
  CommandSyntax (*syntax)();          // null for groups and internal commands
  std::string_view description = {};  // only for a group: what its commands have in common
};

// A command that has moved to another tool. If the user calls the old command, it fails with exit code 2, and a message shows
// the new command line.
struct MovedCommand {
  std::string_view was;  // the old name, which has one or two words
  std::string_view now;  // the new command line: "unisono-lab simulate arc"
};

struct Variable {
  std::string_view name;
  std::string_view meaning;
};

struct ExitStatus {
  std::string_view code;
  std::string_view meaning;
};

struct ManualText {
  std::string_view description;
  std::string_view environment;  // one line that introduces the list of environment variables
  std::span<const Variable> variables;
  std::span<const ExitStatus> exit_statuses;
  std::string_view examples;
  std::string_view see_also;  // references to other pages, written in roff
};

struct Tool {
  std::string_view name;   // name of the program
  std::string_view title;  // one line
  std::span<const Command> commands;
  std::span<const MovedCommand> moved;
  std::string_view first_steps;  // examples that end the overview
  ManualText manual;
};

// Returns the syntax of all commands of the tool, including `completion` and `man`. The summaries are filled in.
std::vector<CommandSyntax> command_syntaxes(const Tool& tool);

// Runs the command that the arguments name, or prints help. Returns the exit code of the process.
int run_tool(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

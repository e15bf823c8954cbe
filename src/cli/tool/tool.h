// A command-line tool as data: its commands, and the texts about all of them. Running a command line, the overview, the scripts
// that complete words and the manual page are functions of a Tool, so they cannot name different commands.
//
// Every tool also has `completion`, `man`, `help` and `--version`; they are not in its table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/syntax.h"

namespace unisono::cli {

// Data goes to standard output, everything else to standard error.
struct Command {
  std::string_view name;     // one word, or two: "drop-compute plan"
  std::string_view summary;  // one line for the overview; empty: a command for the tool's own use, which no text shows
  int (*run)(
      const Arguments& arguments);    // gets the words behind the name, gives the exit code; null: the first word of others
  CommandSyntax (*syntax)();          // null: run() or summary is
  std::string_view description = {};  // if run is null: what its commands have in common
};

// A command that another tool has now: the old words end with exit code 2 and say the new ones.
struct MovedCommand {
  std::string_view was;  // one word or two
  std::string_view now;  // "unisono-lab simulate arc"
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
  std::string_view environment;  // one line
  std::span<const Variable> variables;
  std::span<const ExitStatus> exit_statuses;
  std::string_view examples;
  std::string_view see_also;  // in roff
};

struct Tool {
  std::string_view name;   // of the program
  std::string_view title;  // one line
  std::span<const Command> commands;
  std::span<const MovedCommand> moved;
  std::string_view first_steps;  // the end of the overview
  ManualText manual;
};

// The syntax of the tool's commands, with their summaries; `completion` and `man` are included.
std::vector<CommandSyntax> command_syntaxes(const Tool& tool);

// Finds the command and runs it, or prints help. The exit code of the process.
int run_tool(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

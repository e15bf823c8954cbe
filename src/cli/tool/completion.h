// Makes scripts with which a shell completes the command lines of a tool. The scripts complete commands, options and file
// names. If an option has a fixed list of values, they complete its values, too. In `launch -- PROGRAM`, the words after
// PROGRAM are completed as PROGRAM's own completion says. The scripts are pure functions of the tool's name and the syntax of
// its commands.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/tool/tool.h"

namespace unisono::cli {

std::string bash_completion(std::string_view tool, std::span<const CommandSyntax> commands);
std::string zsh_completion(std::string_view tool, std::span<const CommandSyntax> commands);
std::string fish_completion(std::string_view tool, std::span<const CommandSyntax> commands);

// Returns the name of the shell function that completes for this tool: "_unisono_lab".
std::string completion_function(std::string_view tool);

// The command `completion SHELL` of a tool.
CommandSyntax completion_syntax(const Tool& tool);
int run_completion(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

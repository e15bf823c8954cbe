// Scripts that complete the words of a tool: commands, options, the values of options that have a few, file names, and behind
// `launch` the program's own words. The scripts are pure functions of the tool's name and its commands' syntax.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/tool/tool.h"

namespace unisono::cli {

std::string bash_completion(std::string_view tool, std::span<const CommandSyntax> commands);
std::string zsh_completion(std::string_view tool, std::span<const CommandSyntax> commands);
std::string fish_completion(std::string_view tool, std::span<const CommandSyntax> commands);

// The name of the shell function for a tool: "_unisono_lab".
std::string completion_function(std::string_view tool);

// `completion SHELL` of a tool.
CommandSyntax completion_syntax(const Tool& tool);
int run_completion(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

// Scripts that complete the words of this tool: commands, options, the values of options that have a few, file names, and
// behind `launch` the program's own words. Pure functions of the commands' syntax.
#pragma once

#include <span>
#include <string>

#include "cli/common/syntax.h"

namespace unisono::cli {

std::string bash_completion(std::span<const CommandSyntax> commands);
std::string zsh_completion(std::span<const CommandSyntax> commands);
std::string fish_completion(std::span<const CommandSyntax> commands);

}  // namespace unisono::cli

// Makes the manual page of a tool, as roff with man macros. It is made from the texts of the tool and the syntax of its
// commands.
#pragma once

#include <span>
#include <string>

#include "cli/tool/tool.h"

namespace unisono::cli {

// Returns the manual page. This function is pure. `commands` is usually the result of command_syntaxes(tool).
std::string manual_page(const Tool& tool, std::span<const CommandSyntax> commands);

// The command `man` of a tool.
CommandSyntax manual_syntax(const Tool& tool);
int run_manual(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

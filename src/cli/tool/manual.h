// The manual page of a tool in roff (man macros), from its commands' syntax and its texts.
#pragma once

#include <span>
#include <string>

#include "cli/tool/tool.h"

namespace unisono::cli {

// Pure. `commands` are usually command_syntaxes(tool).
std::string manual_page(const Tool& tool, std::span<const CommandSyntax> commands);

// `man` of a tool.
CommandSyntax manual_syntax(const Tool& tool);
int run_manual(const Tool& tool, const Arguments& arguments);

}  // namespace unisono::cli

// The manual page in roff (man macros), from the commands' syntax. Pure.
#pragma once

#include <span>
#include <string>

#include "cli/common/syntax.h"

namespace unisono::cli {

// A variable of the environment that the tool or the library reads or sets.
struct Variable {
  std::string_view name;
  std::string_view meaning;
};
// All that programs linked with Unisono read; tests hold them against the sources and docs/guides/operations.md.
std::span<const Variable> variables();

std::string manual_page(std::span<const CommandSyntax> commands);

}  // namespace unisono::cli

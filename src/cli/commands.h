// Declares the commands of the tool `unisono`.
#pragma once

#include "cli/tool/tool.h"

namespace unisono::cli {

const Tool& unisono_tool();

// `unisono lab WORDS` replaces this process by `unisono-lab WORDS`. This returns an exit code only if unisono-lab cannot be
// started.
int run_lab(const Arguments& arguments);
CommandSyntax lab_syntax();

}  // namespace unisono::cli

// The tool `unisono`.
#pragma once

#include "cli/tool/tool.h"

namespace unisono::cli {

const Tool& unisono_tool();

// `unisono lab WORDS`: becomes `unisono-lab WORDS`. Returns only if that cannot be started.
int run_lab(const Arguments& arguments);
CommandSyntax lab_syntax();

}  // namespace unisono::cli

// Entry point of the tool `unisono-lab`.
#pragma once

#include "cli/tool/tool.h"

namespace unisono::lab {

const cli::Tool& lab_tool();

}  // namespace unisono::lab

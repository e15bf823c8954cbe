// The tool `unisono-lab`.
#pragma once

#include "cli/tool/tool.h"

namespace unisono::cli {

const Tool& lab_tool();

}  // namespace unisono::cli

// Says from which source this program was built.
#pragma once

#include "unisono/version.h"

namespace unisono::cli {

inline constexpr const char* version_text = UNISONO_VERSION;
// Returns the commit, such as "1a2b3c4d5e". If some files differ from the commit, "-dirty" is appended. If the source is not a
// git checkout, returns "unknown". cmake/commit.cmake generates this function.
const char* commit_text();

}  // namespace unisono::cli

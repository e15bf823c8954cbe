// Which build this is.
#pragma once

#include "unisono/version.h"

namespace unisono::cli {

inline constexpr const char* version_text = UNISONO_VERSION;
// "1a2b3c4d5e", with "-dirty" behind it where files differ; "unknown" outside a checkout. Written by cmake/commit.cmake.
const char* commit_text();

}  // namespace unisono::cli

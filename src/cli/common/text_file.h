// A whole text file, read at once.
#pragma once

#include <string>

#include "unisono/status.h"

namespace unisono::cli {

// The file's text; "-" reads standard input. unavailable: it cannot be read, and why.
Result<std::string> read_text_file(const std::string& path);

}  // namespace unisono::cli

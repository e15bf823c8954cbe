// Reads a whole text file.
#pragma once

#include <string>

#include "unisono/status.h"

namespace unisono::cli {

// Returns the text of the file. The path "-" means standard input. Returns Code::unavailable if the file cannot be read; the
// message says why.
Result<std::string> read_text_file(const std::string& path);

}  // namespace unisono::cli

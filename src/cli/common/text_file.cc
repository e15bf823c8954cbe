#include "cli/common/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace unisono::cli {

Result<std::string> read_text_file(const std::string& path) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "re");
  if (file == nullptr) return Status(Code::unavailable, fmt::format("cannot read {}: {}", path, strerrordesc_np(errno)));
  std::string text;
  char buffer[1 << 16];
  errno = 0;
  for (size_t count; (count = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, count);
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) return Status(Code::unavailable, fmt::format("cannot read {}: {}", path, strerrordesc_np(error)));
  return text;
}

}  // namespace unisono::cli

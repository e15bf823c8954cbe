#include "group/lifecycle/tuning_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error_text.h"

namespace unisono {

Result<Tuning> read_tuning(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(tuning_bytes_max + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    return Status(Code::invalid, "the tuning file '" + path + "' cannot be read: " + std::strerror(errno != 0 ? errno : EIO) +
                                     descriptor_limit_text(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  auto tuning = parse_tuning(text);
  if (!tuning) return Status(Code::invalid, "the tuning file '" + path + "': " + tuning.status().message());
  return tuning;
}

}  // namespace unisono

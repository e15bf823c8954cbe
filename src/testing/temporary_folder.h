// A folder of its own for a test or a benchmark, below the system's folder for temporary files; gone with the object.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace unisono::test {

class TemporaryFolder {
 public:
  // Without a folder nothing can be tried: ends the program.
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / ("unisono-test-" + std::string(6, 'X'))).string()) {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace unisono::test

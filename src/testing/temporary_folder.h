// A temporary folder for one test or benchmark, below the system's folder for temporary files. The destructor removes it.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace unisono::test {

class TemporaryFolder {
 public:
  // Aborts the program if the folder cannot be made.
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

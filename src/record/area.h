// The memory in which a process keeps its record. It is either a memfd, which other processes find in /proc, or a file, which
// remains after the process has ended. All of the memory is mapped and reserved at the start, so later writes to it never fail.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "unisono/status.h"

namespace unisono::record {

class Area {
 public:
  // Makes memory that other processes can open through /proc/PID/fd.
  static Result<Area> in_memory(size_t bytes);
  // Makes a new file with this name. Also makes the folder if it does not exist.
  static Result<Area> in_file(const std::string& folder, const std::string& name, size_t bytes);
  // Makes memory that only this process can read. This is used if the other two fail.
  static Result<Area> private_memory(size_t bytes);

  Area(Area&& other) noexcept { *this = std::move(other); }
  Area& operator=(Area&& other) noexcept;
  Area(const Area&) = delete;
  ~Area();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Area() = default;
  Status map(size_t bytes);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace unisono::record

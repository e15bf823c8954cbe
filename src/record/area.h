// The memory that a record lives in: a memfd that other processes find in /proc, or a file that outlives this process, mapped
// and wholly reserved, so that writing to it never fails later.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "unisono/status.h"

namespace unisono::record {

class Area {
 public:
  // In memory that is shared through /proc/PID/fd.
  static Result<Area> in_memory(size_t bytes);
  // A new file of this name; the folder is made if it does not exist.
  static Result<Area> in_file(const std::string& folder, const std::string& name, size_t bytes);
  // Seen by this process only: the last resort.
  static Result<Area> unseen(size_t bytes);

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

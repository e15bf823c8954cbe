// Writes to standard output or error from a loop that must not block: only what poll(2) says there is room for.
#pragma once

#include <cstddef>
#include <string>

namespace unisono::cli {

class OutputWriter {
 public:
  explicit OutputWriter(int fd);
  int fd() const { return fd_; }
  bool is_terminal() const { return is_terminal_; }
  bool is_broken() const { return is_broken_; }  // the reader is gone; what is written is dropped
  // Call when poll says POLLOUT, POLLERR or POLLHUP. Takes what it wrote from the front of text.
  void write_some(std::string& text);

 private:
  int fd_;
  bool is_terminal_ = false;
  bool is_broken_ = false;
  size_t step_bytes_ = 0;
};

}  // namespace unisono::cli

// Writes to standard output or standard error from a loop that must not block. A call writes only as much as the descriptor
// takes at once.
#pragma once

#include <cstddef>
#include <string>

namespace unisono::cli {

class OutputWriter {
 public:
  explicit OutputWriter(int fd);
  int fd() const { return fd_; }
  bool is_terminal() const { return is_terminal_; }
  bool is_broken() const { return is_broken_; }  // true if the reader has closed the pipe; all further text is dropped
  // Writes from the front of `text`, and removes what it has written. Call this when poll(2) reports POLLOUT, POLLERR or
  // POLLHUP.
  void write_some(std::string& text);

 private:
  int fd_;
  bool is_terminal_ = false;
  bool is_broken_ = false;
  size_t step_bytes_ = 0;
};

}  // namespace unisono::cli

// Bytes in and out of a command: a file, a pipe, or standard input and output. Blocking; errors name the stream, the position
// and the reason.
//
// SIGPIPE must be ignored, so that a reader that has gone is an error of write() and not the end of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cli/common/descriptor.h"
#include "unisono/status.h"

namespace unisono::cli {

class ByteSource {
 public:
  // A file; or standard input, if path is empty or "-". unavailable: it cannot be opened, and why.
  static Result<ByteSource> open(const std::string& path);

  const std::string& name() const { return name_; }  // the file's, or "standard input"
  int fd() const { return fd_; }
  bool is_terminal() const { return ::isatty(fd_) == 1; }
  uint64_t taken() const { return taken_; }  // bytes so far
  // The bytes not read yet, where that is known: for files, but not for pipes.
  std::optional<uint64_t> bytes_left() const;
  // As many bytes as there is room for; fewer only where the input ends.
  Result<size_t> read(std::span<std::byte> to);

 private:
  Descriptor owned_;  // not of standard input
  int fd_ = -1;
  std::string name_;
  uint64_t taken_ = 0;
};

class ByteSink {
 public:
  // A file, which loses what it held; or standard output, if path is empty or "-". invalid: it is the file that `source` reads,
  // which would be gone before it is read; unavailable: it cannot be opened, and why.
  static Result<ByteSink> open(const std::string& path, const ByteSource& source);

  bool is_terminal() const { return ::isatty(fd_) == 1; }
  bool has_lost_its_reader() const { return is_broken_; }  // as for head(1): no error that anybody wants to read about
  Status write(std::span<const std::byte> bytes);
  Status write(const std::string& text) { return write(std::as_bytes(std::span(text))); }
  // Errors that a file system reports only on close.
  Status close();

 private:
  Status trouble(int error) const;

  Descriptor owned_;
  int fd_ = -1;
  std::string name_;
  uint64_t written_ = 0;
  bool is_broken_ = false;
};

}  // namespace unisono::cli

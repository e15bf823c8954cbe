// The input and output of a command: a file, a pipe, or standard input and output. The calls block. Error messages name the
// stream, the position and the reason.
//
// The process must ignore SIGPIPE. Otherwise, when the reader has gone, a write would end the process instead of returning an
// error.
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
  // Opens a file. If the path is empty or "-", opens standard input. Returns Code::unavailable if the file cannot be opened;
  // the message says why.
  static Result<ByteSource> open(const std::string& path);

  const std::string& name() const { return name_; }  // the path, or "standard input"
  int fd() const { return fd_; }
  bool is_terminal() const { return ::isatty(fd_) == 1; }
  uint64_t taken() const { return taken_; }  // number of bytes that have been read
  // Returns how many bytes have not been read yet. Returns nullopt if this is unknown, as it is for pipes.
  std::optional<uint64_t> bytes_left() const;
  // Fills `to`, and returns how many bytes were read. This is less than to.size() only at the end of the input.
  Result<size_t> read(std::span<std::byte> to);

 private:
  Descriptor owned_;  // none for standard input
  int fd_ = -1;
  std::string name_;
  uint64_t taken_ = 0;
};

class ByteSink {
 public:
  // Opens a file and empties it. If the path is empty or "-", opens standard output. Returns Code::invalid if `source` still
  // reads the same file, and Code::unavailable if the file cannot be opened; the message says why.
  static Result<ByteSink> open(const std::string& path, const ByteSource& source);

  const std::string& name() const { return name_; }  // the path, or "standard output"
  bool is_terminal() const { return ::isatty(fd_) == 1; }
  // Returns true if the reader has closed the pipe, as head(1) does. In that case, callers print no error.
  bool has_lost_its_reader() const { return is_broken_; }
  Status write(std::span<const std::byte> bytes);
  Status write(const std::string& text) { return write(std::as_bytes(std::span(text))); }
  // Closes the file. Some file systems report an error of an earlier write only here.
  Status close();

 private:
  Status write_error(int error) const;

  Descriptor owned_;
  int fd_ = -1;
  std::string name_;
  uint64_t written_ = 0;
  bool is_broken_ = false;
};

}  // namespace unisono::cli

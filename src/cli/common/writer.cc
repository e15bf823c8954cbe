#include "cli/common/writer.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace unisono::cli {
namespace {

// write_some() returns after it has written this many bytes, so that the caller's loop can serve its other descriptors, too.
constexpr size_t burst_bytes_max = 256u << 10;

}  // namespace

// The descriptor stays blocking, because other processes may share it. Instead, each write is so small that it cannot block
// after POLLOUT: PIPE_BUF bytes for a pipe, and only a few bytes for a terminal. A write to a file may have any size.
OutputWriter::OutputWriter(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {
  struct stat info {};
  const bool is_file = ::fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode));
  step_bytes_ = is_file ? 1u << 20 : is_terminal_ ? 1024 : PIPE_BUF;
}

void OutputWriter::write_some(std::string& text) {
  if (is_broken_) return text.clear();
  size_t written = 0;
  const auto limit = std::min(text.size(), burst_bytes_max);
  for (pollfd ready{fd_, POLLOUT, POLLOUT}; written < limit && (ready.revents & POLLOUT) != 0;) {
    const auto put = ::write(fd_, text.data() + written, std::min(limit - written, step_bytes_));
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put < 0) {
      is_broken_ = true;
      return text.clear();
    }
    written += static_cast<size_t>(put);
    if (::poll(&ready, 1, 0) <= 0) break;
  }
  text.erase(0, written);
}

}  // namespace unisono::cli

// Reads and writes that block until all bytes have been transferred.
#include "cli/common/byte_stream.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace unisono::cli {
namespace {

bool is_standard(const std::string& path) { return path.empty() || path == "-"; }

// Returns whether the read or write that has just failed should be tried again. Another process may have made the shared
// descriptor non-blocking. In that case, this function first waits until the descriptor is ready.
bool wait_if_asked_to(int fd, short events) {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd ready{fd, events, 0};
  return ::poll(&ready, 1, -1) >= 0 || errno == EINTR;
}

bool is_same_file(int one, int other) {
  struct stat a {
  }, b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && S_ISREG(a.st_mode) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

Result<ByteSource> ByteSource::open(const std::string& path) {
  ByteSource source;
  source.name_ = is_standard(path) ? "standard input" : path;
  source.fd_ = STDIN_FILENO;
  if (is_standard(path)) return source;
  source.owned_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source.owned_) return Status(Code::unavailable, fmt::format("cannot read {}: {}", path, strerrordesc_np(errno)));
  source.fd_ = source.owned_.get();
  return source;
}

std::optional<uint64_t> ByteSource::bytes_left() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const auto at = ::lseek(fd_, 0, SEEK_CUR);
  // Files in /proc report the size 0 although they are not empty.
  if (at < 0 || info.st_size <= at) return std::nullopt;
  return static_cast<uint64_t>(info.st_size - at);
}

Result<size_t> ByteSource::read(std::span<std::byte> to) {
  size_t got = 0;
  while (got < to.size()) {
    const auto part = ::read(fd_, to.data() + got, to.size() - got);
    if (part == 0) break;
    if (part > 0) got += static_cast<size_t>(part);
    else if (!wait_if_asked_to(fd_, POLLIN))
      return Status(Code::unavailable, fmt::format("cannot read {}: {}", name_, strerrordesc_np(errno)));
  }
  taken_ += got;
  return got;
}

Result<ByteSink> ByteSink::open(const std::string& path, const ByteSource& source) {
  ByteSink sink;
  sink.name_ = is_standard(path) ? "standard output" : path;
  sink.fd_ = STDOUT_FILENO;
  if (is_standard(path)) return sink;
  sink.owned_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!sink.owned_) return Status(Code::unavailable, fmt::format("cannot write {}: {}", path, strerrordesc_np(errno)));
  sink.fd_ = sink.owned_.get();
  if (is_same_file(sink.fd_, source.fd()))
    return Status(Code::invalid, fmt::format("{} is read and written at once: name another file for the output", path));
  struct stat info {};
  const bool is_file = ::fstat(sink.fd_, &info) == 0 && S_ISREG(info.st_mode);
  if (is_file && ::ftruncate(sink.fd_, 0) != 0) return sink.write_error(errno);
  return sink;
}

Status ByteSink::write_error(int error) const {
  return {Code::unavailable, fmt::format("cannot write {} after {} bytes: {}", name_, written_, strerrordesc_np(error))};
}

Status ByteSink::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = ::write(fd_, bytes.data(), bytes.size());
    if (part >= 0) {
      written_ += static_cast<uint64_t>(part);
      bytes = bytes.subspan(static_cast<size_t>(part));
    } else if (!wait_if_asked_to(fd_, POLLOUT)) {
      is_broken_ = errno == EPIPE;
      return write_error(errno);
    }
  }
  return {};
}

Status ByteSink::close() {
  if (!owned_) return {};
  // close(2) frees the descriptor even if it fails, so it must not be called again.
  const bool closed = ::close(owned_.release()) == 0;
  return closed ? Status() : write_error(errno);
}

}  // namespace unisono::cli

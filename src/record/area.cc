#include "record/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/concat.h"
#include "base/error_text.h"
#include "record/layout.h"

namespace unisono::record {
namespace {

Status failed(const std::string& what, int error) {
  return {Code::unavailable, std::strerror(error) + descriptor_limit_text(error) + " (" + what + ")"};
}

}  // namespace

Area& Area::operator=(Area&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

Area::~Area() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

// Reserves all blocks now. Otherwise, if the disk or the memory is full, a later write would raise the signal SIGBUS instead of
// returning an error here.
Status Area::map(size_t bytes) {
  rlimit limit{};  // a file that grows beyond RLIMIT_FSIZE would raise the signal SIGXFSZ
  if (fd_ >= 0 && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return {Code::unavailable, concat("the limit on file sizes (ulimit -f) is below ", bytes, " bytes")};
  }
  if (const int error = fd_ >= 0 ? ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes)) : 0; error != 0) {
    return failed(concat("reserving ", bytes, " bytes"), error);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd_ >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd_, 0);
  if (data == MAP_FAILED) return failed(concat("mmap of ", bytes, " bytes"), errno);
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  return {};
}

Result<Area> Area::in_memory(size_t bytes) {
  Area area;
  area.fd_ = ::memfd_create(area_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (area.fd_ < 0) return failed("memfd_create", errno);
  if (auto status = area.map(bytes); !status.ok()) return status;
  // Forbids changes of the size. Otherwise another process could open the memory through /proc and truncate it while this
  // process writes.
  if (::fcntl(area.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("sealing the memory", errno);
  return area;
}

Result<Area> Area::in_file(const std::string& folder, const std::string& name, size_t bytes) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return failed(folder, errno);
  const auto path = folder + "/" + name;
  Area area;
  area.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (area.fd_ < 0) return failed(path, errno);
  auto status = area.map(bytes);
  if (status.ok()) return area;
  ::unlink(path.c_str());
  // the reason comes before the path, because the note in the record's header has a limited length
  return Status(status.code(), status.message() + " (" + path + ")");
}

Result<Area> Area::private_memory(size_t bytes) {
  Area area;
  if (auto status = area.map(bytes); !status.ok()) return status;
  return area;
}

}  // namespace unisono::record

#include "record/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "record/layout.h"

namespace unisono::record {
namespace {

Status failed(const std::string& what, int error) { return {Code::unavailable, std::strerror(error) + (" (" + what + ")")}; }

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

// Blocks are reserved now: a full disk or memory limit is an error here, where later it would be a SIGBUS.
Status Area::map(size_t bytes) {
  rlimit limit{};  // growing a file beyond it would raise SIGXFSZ
  if (fd_ >= 0 && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return {Code::unavailable, "the limit on file sizes (ulimit -f) is below " + std::to_string(bytes) + " bytes"};
  }
  if (const int error = fd_ >= 0 ? ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes)) : 0; error != 0) {
    return failed("reserving " + std::to_string(bytes) + " bytes", error);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd_ >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd_, 0);
  if (data == MAP_FAILED) return failed("mmap of " + std::to_string(bytes) + " bytes", errno);
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  return {};
}

Result<Area> Area::in_memory(size_t bytes) {
  Area area;
  area.fd_ = ::memfd_create(area_name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (area.fd_ < 0) return failed("memfd_create", errno);
  if (auto status = area.map(bytes); !status.ok()) return status;
  // A process that opens the memory through /proc must not be able to truncate it under the writer.
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
  return Status(status.code(), status.message() + " (" + path + ")");  // the reason first: a note in a record is short
}

Result<Area> Area::unseen(size_t bytes) {
  Area area;
  if (auto status = area.map(bytes); !status.ok()) return status;
  return area;
}

}  // namespace unisono::record

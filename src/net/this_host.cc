#include "net/this_host.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/tcp_socket.h"

namespace unisono {

Result<HostIdentity> host_identity() {
  std::array<char, 36> boot{};
  const Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  struct stat space {};
  if (!file.open() || ::read(file.get(), boot.data(), boot.size()) != static_cast<ssize_t>(boot.size()) ||
      ::stat("/proc/self/ns/net", &space) != 0) {
    return Status(Code::unsupported, "cannot read the boot id and the network name space from /proc: " + error_text(errno));
  }
  return HostIdentity{.boot = std::string(boot.data(), boot.size()), .network = space.st_ino};
}

}  // namespace unisono

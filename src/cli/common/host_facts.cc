#include "cli/common/host_facts.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "cli/common/descriptor.h"

namespace unisono::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Asks the kernel instead of reading /sys, because /sys may show a network name space that is not the one of this process.
std::vector<std::pair<std::string, uint32_t>> interfaces_up() {
  std::vector<std::pair<std::string, uint32_t>> found;
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto* const names = ::if_nameindex();
  for (auto* entry = names; socket && entry != nullptr && entry->if_index != 0; ++entry) {
    ifreq request{};
    std::strncpy(request.ifr_name, entry->if_name, IFNAMSIZ - 1);
    if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0 || (request.ifr_flags & IFF_UP) == 0) continue;
    if (::ioctl(socket.get(), SIOCGIFMTU, &request) == 0)
      found.emplace_back(entry->if_name, static_cast<uint32_t>(request.ifr_mtu));
  }
  if (names != nullptr) ::if_freenameindex(names);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  utsname system{};
  ::uname(&system);
  facts.host = system.nodename;
  facts.kernel = system.release;
  facts.processor = processor_name();
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) facts.cores = static_cast<uint32_t>(CPU_COUNT(&allowed));
  facts.congestion_control = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  facts.interfaces = interfaces_up();
  return facts;
}

}  // namespace unisono::cli

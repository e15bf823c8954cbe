#include "cli/host_facts.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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

std::vector<std::pair<std::string, uint32_t>> interfaces_up() {
  std::vector<std::pair<std::string, uint32_t>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/sys/class/net", error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    const auto flags = std::strtoul(first_line(entry->path() / "flags").c_str(), nullptr, 16);
    const auto mtu = static_cast<uint32_t>(std::strtoul(first_line(entry->path() / "mtu").c_str(), nullptr, 10));
    if ((flags & 1) != 0) found.emplace_back(name, mtu);
  }
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

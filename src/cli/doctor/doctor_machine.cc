#include "cli/doctor/doctor_machine.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/common/descriptor.h"
#include "cli/common/host_facts.h"
#include "cli/common/version.h"
#include "net/socket_address.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono::cli {
namespace {

constexpr int resolve_ms = 2000;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  return limit.rlim_cur;
}

// Returns how many cores the control group grants, or 0 if there is no limit. The file cpu.max contains a quota and a period in
// µs, such as "150000 100000". If the quota is "max", there is no limit.
double quota_of_control_group() {
  std::ifstream membership("/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    if (!line.starts_with("0::")) continue;
    const auto text = first_line("/sys/fs/cgroup" + line.substr(3) + "/cpu.max");
    const auto blank = text.find(' ');
    if (blank == std::string::npos || text.starts_with("max")) return 0;
    const double period = std::strtod(text.c_str() + blank, nullptr);
    return period > 0 ? std::strtod(text.c_str(), nullptr) / period : 0;
  }
  return 0;
}

void read_cores(MachineFacts& facts) {
  facts.cores_online = static_cast<uint32_t>(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) facts.cores_allowed.push_back(core);
    }
  }
  facts.cores_quota = quota_of_control_group();
}

void read_limits(MachineFacts& facts) {
  facts.descriptors = limit_of(RLIMIT_NOFILE);
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.file_bytes = limit_of(RLIMIT_FSIZE);
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0) return;
  facts.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  facts.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
}

// Reads the interfaces of this network name space. This asks the kernel, because /sys may show another name space.
void read_interfaces(MachineFacts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> held(list, ::freeifaddrs);
  const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    if (name.find(':') != std::string::npos ||
        std::ranges::any_of(facts.interfaces, [&](const auto& known) { return known.name == name; }))
      continue;
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    const bool has_mtu = ::ioctl(any.get(), SIOCGIFMTU, &request) == 0;
    facts.interfaces.push_back({.name = name,
                                .up = (entry->ifa_flags & IFF_UP) != 0,
                                .carrier = (entry->ifa_flags & IFF_RUNNING) != 0,
                                .mtu = has_mtu ? static_cast<uint32_t>(request.ifr_mtu) : 0});
  }
  std::sort(facts.interfaces.begin(), facts.interfaces.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

std::string kind_of(const InterfaceAddress& entry) {
  if (entry.address.is_loopback()) return "loopback";
  if (entry.is_virtual) return "virtual";
  return entry.address.is_link_local() ? "link-local" : "global";
}

std::string without_port(const TcpAddress& address) {
  auto text = address.to_string();
  text.resize(text.rfind(':'));
  return text.starts_with('[') ? text.substr(1, text.size() - 2) : text;
}

void read_offers(const std::string& interface, MachineFacts& facts) {
  facts.interface_asked = interface;
  auto all = list_interfaces();
  if (!all.ok()) {
    facts.interface_error = all.status().message();
    return;
  }
  sort_by_preference(*all);
  auto chosen = select_interface(*all, interface);
  if (!chosen.ok()) facts.interface_error = chosen.status().message();
  const auto add = [&](const InterfaceAddress& entry, bool offered) {
    facts.offers.push_back(
        {.address = without_port(entry.address), .interface = entry.interface, .kind = kind_of(entry), .offered = offered});
  };
  if (chosen.ok()) {
    for (const auto& entry : best_addresses(std::move(*chosen), offered_addresses_max)) add(entry, true);
  }
  for (const auto& entry : *all) {
    const auto text = without_port(entry.address);
    const bool known =
        std::any_of(facts.offers.begin(), facts.offers.end(), [&](const Offer& offer) { return offer.address == text; });
    if (!known) add(entry, false);
  }
}

void resolve_own_name(MachineFacts& facts) {
  auto resolver = Resolver::start(facts.host, 1);
  if (!resolver.ok()) {
    facts.name_error = resolver.status().message();
    return;
  }
  pollfd ready{resolver->ready(), POLLIN, 0};
  if (::poll(&ready, 1, resolve_ms) != 1) {
    facts.name_error = fmt::format("no answer from the name service within {} s", resolve_ms / 1000);
    return;
  }
  auto addresses = resolver->take();
  if (!addresses.ok()) facts.name_error = addresses.status().message();
  else {
    for (const auto& address : *addresses) facts.name_addresses.push_back(address.host());
  }
}

}  // namespace

MachineFacts read_machine(const std::string& interface) {
  const auto host = read_host_facts();
  MachineFacts facts;
  facts.host = host.host;
  facts.version = version_text;
  facts.processor = host.processor;
  facts.kernel = host.kernel;
  facts.congestion_control = host.congestion_control;
  facts.clock_source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  facts.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code error;
  facts.network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  read_cores(facts);
  read_limits(facts);
  read_interfaces(facts);
  read_offers(interface, facts);
  resolve_own_name(facts);
  return facts;
}

}  // namespace unisono::cli

#include "cli/launch/private_network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error_text.h"

namespace unisono::cli {
namespace {

constexpr uint32_t network = 10u << 24 | 77u << 16;  // 10.77.0.0/16; the private name space contains no other addresses
constexpr const char* interface_name = "link0";
// Size of the queue in which the kernel keeps packets for the reader. It must hold all packets that arrive while the reader
// waits for a core.
constexpr int queue_packets = 5000;

Status failed(const std::string& what, int error) {
  return Status(Code::unsupported, fmt::format("{}: {}{}", what, strerrordesc_np(error), descriptor_limit_text(error)));
}

bool write_file(const char* path, std::string_view text) {
  const Descriptor file(::open(path, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Leaves the network of the host. Root may do this directly. Other users need a new user name space, if the system allows them
// to create one.
Status leave_network() {
  constexpr int spaces = CLONE_NEWNET | CLONE_NEWUTS;
  if (::unshare(spaces) == 0) return {};
  const auto user = ::geteuid();
  const auto group = ::getegid();
  if (errno != EPERM || ::unshare(spaces | CLONE_NEWUSER) != 0) {
    return failed(
        "this process may not make network name spaces (that takes root, or user name spaces for all: sysctl "
        "kernel.unprivileged_userns_clone, user.max_user_namespaces)",
        errno);
  }
  const bool mapped = write_file("/proc/self/setgroups", "deny") &&
                      write_file("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) &&
                      write_file("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
  return mapped ? Status() : failed("cannot map the user into a new user name space", errno);
}

sockaddr_in address_of(uint32_t bits) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(bits);
  return address;
}

Status configure(int socket, const char* name, uint32_t address) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  const auto set = [&](unsigned long order) { return ::ioctl(socket, order, &request) == 0; };
  const auto set_address = [&](unsigned long order, uint32_t bits) {
    const auto value = address_of(bits);
    std::memcpy(&request.ifr_addr, &value, sizeof(value));
    return set(order);
  };
  if (address != 0) {
    request.ifr_mtu = private_mtu;
    bool good = set(SIOCSIFMTU);
    request.ifr_qlen = queue_packets;
    // This needs privileges outside the user name space. Without them, it fails, and the queue keeps the kernel's default of
    // 500 packets.
    (void)set(SIOCSIFTXQLEN);
    good = good && set_address(SIOCSIFADDR, address) && set_address(SIOCSIFNETMASK, 0xffff0000u);
    if (!good) return failed(fmt::format("cannot give interface {} its address", name), errno);
  }
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return set(SIOCSIFFLAGS) ? Status() : failed(fmt::format("cannot start interface {}", name), errno);
}

Result<Descriptor> make_interface() {
  Descriptor device(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device) return failed("cannot open /dev/net/tun (it must be there, and readable and writable for this user)", errno);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, interface_name, IFNAMSIZ - 1);
  if (::ioctl(device.get(), TUNSETIFF, &request) != 0) return failed("cannot make a TUN interface", errno);
  return device;
}

}  // namespace

std::string private_address(uint32_t rank) {
  const auto address = address_of(network + rank + 1);
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
  return text;
}

std::optional<uint32_t> receiver_of(std::string_view packet) {
  constexpr size_t header_bytes = 20, destination_at = 16;
  if (packet.size() < header_bytes || (static_cast<uint8_t>(packet[0]) >> 4) != 4) return std::nullopt;
  uint32_t address = 0;
  for (size_t i = 0; i < 4; ++i) address = address << 8 | static_cast<uint8_t>(packet[destination_at + i]);
  if (address <= network || address - network > private_ranks_max) return std::nullopt;
  return address - network - 1;
}

Result<Descriptor> enter_private_network(uint32_t rank) {
  if (auto left = leave_network(); !left.ok()) return left;
  // Turns IPv6 off, because each rank needs only one address. If the kernel has no IPv6, this file does not exist.
  (void)write_file("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
  const auto host = fmt::format("rank-{}", rank);
  if (::sethostname(host.data(), host.size()) != 0) return failed("cannot set the host name", errno);
  auto device = make_interface();
  if (!device.ok()) return device;
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return failed("no socket", errno);
  if (auto status = configure(socket.get(), "lo", 0); !status.ok()) return status;
  if (auto status = configure(socket.get(), interface_name, network + rank + 1); !status.ok()) return status;
  return device;
}

Status try_private_network() {
  Pipe answer;
  if (!make_pipe(answer)) return failed("no pipe", errno);
  const pid_t child = ::fork();
  if (child < 0) return failed("cannot start a process", errno);
  if (child == 0) {
    const auto status = enter_private_network(0).status();
    const auto& text = status.message();
    ::_exit(::write(answer.write.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  answer.write.reset();
  std::string message(4096, '\0');
  const auto got = ::read(answer.read.get(), message.data(), message.size());
  int wait_status = 0;
  ::waitpid(child, &wait_status, 0);
  if (wait_status != 0) return Status(Code::unsupported, "a process that tried it ended without an answer");
  message.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return message.empty() ? Status() : Status(Code::unsupported, message);
}

}  // namespace unisono::cli

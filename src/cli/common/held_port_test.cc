#include "cli/common/held_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>

namespace unisono::cli {
namespace {

// Binds the port and listens on it. Returns 0 or the errno.
int listen_on(uint16_t port, bool reuse, uint32_t address, Descriptor& socket) {
  socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int flag = reuse;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &flag, sizeof(flag));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  name.sin_addr.s_addr = htonl(address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) return errno;
  return ::listen(socket.get(), 8) == 0 ? 0 : errno;
}

TEST(HeldPort, rank_0_can_listen_on_a_held_port_at_any_address) {
  const auto held = HeldPort::take();
  ASSERT_NE(held.number(), 0);
  for (const uint32_t address : {INADDR_ANY, INADDR_LOOPBACK}) {
    Descriptor socket;
    EXPECT_EQ(listen_on(held.number(), true, address, socket), 0);
  }
}

TEST(HeldPort, a_held_port_is_not_given_to_other_sockets) {
  const auto held = HeldPort::take();
  Descriptor socket;
  EXPECT_EQ(listen_on(held.number(), false, INADDR_ANY, socket), EADDRINUSE);
}

TEST(HeldPort, jobs_at_once_get_different_ports) {
  std::vector<HeldPort> jobs;
  std::set<uint16_t> ports;
  for (int i = 0; i < 200; ++i) {
    jobs.push_back(HeldPort::take());
    ports.insert(jobs.back().number());
  }
  EXPECT_EQ(ports.size(), 200u);
  EXPECT_FALSE(ports.contains(0));
}

}  // namespace
}  // namespace unisono::cli

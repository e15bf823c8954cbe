// Tests of other programs at the rendezvous address, and of unauthenticated peers at the rendezvous server.
#include <fstream>
#include <thread>

#include "base/concat.h"
#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

Descriptor dial(const RendezvousAddress& address) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

// A program that listens at the rendezvous address.
class OtherProgram {
 public:
  OtherProgram(const ReservedPort& port, std::string says, bool hangs_up)
      : port_(port), says_(std::move(says)), hangs_up_(hangs_up), thread_([this] { run(); }) {}
  ~OtherProgram() {
    (void)shutdown(port_.fd(), SHUT_RDWR);  // ends a blocked accept()
    thread_.join();
  }

 private:
  void run() {
    std::vector<Descriptor> open;
    for (;;) {
      Descriptor socket(accept(port_.fd(), nullptr, nullptr));
      if (!socket.open()) return;
      (void)send_some(socket.get(), ByteView(reinterpret_cast<const std::byte*>(says_.data()), says_.size()));
      if (!hangs_up_) open.push_back(std::move(socket));
    }
  }
  const ReservedPort& port_;
  std::string says_;
  bool hangs_up_;
  std::thread thread_;
};

TEST(RendezvousSession, an_http_server_at_the_port_is_named_at_once) {
  ReservedPort port(true);
  const OtherProgram other(port, "HTTP/1.1 400 Bad Request\r\n\r\n", false);
  for (const uint32_t rank : {0u, 1u}) {
    auto met = meet(options_for(rank, 2, port.address())).get();
    expect_error(met.roster, Code::unavailable,
                 {"port " + port.number() + " is taken by another program: an HTTP server answered"});
  }
}

TEST(RendezvousSession, rank_0_detects_a_program_at_the_port_that_hangs_up) {
  ReservedPort port(true);
  const OtherProgram other(port, "", true);
  auto met = meet(options_for(0, 2, port.address())).get();
  expect_error(met.roster, Code::unavailable,
               {"port " + port.number() + " is taken by another program", "address already in use"});
}

TEST(RendezvousSession, a_silent_program_at_the_port_is_reported_at_the_deadline) {
  ReservedPort port(true);
  const OtherProgram other(port, "", false);
  auto met = meet(options_for(1, 2, port.address()), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"connection accepted now, but no answer yet"});
}

TEST(RendezvousSession, a_descriptor_that_is_not_a_listening_socket_is_refused) {
  ReservedPort port;
  auto options = options_for(0, 2, port.address());
  options.listen_fd = port.fd();
  expect_error(meet(options).get().roster, Code::invalid,
               {concat("UNISONO_LISTEN_FD=", port.fd(), " is not a listening socket")});
  options.listen_fd = 999'999;
  expect_error(meet(options).get().roster, Code::invalid, {"UNISONO_LISTEN_FD=999999"});
}

TEST(RendezvousSession, unauthenticated_peers_at_the_port_do_no_harm_and_are_counted) {
  ReservedPort port;
  auto zero = meet(options_for(0, 2, port.address()));
  Descriptor http;
  Descriptor silent;
  {
    // Rank 0 may not be up yet. So first wait until an attempt with another job name fails: only a serving rank 0 refuses it.
    auto wrong = meet(options_for(1, 2, port.address(), "other")).get();
    EXPECT_EQ(wrong.roster.status().code(), Code::invalid);
    http = dial(port.address());
    silent = dial(port.address());
    const std::string_view request = "GET / HTTP/1.1\r\n\r\n";
    ASSERT_EQ(send_some(http.get(), ByteView(reinterpret_cast<const std::byte*>(request.data()), request.size())),
              static_cast<ptrdiff_t>(request.size()));
    std::string reply(1000, '\0');
    const auto size = recv(http.get(), reply.data(), reply.size(), 0);
    EXPECT_NE(reply.substr(0, static_cast<size_t>(std::max<ptrdiff_t>(size, 0))).find("rendezvous port of a Unisono job"),
              std::string::npos);
  }
  EXPECT_TRUE(meet(options_for(1, 2, port.address())).get().roster.ok());
  const Met met = zero.get();
  EXPECT_TRUE(met.roster.ok());
  EXPECT_NE(met.session->describe().find("1 processes, 0 without our key, 1 HTTP clients"), std::string::npos)
      << met.session->describe();
}

}  // namespace
}  // namespace unisono

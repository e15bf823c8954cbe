// Support for tests of the rendezvous over real sockets and files: addresses, and ranks that meet there, each in its own
// thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono::test {

inline constexpr Nanos test_timeout = 20 * second;

inline std::vector<std::string> endpoints_of(uint32_t rank) { return {concat("tcp://10.0.0.1:", 1000 + rank)}; }

// A port that the kernel chose; no other program gets it while this object lives. If `listening`, the object's socket listens
// at the port, and rank 0 adopts the socket. Otherwise connections are refused until a server opens the port.
class ReservedPort {
 public:
  explicit ReservedPort(bool listening = false, int family = AF_INET)
      : family_(family), socket_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    (void)setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address{};
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    usable_ = socket_.open() && bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0;
    if (listening) usable_ = usable_ && listen(socket_.get(), 64) == 0;
    (void)getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                      : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  }
  bool usable() const { return usable_; }
  int fd() const { return socket_.get(); }
  RendezvousAddress address() const {
    return {
        .kind = RendezvousAddress::Kind::tcp, .host = family_ == AF_INET ? "127.0.0.1" : "::1", .port = number_, .path = {}};
  }
  std::string number() const { return std::to_string(number_); }

 private:
  int family_;
  Descriptor socket_;
  uint16_t number_ = 0;
  bool usable_ = false;
};

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "unisono-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline RendezvousAddress file_address(const std::string& path) {
  return {.kind = RendezvousAddress::Kind::file, .host = {}, .port = 0, .path = path};
}

inline ResolvedOptions options_for(uint32_t rank, uint32_t world, const RendezvousAddress& address,
                                   const std::string& job = "job") {
  ResolvedOptions options;
  options.rank = rank;
  options.world_size = world;
  options.rendezvous = address;
  options.job = job;
  return options;
}

inline ResolvedOptions joiner_for(const RendezvousAddress& address, const std::string& job = "job") {
  ResolvedOptions options = options_for(0, 0, address, job);
  options.join_running = true;
  return options;
}

using SessionPointer = std::unique_ptr<RendezvousSession>;
struct Met {
  SessionPointer session;
  Result<Roster> roster = Status(Code::internal, "not met");
};

inline SessionPointer open_session(const ResolvedOptions& options) {
  auto session = RendezvousSession::make(options, *random_peer_id(), endpoints_of(options.rank));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  return session.ok() ? std::move(*session) : nullptr;
}

inline std::future<Met> meet(const ResolvedOptions& options, Nanos timeout = test_timeout) {
  return std::async(std::launch::async, [options, timeout] {
    Met met;
    met.session = open_session(options);
    met.roster = met.session->meet(monotonic_now() + timeout);
    return met;
  });
}

inline std::vector<Met> meet_all(uint32_t world, const RendezvousAddress& address, int listen_fd = -1,
                                 const std::string& job = "job") {
  std::vector<std::future<Met>> futures;
  for (uint32_t i = 0; i < world; ++i) {
    auto options = options_for(world - 1 - i, world, address, job);  // rank 0 starts last, so the other ranks must wait for it
    if (options.rank == 0) options.listen_fd = listen_fd;
    futures.push_back(meet(options));
  }
  std::vector<Met> all(world);
  for (uint32_t i = 0; i < world; ++i) all[world - 1 - i] = futures[i].get();
  return all;
}

inline void expect_met(const std::vector<Met>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ASSERT_TRUE(all[rank].roster.ok()) << all[rank].roster.status().to_string();
    EXPECT_EQ(*all[rank].roster, *all[0].roster);
    EXPECT_EQ(all[rank].session->attending(), rank == 0);
    EXPECT_EQ(all[0].roster->members[rank].endpoints, endpoints_of(static_cast<uint32_t>(rank)));
    EXPECT_EQ(all[0].roster->members[rank].host, this_host_name());
    EXPECT_EQ(all[0].roster->members[rank].machine, this_machine());
    EXPECT_EQ(all[0].roster->members[rank].network, this_network());
    EXPECT_EQ(all[0].roster->members[rank].pid, getpid());
  }
}

inline void expect_error(const Result<Roster>& roster, Code code, std::initializer_list<std::string> parts) {
  ASSERT_FALSE(roster.ok());
  EXPECT_EQ(roster.status().code(), code) << roster.status().to_string();
  for (const auto& part : parts)
    EXPECT_NE(roster.status().message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << roster.status().message();
}

// Polls until `count` joiners wait. Between polls it sleeps until the session's descriptor is readable, or for a second.
inline std::vector<MemberRecord> wait_for_joiners(RendezvousSession& session, size_t count = 1) {
  const Nanos until = monotonic_now() + test_timeout;
  for (auto joiners = session.poll_joiners();; joiners = session.poll_joiners()) {
    if (joiners.size() >= count || monotonic_now() > until) return joiners;
    pollfd handle{session.wait_handle(), POLLIN, 0};
    const Nanos left = std::clamp<Nanos>(session.next_deadline() - monotonic_now(), 0, second);
    (void)poll(&handle, 1, static_cast<int>((left + millisecond - 1) / millisecond));
  }
}

inline Roster with_joiner(Roster roster, MemberRecord joiner) {
  roster.epoch++;
  joiner.rank = static_cast<uint32_t>(roster.members.size());
  roster.members.push_back(std::move(joiner));
  return roster;
}

}  // namespace unisono::test

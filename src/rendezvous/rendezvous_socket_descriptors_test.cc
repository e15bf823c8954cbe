// A rendezvous server in a process that has no free file descriptor.
#include <sys/epoll.h>

#include <filesystem>
#include <iterator>

#include "rendezvous/rendezvous_socket_server.h"
#include "rendezvous/rendezvous_socket_test_support.h"
#include "testing/descriptor_limit.h"

namespace unisono {
namespace {

using namespace test;

TEST(RendezvousDescriptors, a_server_that_cannot_accept_knows_since_when_and_why) {
  ReservedPort port(true);
  auto listening = Listening::adopt(port.fd());
  ASSERT_TRUE(listening.ok());
  rendezvous::ServerSettings settings;
  settings.make_key = random_roster_key;
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  auto server = SocketServer::make(std::move(*listening), std::move(settings), epoll.get());
  ASSERT_TRUE(server.ok());
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = bound_address(port.fd());
  ASSERT_EQ(connect(socket.get(), address.get(), address.size), 0);
  const Nanos now = monotonic_now();
  {
    const DescriptorLimit limit(0);
    (*server)->poll(now);
    (*server)->poll(now + second);
    EXPECT_EQ((*server)->exhausted_since(), now);
    EXPECT_EQ((*server)->accept_error(), limit.text());
  }
  (*server)->poll(now + 2 * second);
  EXPECT_EQ((*server)->machine().counters().connections, 1u);
  (*server)->poll(now + 3 * second);
  EXPECT_EQ((*server)->exhausted_since(), never);
}

TEST(RendezvousDescriptors, a_connection_that_says_nothing_gives_its_descriptor_to_a_new_one) {
  ReservedPort port(true);
  auto listening = Listening::adopt(port.fd());
  ASSERT_TRUE(listening.ok());
  rendezvous::ServerSettings settings;
  settings.make_key = random_roster_key;
  const Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  auto server = SocketServer::make(std::move(*listening), std::move(settings), epoll.get());
  ASSERT_TRUE(server.ok());
  const Descriptor sockets[] = {Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                                Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const auto address = bound_address(port.fd());
  const Nanos now = monotonic_now();
  ASSERT_EQ(connect(sockets[0].get(), address.get(), address.size), 0);
  (*server)->poll(now);
  const DescriptorLimit limit(0);
  ASSERT_EQ(connect(sockets[1].get(), address.get(), address.size), 0);
  (*server)->poll(now);
  EXPECT_EQ((*server)->machine().counters().connections, 2u);
  char byte = 0;
  EXPECT_EQ(recv(sockets[0].get(), &byte, 1, 0), 0) << "the first connection has ended";
  EXPECT_EQ(recv(sockets[1].get(), &byte, 1, MSG_DONTWAIT), -1) << "the second is open";
}

size_t count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Polls the sessions until this process has at most `most` descriptors.
void expect_descriptors(std::vector<Met>& all, size_t most) {
  const Nanos until = monotonic_now() + test_timeout;
  while (count_descriptors() > most && monotonic_now() < until) {
    for (auto& each : all) (void)each.session->poll_joiners();
  }
  EXPECT_EQ(count_descriptors(), most);
}

// The ranks of a group are in this process.
TEST(RendezvousDescriptors, after_all_have_joined_only_the_attending_rank_keeps_some_and_it_keeps_two) {
  Folder folder;
  ReservedPort port;
  for (const auto& address : {port.address(), file_address(folder.path("meet"))}) {
    const auto before = count_descriptors();
    auto all = meet_all(4, address);
    expect_met(all);
    for (auto& each : all) each.session->joined();
    expect_descriptors(all, before + 2);
    for (size_t rank = 1; rank < all.size(); ++rank) EXPECT_LT(all[rank].session->wait_handle(), 0);
    // The rank that has given up its connection to its own server still hears of processes that want to join, and answers them.
    auto future = meet(joiner_for(address));
    const auto joiners = wait_for_joiners(*all[0].session);
    ASSERT_EQ(joiners.size(), 1u);
    all[0].session->answer_joiner(joiners[0].id, with_joiner(*all[0].roster, joiners[0]));
    EXPECT_TRUE(future.get().roster.ok());
    expect_descriptors(all, before + 2);
    all.clear();
    EXPECT_EQ(count_descriptors(), before);
  }
}

}  // namespace
}  // namespace unisono

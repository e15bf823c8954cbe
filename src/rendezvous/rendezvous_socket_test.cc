// Ranks meet over a port, a file or a folder, or each gets the error of the failure.
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>

#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

TEST(RendezvousSession, this_machine_returns_a_constant_number) {
  EXPECT_NE(this_machine(), 0u);
  EXPECT_EQ(this_machine(), this_machine());
}

TEST(RendezvousSession, this_network_is_another_number_than_this_machine) {
  EXPECT_NE(this_network(), 0u);
  EXPECT_NE(this_network(), this_machine());
  EXPECT_EQ(this_network(), this_network());
}

TEST(RendezvousSession, ranks_meet_over_ipv4) {
  ReservedPort port(true);
  expect_met(meet_all(5, port.address(), port.fd()));
}

TEST(RendezvousSession, ranks_meet_over_ipv6) {
  ReservedPort port(true, AF_INET6);
  // Skipped on a kernel without IPv6 and in a container without an IPv6 loopback address.
  if (!port.usable()) GTEST_SKIP() << "SKIPPED: no IPv6 loopback here";
  expect_met(meet_all(3, port.address(), port.fd()));
}

TEST(RendezvousSession, rank_0_opens_the_port) {
  ReservedPort port;
  expect_met(meet_all(4, port.address()));
}

TEST(RendezvousSession, ranks_meet_by_name) {
  ReservedPort port;
  auto address = port.address();
  address.host = "localhost";
  expect_met(meet_all(3, address));
}

TEST(RendezvousSession, ranks_meet_in_a_folder_that_rank_0_makes) {
  Folder folder;
  expect_met(meet_all(4, file_address(folder.path("meet"))));
}

TEST(RendezvousSession, ranks_meet_beside_a_file) {
  Folder folder;
  std::ofstream(folder.path("meet.txt")) << "anything";
  expect_met(meet_all(3, file_address(folder.path("meet.txt"))));
}

TEST(RendezvousSession, ranks_meet_at_a_path_longer_than_a_socket_address) {
  Folder folder;
  const auto deep = folder.path(std::string(120, 'd'));
  ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
  expect_met(meet_all(2, file_address(deep + "/meet")));
}

TEST(RendezvousSession, a_socket_that_a_dead_run_left_is_replaced) {
  Folder folder;
  ASSERT_EQ(mkdir(folder.path("meet").c_str(), 0700), 0);
  {
    Descriptor dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto name = folder.path("meet/rendezvous.sock");
    ASSERT_LT(name.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  expect_met(meet_all(3, file_address(folder.path("meet"))));
}

TEST(RendezvousSession, successive_runs_meet_at_the_same_address) {
  Folder folder;
  ReservedPort port;
  for (int run = 0; run < 3; ++run) {
    expect_met(meet_all(2, file_address(folder.path("meet"))));
    expect_met(meet_all(2, port.address()));
  }
}

TEST(RendezvousSession, a_group_of_one_needs_no_address) {
  auto session = open_session(options_for(0, 1, {}));
  const auto roster = session->meet(monotonic_now() + test_timeout);
  ASSERT_TRUE(roster.ok());
  EXPECT_EQ(roster->members.size(), 1u);
  EXPECT_EQ(roster->epoch, 1u);
  EXPECT_TRUE(session->poll_joiners().empty());
}

TEST(RendezvousSession, an_address_without_a_server_is_reported_with_the_attempts) {
  ReservedPort port;
  auto met = meet(options_for(1, 2, port.address()), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable,
               {"tcp://127.0.0.1:" + port.number() + ": connection refused",
                " times over 0.3 s; tried address 127.0.0.1; is rank 0 running?"});
}

// Each host may look a name up as itself, or the user may have given each process its own host.
TEST(RendezvousSession, an_address_that_leads_to_this_host_is_called_so_unless_this_process_is_rank_0) {
  ReservedPort port;
  for (const auto* host : {"127.0.0.1", "127.0.1.1", "localhost"}) {
    auto address = port.address();
    address.host = host;
    auto met = meet(options_for(1, 2, address), 300 * millisecond).get();
    expect_error(met.roster, Code::unavailable,
                 {"; is rank 0 running?; this address is this host itself: if rank 0 runs on another host, give its address as "
                  "this host sees it (MASTER_ADDR, UNISONO_RENDEZVOUS), or correct the name's line in /etc/hosts"});
  }
  ReservedPort silent(true);  // nobody accepts, so rank 0 does not know what has its port
  auto zero = meet(options_for(0, 2, silent.address()), 300 * millisecond).get();
  ASSERT_FALSE(zero.roster.ok());
  EXPECT_EQ(zero.roster.status().message().find("this host itself"), std::string::npos) << zero.roster.status().message();
  Folder folder;
  auto by_file = meet(options_for(1, 2, file_address(folder.path("meet"))), 100 * millisecond).get();
  EXPECT_EQ(by_file.roster.status().message().find("this host itself"), std::string::npos) << by_file.roster.status().message();
}

TEST(RendezvousSession, an_address_elsewhere_is_not_called_this_host) {
  const RendezvousAddress address{.kind = RendezvousAddress::Kind::tcp, .host = "192.0.2.1", .port = 29500, .path = {}};
  auto met = meet(options_for(1, 2, address), 100 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"tcp://192.0.2.1:29500"});
  EXPECT_EQ(met.roster.status().message().find("this host itself"), std::string::npos) << met.roster.status().message();
}

TEST(RendezvousSession, a_missing_folder_is_reported) {
  Folder folder;
  auto met = meet(options_for(1, 2, file_address(folder.path("meet"))), 100 * millisecond).get();
  expect_error(met.roster, Code::unavailable,
               {"file://" + folder.path("meet"), "no such file or directory", "is rank 0 running?"});
}

TEST(RendezvousSession, a_folder_that_cannot_be_made_fails_at_once_on_rank_0) {
  Folder folder;
  auto met = meet(options_for(0, 2, file_address(folder.path("no/such/place")))).get();
  expect_error(met.roster, Code::invalid, {"cannot make the folder", "no such file or directory"});
}

TEST(RendezvousSession, a_name_that_does_not_resolve_is_reported_by_the_deadline) {
  const RendezvousAddress address{
      .kind = RendezvousAddress::Kind::tcp, .host = "no-such-host.invalid", .port = 29500, .path = {}};
  const Nanos start = monotonic_now();
  auto met = meet(options_for(1, 2, address), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"tcp://no-such-host.invalid:29500", "the name no-such-host.invalid "});
  EXPECT_LT(monotonic_now() - start, 5 * second) << "the system's resolver must not delay the error";
}

TEST(RendezvousSession, all_registered_ranks_learn_the_missing_rank) {
  ReservedPort port(true);
  auto options = options_for(0, 3, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options, 400 * millisecond);
  auto two = meet(options_for(2, 3, port.address()), 400 * millisecond);
  const std::string here = this_host_name();
  for (auto* future : {&zero, &two})
    expect_error(future->get().roster, Code::late,
                 {"rank 1 of 3 missing after 0.", "registered: rank 0 (host " + here, "rank 2 (host " + here});
}

TEST(RendezvousSession, a_late_rank_learns_why_no_group_has_formed) {
  ReservedPort port(true);
  auto options = options_for(0, 2, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options);
  auto wrong = meet(options_for(1, 4, port.address()));
  expect_error(zero.get().roster, Code::invalid, {"disagree on the world size"});
  expect_error(wrong.get().roster, Code::invalid, {"says 2", "says 4"});
}

TEST(RendezvousSession, another_job_at_the_address_is_refused_without_harm) {
  ReservedPort port;
  auto zero = meet(options_for(0, 2, port.address(), "first"));
  auto one = meet(options_for(1, 2, port.address(), "first"));
  Met first = zero.get();
  ASSERT_TRUE(first.roster.ok()) << first.roster.status().to_string();
  ASSERT_TRUE(one.get().roster.ok());
  auto intruder = meet(options_for(0, 2, port.address(), "second"));
  const Nanos until = monotonic_now() + test_timeout;
  while (intruder.wait_for(std::chrono::seconds(0)) != std::future_status::ready && monotonic_now() < until) {
    pollfd handle{first.session->wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 20);
    (void)first.session->poll_joiners();
  }
  expect_error(intruder.get().roster, Code::invalid, {"belongs to job 'second'", "serves another job at this address"});
  EXPECT_NE(first.session->describe().find("refused: 1 processes"), std::string::npos) << first.session->describe();
}

TEST(Identity, is_new_every_time) { EXPECT_NE(*random_peer_id(), *random_peer_id()); }

}  // namespace
}  // namespace unisono

// Meeting over a port, a file or a folder; and the error of each rank if that fails.
#include <sys/stat.h>
#include <sys/un.h>

#include <fstream>

#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

TEST(RendezvousSession, machines_have_a_number_that_stays) {
  EXPECT_NE(this_machine(), 0u);
  EXPECT_EQ(this_machine(), this_machine());
}

TEST(RendezvousSession, ranks_meet_over_ipv4) {
  ReservedPort port(true);
  expect_met(meet_all(5, port.address(), port.fd()));
}

TEST(RendezvousSession, ranks_meet_over_ipv6) {
  ReservedPort port(true, AF_INET6);
  // A kernel without IPv6, or a container without an IPv6 loopback address, cannot run this test.
  if (!port.usable()) GTEST_SKIP() << "SKIPPED: no IPv6 loopback here";
  expect_met(meet_all(3, port.address(), port.fd()));
}

TEST(RendezvousSession, rank_0_opens_the_port_that_its_launcher_holds) {
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

TEST(RendezvousSession, one_run_after_another_meets_at_one_place) {
  Folder folder;
  ReservedPort port;
  for (int run = 0; run < 3; ++run) {
    expect_met(meet_all(2, file_address(folder.path("meet"))));
    expect_met(meet_all(2, port.address()));
  }
}

TEST(RendezvousSession, a_group_of_one_needs_no_address) {
  auto session = open_session(options_for(0, 1, {}));
  const auto roster = session->meet(monotonic_now() + plenty);
  ASSERT_TRUE(roster.ok());
  EXPECT_EQ(roster->members.size(), 1u);
  EXPECT_EQ(roster->epoch, 1u);
  EXPECT_TRUE(session->poll_joiners().empty());
}

TEST(RendezvousSession, nobody_listening_is_said_with_what_was_tried) {
  ReservedPort port;
  auto met = meet(options_for(1, 2, port.address()), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable,
               {"tcp://127.0.0.1:" + port.number() + ": connection refused",
                " times over 0.3 s; tried address 127.0.0.1; is rank 0 up?"});
}

TEST(RendezvousSession, a_folder_that_nobody_made_is_said) {
  Folder folder;
  auto met = meet(options_for(1, 2, file_address(folder.path("meet"))), 100 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"file://" + folder.path("meet"), "no such file or directory", "is rank 0 up?"});
}

TEST(RendezvousSession, a_place_that_cannot_be_made_fails_at_once_on_rank_0) {
  Folder folder;
  auto met = meet(options_for(0, 2, file_address(folder.path("no/such/place")))).get();
  expect_error(met.roster, Code::invalid, {"cannot make the folder", "no such file or directory"});
}

TEST(RendezvousSession, a_name_that_does_not_resolve_is_said_by_the_deadline) {
  const RendezvousAddress address{
      .kind = RendezvousAddress::Kind::tcp, .host = "no-such-host.invalid", .port = 29500, .path = {}};
  const Nanos start = monotonic_now();
  auto met = meet(options_for(1, 2, address), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"tcp://no-such-host.invalid:29500", "the name no-such-host.invalid "});
  EXPECT_LT(monotonic_now() - start, 5 * second) << "the system's resolver must not hold it up";
}

TEST(RendezvousSession, a_missing_rank_is_named_to_all_who_came) {
  ReservedPort port(true);
  auto options = options_for(0, 3, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options, 400 * millisecond);
  auto two = meet(options_for(2, 3, port.address()), 400 * millisecond);
  const std::string here = this_host_name();
  for (auto* future : {&zero, &two})
    expect_error(future->get().roster, Code::late,
                 {"rank 1 of 3 missing after 0.", "here: rank 0 (host " + here, "rank 2 (host " + here});
}

TEST(RendezvousSession, a_late_rank_is_told_why_there_is_no_group) {
  ReservedPort port(true);
  auto options = options_for(0, 2, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options);
  auto wrong = meet(options_for(1, 4, port.address()));
  expect_error(zero.get().roster, Code::invalid, {"disagree on the world size"});
  expect_error(wrong.get().roster, Code::invalid, {"says 2", "says 4"});
}

TEST(RendezvousSession, another_job_at_the_address_is_told_and_harms_nobody) {
  ReservedPort port;
  auto zero = meet(options_for(0, 2, port.address(), "first"));
  auto one = meet(options_for(1, 2, port.address(), "first"));
  Met first = zero.get();
  ASSERT_TRUE(first.roster.ok()) << first.roster.status().to_string();
  ASSERT_TRUE(one.get().roster.ok());
  auto intruder = meet(options_for(0, 2, port.address(), "second"));
  const Nanos until = monotonic_now() + plenty;
  while (intruder.wait_for(std::chrono::seconds(0)) != std::future_status::ready && monotonic_now() < until) {
    pollfd handle{first.session->wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 20);
    (void)first.session->poll_joiners();
  }
  expect_error(intruder.get().roster, Code::invalid, {"belongs to job 'second'", "serves job 'first'"});
  EXPECT_NE(first.session->describe().find("turned away: 1 processes"), std::string::npos) << first.session->describe();
}

TEST(Identity, is_new_every_time) { EXPECT_NE(*random_peer_id(), *random_peer_id()); }

}  // namespace
}  // namespace unisono

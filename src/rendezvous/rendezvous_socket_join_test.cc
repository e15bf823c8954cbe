// Tests of processes that wait to join a running group.
#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

TEST(RendezvousSession, a_joiner_is_announced_and_admitted) {
  ReservedPort port;
  auto all = meet_all(2, port.address());
  expect_met(all);
  auto future = meet(joiner_for(port.address()));
  const auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  EXPECT_TRUE(all[1].session->poll_joiners().empty());
  const Roster next = with_joiner(*all[0].roster, joiners[0]);
  all[0].session->answer_joiner(joiners[0].id, next);
  const Met joined = future.get();
  ASSERT_TRUE(joined.roster.ok()) << joined.roster.status().to_string();
  EXPECT_EQ(*joined.roster, next);
  EXPECT_TRUE(all[0].session->poll_joiners().empty());
}

TEST(RendezvousSession, a_joiner_gets_the_reason_why_it_is_not_admitted) {
  Folder folder;
  auto all = meet_all(1, file_address(folder.path("meet")));
  auto future = meet(joiner_for(file_address(folder.path("meet"))));
  const auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  all[0].session->answer_joiner(joiners[0].id, Status(Code::unavailable, "the group is closing"));
  expect_error(future.get().roster, Code::unavailable, {"the group is closing"});
}

TEST(RendezvousSession, a_joiner_that_is_not_admitted_gets_the_reason_by_its_deadline) {
  ReservedPort port;
  auto all = meet_all(1, port.address());
  auto future = meet(joiner_for(port.address()), 300 * millisecond);
  const Nanos until = monotonic_now() + test_timeout;
  while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready && monotonic_now() < until) {
    pollfd handle{all[0].session->wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 20);
    (void)all[0].session->poll_joiners();
  }
  expect_error(future.get().roster, Code::late, {"was not re-formed while this process waited to join"});
}

TEST(RendezvousSession, the_new_rank_0_serves_at_the_same_address_after_the_old_one_died) {
  Folder folder;
  ReservedPort port;
  for (const auto& address : {port.address(), file_address(folder.path("meet"))}) {
    auto all = meet_all(3, address);
    expect_met(all);
    Roster next = *all[0].roster;
    all[0].session.reset();
    next.epoch++;
    next.members.erase(next.members.begin());
    for (uint32_t rank = 0; rank < 2; ++rank) next.members[rank].rank = rank;
    all[1].session->attend(next);
    auto future = meet(joiner_for(address));
    const auto joiners = wait_for_joiners(*all[1].session);
    ASSERT_EQ(joiners.size(), 1u) << address.to_string();
    EXPECT_TRUE(all[1].session->attending());
    all[1].session->answer_joiner(joiners[0].id, with_joiner(next, joiners[0]));
    EXPECT_TRUE(future.get().roster.ok());
  }
}

TEST(RendezvousSession, closing_notifies_the_waiting_joiners) {
  ReservedPort port;
  auto all = meet_all(1, port.address());
  auto future = meet(joiner_for(port.address()));
  ASSERT_EQ(wait_for_joiners(*all[0].session).size(), 1u);
  all[0].session.reset();
  expect_error(future.get().roster, Code::unavailable, {"job 'job' has ended"});
}

}  // namespace
}  // namespace unisono

// Tests of the standalone rendezvous server, which outlives the groups that meet there.
#include <atomic>
#include <mutex>
#include <thread>

#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

// A standalone server in a separate thread.
class Standalone {
 public:
  explicit Standalone(const RendezvousAddress& listen) {
    std::promise<RendezvousAddress> ready;
    auto address = ready.get_future();
    thread_ = std::thread([this, listen, ready = std::move(ready)]() mutable {
      status_ = serve_rendezvous({.listen = listen}, stop_, [&](const RendezvousEvent& event) {
        if (event.kind == RendezvousEvent::Kind::listening) ready.set_value(event.address);
        const std::lock_guard lock(mutex_);
        events_ += event.job + ": " + event.text + "\n";
      });
    });
    address_ = address.get();
  }
  ~Standalone() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.to_string();
  }
  const RendezvousAddress& address() const { return address_; }
  // The server reports an event after it has sent the rosters, so the event may come a moment later.
  bool has_event(const std::string& text) {
    const auto limit = monotonic_now() + 5 * second;
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      const bool found = events_.find(text) != std::string::npos;
      if (found || monotonic_now() > limit) return found;
    }
  }

 private:
  std::atomic<bool> stop_ = false;
  RendezvousAddress address_;
  Status status_;
  std::mutex mutex_;
  std::string events_;
  std::thread thread_;
};

TEST(StandaloneRendezvous, serves_jobs_at_once_and_one_after_another) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto b = std::async(std::launch::async, [&] { return meet_all(3, server.address(), -1, "b"); });
  for (int run = 0; run < 3; ++run) expect_met(meet_all(2, server.address(), -1, "a"));
  expect_met(b.get());
  EXPECT_TRUE(server.has_event("a: 2 ranks\n"));
  EXPECT_TRUE(server.has_event("b: 3 ranks\n"));
}

TEST(StandaloneRendezvous, keeps_announcing_joiners_and_survives_rank_0) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto all = meet_all(2, server.address());
  expect_met(all);
  auto first = meet(joiner_for(server.address()));
  auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  Roster next = with_joiner(*all[0].roster, joiners[0]);
  all[0].session->answer_joiner(joiners[0].id, next);
  ASSERT_TRUE(first.get().roster.ok());
  all[0].session.reset();
  next.epoch++;
  next.members.erase(next.members.begin());
  for (uint32_t rank = 0; rank < 2; ++rank) next.members[rank].rank = rank;
  all[1].session->attend(next);
  auto second_joiner = meet(joiner_for(server.address()));
  joiners = wait_for_joiners(*all[1].session);
  ASSERT_EQ(joiners.size(), 1u);
  all[1].session->answer_joiner(joiners[0].id, with_joiner(next, joiners[0]));
  EXPECT_TRUE(second_joiner.get().roster.ok());
}

TEST(StandaloneRendezvous, takes_precedence_over_rank_0_at_a_file) {
  Folder folder;
  Standalone server(file_address(folder.path("meet")));
  expect_met(meet_all(2, server.address()));
}

TEST(StandaloneRendezvous, waiting_processes_learn_that_it_was_stopped) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto member = meet(options_for(1, 2, server.address(), "a"));
  auto joiner = meet(joiner_for(server.address(), "b"));
  const Nanos until = monotonic_now() + test_timeout;
  while ((!server.has_event("a: rank 1 ") || !server.has_event("b: joiner ")) && monotonic_now() < until)
    std::this_thread::yield();
  server.stop();
  expect_error(member.get().roster, Code::unavailable, {"was stopped"});
  expect_error(joiner.get().roster, Code::unavailable, {"was stopped"});
}

TEST(StandaloneRendezvous, reports_that_its_port_is_taken) {
  ReservedPort port(true);
  std::atomic<bool> stop = false;
  const auto status = serve_rendezvous({.listen = port.address()}, stop, {});
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("address already in use (taken by another program)"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace unisono

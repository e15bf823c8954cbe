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
  explicit Standalone(const RendezvousAddress& listen, std::vector<SecretKey> keys = {}) {
    std::promise<RendezvousAddress> ready;
    auto address = ready.get_future();
    thread_ = std::thread([this, listen, keys = std::move(keys), ready = std::move(ready)]() mutable {
      status_ = serve_rendezvous({.listen = listen, .keys = keys}, stop_, [&](const RendezvousEvent& event) {
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

TEST(StandaloneRendezvous, keeps_jobs_of_different_keys_apart_even_if_their_names_are_equal) {
  const std::vector<SecretKey> keys{*SecretKey::draw(), *SecretKey::draw()};
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}}, keys);
  const auto with = [&](const SecretKey& key, uint32_t rank, uint32_t world) {
    return std::async(std::launch::async, [&server, tls = *TlsContext::make({key}), rank, world] {
      Met met;
      const auto options = options_for(rank, world, server.address(), "default");
      met.session = std::move(*RendezvousSession::make(options, *random_peer_id(), endpoints_of(rank), tls));
      met.roster = met.session->meet(monotonic_now() + test_timeout);
      return met;
    });
  };
  std::vector<std::future<Met>> futures;
  for (uint32_t rank = 0; rank < 2; ++rank) futures.push_back(with(keys[0], rank, 2));
  for (uint32_t rank = 0; rank < 3; ++rank) futures.push_back(with(keys[1], rank, 3));
  std::vector<Met> all;
  for (auto& future : futures) all.push_back(future.get());
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i].roster.ok()) << all[i].roster.status().to_string();
    EXPECT_EQ(all[i].roster->members.size(), i < 2 ? 2u : 3u);
  }
  EXPECT_TRUE(server.has_event("default (key 1): 2 ranks\n"));
  EXPECT_TRUE(server.has_event("default (key 2): 3 ranks\n"));
  expect_error(with(*SecretKey::draw(), 0, 1).get().roster, Code::invalid, {"authentication failed"});
  expect_error(meet(options_for(0, 1, server.address(), "default")).get().roster, Code::invalid, {"this process has none"});
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

// Joining over real sockets, with time set by the test. Checks how long attempts are repeated and which errors are reported.
#include "elastic/peer/elastic_driver.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <set>

#include "base/concat.h"
#include "elastic/seeds/seed_test_support.h"
#include "net/socket_address.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_socket.h"
#include "testing/temporary_folder.h"

namespace unisono {

namespace {

using test::comes_true;
using test::make_driver;
using test::options_of;

// Reserves a port chosen by the kernel. No process listens at the port unless the test starts one there.
class QuietPort {
 public:
  QuietPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    const auto here = *parse_tcp_address("127.0.0.1");
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(::bind(socket_.get(), here.get(), here.bytes), 0);
  }
  uint16_t number() const { return local_address(socket_.get()).port(); }
  std::string seed() const { return concat("127.0.0.1:", number()); }

 private:
  const Descriptor socket_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Advances the time by one step, and polls all drivers.
struct Clock {
  bool poll(const std::vector<ElasticDriver*>& drivers) {
    now += step;
    for (auto* driver : drivers) (void)driver->poll(now);
    return true;
  }
  Nanos now = 0;
  Nanos step = 5 * millisecond;
};

}  // namespace

TEST(ElasticDriver, a_seed_without_a_listener_is_asked_again_until_one_listens) {
  const QuietPort port;
  const auto joiner = make_driver(options_of(port.seed(), false));
  ASSERT_NE(joiner, nullptr);
  Clock clock;
  std::set<Nanos> attempts;
  ASSERT_TRUE(comes_true([&] {
    clock.poll({joiner.get()});
    if (joiner->next_attempt() != never) attempts.insert(joiner->next_attempt());
    return attempts.size() == 3;
  }));
  EXPECT_TRUE(joiner->failure().message().starts_with("NO_SEED")) << joiner->failure().to_string();
  EXPECT_EQ(joiner->failure().code(), Code::unavailable);
  EXPECT_LE(*attempts.rbegin(), clock.now + ElasticDriver::retry_join);
  auto late = options_of("127.0.0.1:1", true);
  late.port = port.number();
  const auto founder = make_driver(late);
  ASSERT_NE(founder, nullptr);
  EXPECT_TRUE(comes_true([&] {
    return clock.poll({founder.get(), joiner.get()}) && joiner->peer().joined();
  })) << joiner->failure().to_string();
  EXPECT_TRUE(joiner->failure().ok()) << joiner->failure().to_string();
}

TEST(ElasticDriver, joining_fails_after_join_timeout_and_names_each_seed_with_its_reason) {
  const QuietPort one, another;
  auto options = options_of(one.seed(), false);
  options.seeds = {one.seed(), another.seed(), "file:/nonexistent/seeds"};
  options.join_timeout = Milliseconds(20'000);
  const auto joiner = make_driver(options);
  ASSERT_NE(joiner, nullptr);
  Clock clock;
  ASSERT_TRUE(comes_true([&] { return clock.poll({joiner.get()}) && clock.now >= 10 * second; }));
  EXPECT_TRUE(joiner->peer().join_status().ok() || joiner->next_attempt() != never) << "there is time left";
  ASSERT_TRUE(comes_true([&] { return clock.poll({joiner.get()}) && clock.now >= 21 * second; }));
  EXPECT_EQ(joiner->next_attempt(), never);
  for (const auto until = clock.now + 4 * ElasticDriver::retry_join; clock.now < until;) {
    clock.poll({joiner.get()});
    ASSERT_EQ(joiner->failure().code(), Code::unavailable) << "nothing is begun again";
  }
  const auto& said = joiner->failure().message();
  EXPECT_TRUE(said.starts_with("NO_SEED: none of 2 seeds answers")) << said;
  for (const auto* port : {&one, &another}) {
    const auto at = said.find(port->seed() + " (");
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_TRUE(contains(said.substr(at, said.find(')', at) - at), "refused")) << said;
  }
  EXPECT_TRUE(contains(said, "/nonexistent/seeds")) << said;
  EXPECT_EQ(joiner->peer().keeper().newest_layout(), nullptr) << "it founds no run by itself";
}

// The system completes the connection, but no process ever answers.
TEST(ElasticDriver, joining_ends_at_join_timeout_although_a_seed_is_silent) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto here = *parse_tcp_address("127.0.0.1");
  ASSERT_EQ(::bind(listener.get(), here.get(), here.bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const auto port = local_address(listener.get()).port();
  for (const int timeout_ms : {700, 3000, 4900, 12'000}) {
    auto options = options_of(concat("127.0.0.1:", port), false);
    options.join_timeout = Milliseconds(timeout_ms);
    const auto begin = monotonic_now();
    const auto joiner = make_driver(options);
    ASSERT_NE(joiner, nullptr);
    const auto spent = monotonic_now() - begin;  // making the driver counts, too
    Clock clock;
    ASSERT_TRUE(comes_true([&] {
      return clock.poll({joiner.get()}) && joiner->next_attempt() == never && !joiner->failure().ok();
    })) << timeout_ms;
    EXPECT_TRUE(joiner->failure().message().starts_with("NO_SEED: none of 1 seeds answers")) << joiner->failure().to_string();
    EXPECT_LE(clock.now, timeout_ms * millisecond + clock.step);
    EXPECT_GE(clock.now + spent, timeout_ms * millisecond - ElasticDriver::retry_join);
  }
}

TEST(ElasticDriver, two_processes_that_look_for_each_other_learn_that_nobody_has_begun_the_run) {
  const QuietPort ports[2];
  std::unique_ptr<ElasticDriver> drivers[2];
  for (size_t i = 0; i < 2; ++i) {
    auto options = options_of(ports[1 - i].seed(), false);
    options.name = concat("worker ", i);
    options.port = ports[i].number();
    options.join_timeout = Milliseconds(3000);
    drivers[i] = make_driver(options);
    ASSERT_NE(drivers[i], nullptr);
  }
  Clock clock{.step = millisecond};
  ASSERT_TRUE(comes_true([&] { return clock.poll({drivers[0].get(), drivers[1].get()}) && clock.now > 3 * second; }));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(drivers[i]->failure().code(), Code::unavailable);
    EXPECT_EQ(drivers[i]->next_attempt(), never);
    EXPECT_EQ(drivers[i]->failure().message(),
              concat("NO_SEED: none of 1 seeds is in run \"run\" yet: tcp://", ports[1 - i].seed(), " (worker ", 1 - i,
                     " is itself still looking for the run). Has anybody begun the run? One process must begin it, with the "
                     "option found"));
  }
}

TEST(ElasticDriver, an_answer_from_another_run_ends_joining_at_once) {
  auto other = options_of("127.0.0.1:1", true);
  other.run_id = "another";
  const auto founder = make_driver(other);
  ASSERT_NE(founder, nullptr);
  const auto joiner = make_driver(options_of(founder->status(0).endpoints.front(), false));
  ASSERT_NE(joiner, nullptr);
  Clock clock;
  ASSERT_TRUE(comes_true([&] { return clock.poll({founder.get(), joiner.get()}) && !joiner->failure().ok(); }));
  EXPECT_EQ(joiner->failure().code(), Code::invalid);
  EXPECT_TRUE(joiner->failure().message().starts_with("RUN_ID_MISMATCH")) << joiner->failure().to_string();
  EXPECT_EQ(joiner->next_attempt(), never);
  for (const auto until = clock.now + 2 * ElasticDriver::retry_join; clock.now < until;)
    clock.poll({founder.get(), joiner.get()});
  EXPECT_EQ(joiner->next_attempt(), never);
  EXPECT_FALSE(joiner->failure().ok()) << "nothing was begun again";
  EXPECT_TRUE(comes_true([&] { return clock.poll({founder.get()}) && founder->status(clock.now).refused > 0; }));
  EXPECT_TRUE(contains(founder->status(clock.now).last_refusal, "the last from 127.0.0.1:"))
      << founder->status(clock.now).last_refusal;
}

TEST(ElasticDriver, a_wrong_key_is_counted_and_named) {
  auto with_key = options_of("127.0.0.1:1", true);
  with_key.key = std::string(64, 'a');
  const auto founder = make_driver(with_key);
  ASSERT_NE(founder, nullptr);
  for (const auto& key : {std::string(64, 'b'), std::string()}) {
    const auto before = founder->status(0).refused;
    auto options = options_of(founder->status(0).endpoints.front(), false);
    options.key = key;
    const auto joiner = make_driver(options);
    ASSERT_NE(joiner, nullptr);
    Clock clock;
    ASSERT_TRUE(comes_true([&] { return clock.poll({founder.get(), joiner.get()}) && !joiner->failure().ok(); }));
    EXPECT_TRUE(joiner->failure().message().starts_with("RUN_ID_MISMATCH")) << joiner->failure().to_string();
    const auto status = founder->status(clock.now);
    EXPECT_GT(status.refused, before);
    EXPECT_TRUE(contains(status.last_refusal, "127.0.0.1:")) << status.last_refusal;
    EXPECT_TRUE(contains(status.last_refusal, "authentication failed")) << status.last_refusal;
    EXPECT_TRUE(contains(joiner->failure().message(), "authentication failed")) << joiner->failure().to_string();
  }
}

TEST(ElasticDriver, a_run_is_unprotected_if_other_hosts_may_reach_it_and_nobody_says_that_this_is_right) {
  auto options = options_of("127.0.0.1:1", true);
  EXPECT_FALSE(make_driver(options)->is_unprotected()) << "it listens on this host only";
  options.interface.clear();
  const auto everywhere = make_driver(options);
  const auto endpoints = everywhere->status(0).endpoints;
  if (std::ranges::all_of(endpoints,
                          [](const auto& each) { return each.starts_with("tcp://127.") || each.starts_with("tcp://[::1]"); }))
    GTEST_SKIP() << "this host has no other address";
  EXPECT_TRUE(everywhere->is_unprotected());
  options.security = Security::off;
  EXPECT_FALSE(make_driver(options)->is_unprotected());
  options.security = Security::automatic;
  options.key = std::string(64, 'a');
  EXPECT_FALSE(make_driver(options)->is_unprotected());
}

TEST(ElasticDriver, seeds_are_looked_up_again_for_each_attempt) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  const QuietPort one, another;
  std::ofstream(path) << one.seed() << '\n';
  const auto founder = make_driver(options_of("127.0.0.1:1", true));
  auto options = options_of("file:" + path, false);
  options.join_timeout = Milliseconds(3'600'000);  // one hour of the test's time, which runs faster than real time
  const auto joiner = make_driver(options);
  ASSERT_TRUE(founder != nullptr && joiner != nullptr);
  Clock clock;
  const auto asked = [&](const QuietPort& port) {
    return clock.poll({founder.get(), joiner.get()}) && contains(joiner->failure().message(), port.seed());
  };
  ASSERT_TRUE(comes_true([&] { return asked(one); }));
  std::ofstream(path) << another.seed() << '\n';
  ASSERT_TRUE(comes_true([&] { return asked(another) && !contains(joiner->failure().message(), one.seed()); }))
      << joiner->failure().to_string();
  std::ofstream(path) << founder->status(0).endpoints.front() << '\n';
  EXPECT_TRUE(comes_true([&] {
    return clock.poll({founder.get(), joiner.get()}) && joiner->peer().joined();
  })) << joiner->failure().to_string();
}

}  // namespace unisono

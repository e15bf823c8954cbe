// Seeds found through OpenDHT, with a separate table on this host. All traffic stays on the loopback interface, and the kernel
// chooses all ports.
#include "elastic/seeds/seed_dht.h"

#include <gtest/gtest.h>
#include <opendht/dhtrunner.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/concat.h"
#include "elastic/peer/elastic_driver.h"
#include "elastic/seeds/elastic_options.h"
#include "elastic/seeds/seed_finder.h"
#include "elastic/seeds/seed_record.h"
#include "elastic/seeds/seed_test_support.h"
#include "testing/temporary_folder.h"
#include "unisono/elastic.h"

namespace unisono {

namespace {

using test::options_of;

using Clock = std::chrono::steady_clock;

constexpr Nanos look_up_timeout = 3 * second;

TcpAddress loopback(uint16_t port) {
  auto address = *parse_tcp_address("127.0.0.1");
  address.set_port(port);
  return address;
}

// A node of the table that is not part of any elastic run.
class Node {
 public:
  Node() {
    dht::DhtRunner::Config config;
    const auto address = loopback(0);
    config.bind4 = dht::SockAddr(address.storage, address.bytes);
    runner_.run(config, {});
  }
  ~Node() { runner_.join(); }
  uint16_t port() const { return runner_.getBoundPort(AF_INET); }
  std::string seed() const { return concat("dht:127.0.0.1:", port()); }

  // Joins the table of the other node. Returns false if that fails.
  bool bootstrap_from(const Node& other) {
    std::promise<bool> met;
    const auto address = loopback(other.port());
    runner_.bootstrap(dht::SockAddr(address.storage, address.bytes), [&](bool ok) { met.set_value(ok); });
    return met.get_future().get();
  }
  bool put(const std::string& run_id, const std::string& text, const std::string& type = "unisono-elastic") {
    auto value = std::make_shared<dht::Value>(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    value->user_type = type;
    std::promise<bool> put;
    const dht::DoneCallbackSimple done = [&](bool ok) { put.set_value(ok); };
    runner_.put(dht::InfoHash::get("unisono/elastic/" + run_id), value, done);
    return put.get_future().get();
  }
  size_t records(const std::string& run_id) {
    return runner_.get(dht::InfoHash::get("unisono/elastic/" + run_id)).get().size();
  }

 private:
  dht::DhtRunner runner_;
};

std::unique_ptr<SeedDht> make_seeds(const std::vector<std::string>& addresses, uint64_t seed) {
  auto made = SeedDht::make({.run_id = "run", .addresses = addresses, .bind = {loopback(0)}, .seed = seed});
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Repeats the look-up until it finds another process, for at most 10 s. That process may have started a moment ago, and its
// record may not have reached the table yet.
SeedDht::Found look_up(SeedDht& seeds, const Node& node) {
  const std::vector<TcpAddress> nodes{loopback(node.port())};
  const auto begin = Clock::now();
  for (;;) {
    auto found = seeds.look_up(nodes, look_up_timeout);
    if (!found.addresses.empty() || seconds_since(begin) > 10) return found;
  }
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open)));
}

// A bound UDP socket that never answers.
class SilentSocket {
 public:
  SilentSocket() : fd_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    const auto address = loopback(0);
    EXPECT_EQ(::bind(fd_, address.get(), address.bytes), 0);
  }
  ~SilentSocket() { ::close(fd_); }
  TcpAddress address() const { return local_address(fd_); }

 private:
  const int fd_;
};

}  // namespace

TEST(SeedDht, nodes_of_a_table_are_read_in_every_form) {
  EXPECT_EQ(*parse_seed("dht:bootstrap.example"), (SeedName{"bootstrap.example", 4222, true}));
  EXPECT_EQ(*parse_seed("dht:10.0.0.1:4000"), (SeedName{"10.0.0.1", 4000, true}));
  EXPECT_EQ(*parse_seed("dht:[::1]:4000"), (SeedName{"::1", 4000, true}));
  EXPECT_EQ(*parse_seed("dht:[::1]"), (SeedName{"::1", 4222, true}));
  for (const char* text : {"dht:", "dht::5", "dht:host:", "dht:host:0", "dht:host:65536", "dht:::1:5", "dht:[]"})
    EXPECT_FALSE(parse_seed(text).ok()) << text;
}

TEST(SeedDht, processes_find_records_of_others_but_not_their_own) {
  const Node node;
  const std::vector<std::string> of_one{"tcp://127.0.0.1:4001"}, of_other{"tcp://127.0.0.1:4002", "tcp://[::1]:4002"};
  const auto one = make_seeds(of_one, 1), other = make_seeds(of_other, 2);
  const auto alone = one->look_up(std::vector{loopback(node.port())}, look_up_timeout);
  EXPECT_TRUE(alone.addresses.empty());
  EXPECT_NE(alone.failure.find("another process"), std::string::npos) << alone.failure;
  EXPECT_EQ(look_up(*other, node).addresses, of_one);
  auto both = look_up(*one, node).addresses;
  std::ranges::sort(both);
  EXPECT_EQ(both, of_other);
}

TEST(SeedDht, a_process_without_addresses_stores_no_record) {
  const Node node;
  const auto client = make_seeds({}, 1), other = make_seeds({"tcp://127.0.0.1:4002"}, 2);
  (void)client->look_up(std::vector{loopback(node.port())}, look_up_timeout);
  EXPECT_TRUE(other->look_up(std::vector{loopback(node.port())}, look_up_timeout).addresses.empty());
}

TEST(SeedDht, invalid_records_are_skipped) {
  Node node, unauthenticated;
  ASSERT_TRUE(unauthenticated.bootstrap_from(node));
  const auto good = write_seed_record(std::vector<std::string>{"tcp://127.0.0.1:4001"});
  EXPECT_TRUE(unauthenticated.put("run", "nonsense"));
  EXPECT_TRUE(unauthenticated.put("run", ""));
  EXPECT_TRUE(unauthenticated.put("run", good + std::string(5000, 'x')));
  EXPECT_TRUE(unauthenticated.put("run", good + "tcp://0.0.0.0:1\ntcp://224.0.0.1:9\n" + std::string(200, 'y')));
  EXPECT_TRUE(
      unauthenticated.put("run", write_seed_record(std::vector<std::string>{"tcp://127.0.0.1:4009"}), "something else"));
  const auto seeds = make_seeds({}, 1);
  EXPECT_EQ(look_up(*seeds, node).addresses, std::vector<std::string>{"tcp://127.0.0.1:4001"});
}

TEST(SeedDht, a_look_up_returns_a_limited_number_of_addresses) {
  Node node, unauthenticated;
  ASSERT_TRUE(unauthenticated.bootstrap_from(node));
  for (int host = 0; host < 12; ++host) {
    std::vector<std::string> addresses;
    for (int port = 1; port <= 4; ++port) addresses.push_back(concat("tcp://10.0.0.", host, ':', port));
    EXPECT_TRUE(unauthenticated.put("run", write_seed_record(addresses)));
  }
  const auto seeds = make_seeds({}, 1);
  const auto found = look_up(*seeds, node).addresses;
  EXPECT_GT(found.size(), 3u);
  EXPECT_LE(found.size(), SeedDht::addresses_max);
}

TEST(SeedDht, a_silent_bootstrap_node_is_reported_in_time) {
  const SilentSocket silence;
  const auto seeds = make_seeds({}, 1);
  const auto begin = Clock::now();
  const auto found = seeds->look_up(std::vector{silence.address()}, 300 * millisecond);
  EXPECT_TRUE(found.addresses.empty());
  EXPECT_NE(found.failure.find("no answer in 300 ms"), std::string::npos) << found.failure;
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(SeedDht, a_look_up_ends_when_it_is_stopped) {
  const SilentSocket silence;
  const auto seeds = make_seeds({}, 1);
  auto waiting = std::async(std::launch::async, [&] { return seeds->look_up(std::vector{silence.address()}, 60 * second); });
  const auto begin = Clock::now();
  seeds->stop();
  EXPECT_TRUE(waiting.get().addresses.empty());
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(SeedDht, a_failed_bind_is_reported_with_its_reason_and_leaks_no_descriptor) {
  auto elsewhere = *parse_tcp_address("192.0.2.1");  // reserved for documentation, so no host has this address
  const auto descriptors = open_descriptors();
  for (int turn = 0; turn < 3; ++turn) {
    const auto made = SeedDht::make({.run_id = "run", .addresses = {}, .bind = {elsewhere}, .seed = 1});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::unavailable);
    EXPECT_EQ(made.status().message(), "OpenDHT: no UDP socket at 192.0.2.1:0: cannot assign requested address");
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(SeedDht, one_of_two_bind_addresses_is_enough) {
  const Node node;
  const auto made =
      SeedDht::make({.run_id = "run", .addresses = {}, .bind = {*parse_tcp_address("2001:db8::1"), loopback(0)}, .seed = 1});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_NE((*made)->look_up(std::vector{loopback(node.port())}, look_up_timeout).failure.find("another process"),
            std::string::npos);
}

TEST(SeedDht, leaks_no_descriptor) {
  const Node node;
  (void)make_seeds({}, 1);  // the first instance opens descriptors that OpenDHT keeps until the process ends
  const auto descriptors = open_descriptors();
  {
    const auto seeds = make_seeds({"tcp://127.0.0.1:4001"}, 1);
    EXPECT_GT(open_descriptors(), descriptors);
    (void)seeds->look_up(std::vector{loopback(node.port())}, look_up_timeout);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(SeedFinderByDht, the_destructor_ends_a_running_table_look_up) {
  const SilentSocket silence;
  const auto begin = Clock::now();
  {
    SeedFinder finder({.seeds = {"dht:" + silence.address().to_string()},
                       .dht_wait = 60 * second,
                       .dht = {.run_id = "run", .bind = {loopback(0)}, .seed = 1}});
    ASSERT_TRUE(finder.start(10 * second).ok());
    EXPECT_TRUE(finder.busy());
  }
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(SeedFinderByDht, a_table_that_the_file_no_longer_names_yields_no_addresses) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  Node node, unauthenticated;
  ASSERT_TRUE(unauthenticated.bootstrap_from(node));
  EXPECT_TRUE(unauthenticated.put("run", write_seed_record(std::vector<std::string>{"tcp://127.0.0.1:4001"})));
  std::ofstream(path) << node.seed() << '\n';
  SeedFinder finder({.seeds = {"file:" + path}, .dht = {.run_id = "run", .bind = {loopback(0)}, .seed = 1}});
  ASSERT_TRUE(finder.start(10 * second).ok());
  const auto look = [&](auto condition) {
    for (const auto begin = Clock::now(); !condition() && seconds_since(begin) < 20; std::this_thread::yield())
      finder.look_again();
    return condition();
  };
  EXPECT_TRUE(look([&] { return !finder.found().addresses.empty(); }));
  EXPECT_TRUE(finder.by_table());
  std::ofstream(path) << "";
  EXPECT_TRUE(look([&] { return finder.found().addresses.empty() && finder.found().failures.empty(); }));
  EXPECT_FALSE(finder.by_table());
}

TEST(ElasticByDht, processes_that_know_only_a_node_of_the_table_form_one_run) {
  const Node node;
  auto founder = Elastic::join(options_of(node.seed(), true));
  ASSERT_TRUE(founder.ok()) << founder.status().to_string();
  auto joiner = Elastic::join(options_of(node.seed(), false));
  ASSERT_TRUE(joiner.ok()) << joiner.status().to_string();
  EXPECT_EQ(joiner->status().peers.size(), 2u);
  const auto begin = Clock::now();
  EXPECT_TRUE(joiner->leave().ok());
  EXPECT_TRUE(founder->leave().ok());
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(ElasticByDht, a_joiner_finds_the_run_among_records_of_unauthenticated_peers) {
  Node node, unauthenticated;
  ASSERT_TRUE(unauthenticated.bootstrap_from(node));
  const SilentSocket silence;  // no process listens at this address by TCP
  EXPECT_TRUE(unauthenticated.put("run", "nonsense"));
  EXPECT_TRUE(
      unauthenticated.put("run", write_seed_record(std::vector{silence.address().endpoint(), concat("tcp://127.0.0.1:", 1)})));
  auto options = options_of(node.seed(), true);
  options.key = std::string(64, 'a');
  auto founder = Elastic::join(options);
  ASSERT_TRUE(founder.ok()) << founder.status().to_string();
  options.found = false;
  const auto joiner = Elastic::join(options);
  ASSERT_TRUE(joiner.ok()) << joiner.status().to_string();
  EXPECT_EQ(joiner->status().peers.size(), 2u);
}

TEST(ElasticByDht, a_joiner_that_reaches_another_run_keeps_looking) {
  Node node, unauthenticated;
  ASSERT_TRUE(unauthenticated.bootstrap_from(node));
  auto options = options_of(node.seed(), true);
  options.run_id = "another";
  auto another = Elastic::join(options);
  ASSERT_TRUE(another.ok()) << another.status().to_string();
  EXPECT_TRUE(unauthenticated.put("run", write_seed_record(another->status().endpoints)));
  auto joining = std::async(std::launch::async, [&] { return Elastic::join(options_of(node.seed(), false)); });
  const auto begin = Clock::now();
  while (another->status().refused == 0 && seconds_since(begin) < 10) std::this_thread::yield();
  const auto founder = Elastic::join(options_of(node.seed(), true));
  ASSERT_TRUE(founder.ok()) << founder.status().to_string();
  const auto joiner = joining.get();
  EXPECT_TRUE(joiner.ok()) << joiner.status().to_string();
}

TEST(ElasticByDht, the_error_names_an_unreachable_bootstrap_node) {
  const SilentSocket silence;
  auto options = options_of("dht:" + silence.address().to_string(), false);
  options.join_timeout = Milliseconds(600);
  const auto run = Elastic::join(options);
  ASSERT_FALSE(run.ok());
  EXPECT_TRUE(run.status().message().starts_with("NO_SEED")) << run.status().message();
  EXPECT_NE(run.status().message().find("dht:" + silence.address().to_string() + ": no answer in 300 ms"), std::string::npos)
      << run.status().message();
}

TEST(ElasticByDht, two_founders_of_one_run_find_each_other_and_unite) {
  const Node node;
  const auto one = ElasticDriver::make(options_of(node.seed(), true)),
             other = ElasticDriver::make(options_of(node.seed(), true));
  ASSERT_TRUE(one.ok() && other.ok());
  (*one)->start(0);
  (*other)->start(0);
  // Each pass advances the test's clock by 1 ms, which takes less real time. Healing is due every ten seconds of the test's
  // clock.
  const auto begin = Clock::now();
  const auto peers = [](const auto& driver) { return (*driver)->peer().keeper().roster().present().size(); };
  for (Nanos now = 0; peers(one) + peers(other) < 4 && seconds_since(begin) < 20; now += millisecond) {
    (void)(*one)->poll(now);
    (void)(*other)->poll(now);
  }
  EXPECT_EQ(peers(one) + peers(other), 4u);
}

TEST(ElasticByDht, a_founder_does_not_wait_for_the_table_and_may_leave_during_a_look_up) {
  const SilentSocket silence;
  auto begin = Clock::now();
  auto run = Elastic::join(options_of("dht:" + silence.address().to_string(), true));
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  EXPECT_LT(seconds_since(begin), 2);
  begin = Clock::now();
  EXPECT_TRUE(run->leave().ok());
  EXPECT_LT(seconds_since(begin), 2);
}

}  // namespace unisono

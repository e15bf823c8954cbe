// The address of the rendezvous, and a key, through a store.
#include "rendezvous/store_exchange.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;

class MapStore final : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    values[key] = value;
    return {};
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds) override {
    if (!values.contains(key)) return Status(Code::late, "nobody has set it");
    return values[key];
  }
  std::map<std::string, std::string> values;
};

// Ranks 0 and 1 meet through one store. The options can be changed before.
struct StoreExchange : testing::Test {
  ResolvedOptions zero = options_for(0, 2, {}), one = options_for(1, 2, {});
  MapStore store;
  std::string value() { return store.values["unisono/job/rendezvous"]; }
  // Returns rank 0's socket.
  Listening exchange() {
    auto listening = meet_by_store(zero, store);
    EXPECT_TRUE(listening.ok()) << listening.status().to_string();
    const auto read = meet_by_store(one, store);
    EXPECT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(one.rendezvous, zero.rendezvous);
    return std::move(**listening);
  }
  static KeySource new_key() { return {.key = *SecretKey::draw(), .name = "a test"}; }
};

TEST_F(StoreExchange, a_key_that_rank_0_has_drawn_reaches_the_others) {
  const auto listening = exchange();
  ASSERT_TRUE(zero.key.key && one.key.key);
  EXPECT_TRUE(*zero.key.key == *one.key.key);
  EXPECT_TRUE(value().ends_with(" " + zero.key.key->hex())) << "it is in the entry of the address";
  EXPECT_EQ(store.values.size(), 1u);
}

TEST_F(StoreExchange, every_run_has_another_key) {
  const auto first = exchange();
  const auto before = zero.key.key->hex();
  zero.key = one.key = {};
  const auto second = exchange();
  EXPECT_NE(zero.key.key->hex(), before);
}

TEST_F(StoreExchange, no_key_is_drawn_if_security_is_off) {
  zero.security = one.security = Security::off;
  const auto listening = exchange();
  EXPECT_FALSE(zero.key.given() || one.key.given());
  EXPECT_EQ(value(), zero.rendezvous.to_string());
}

TEST_F(StoreExchange, a_given_key_wins_and_is_not_stored) {
  zero.key = new_key();
  one.key = zero.key;
  const auto listening = exchange();
  EXPECT_EQ(value(), zero.rendezvous.to_string() + " key");
  EXPECT_EQ(one.key.name, "a test");
}

TEST_F(StoreExchange, a_given_key_is_kept_where_rank_0_has_drawn_one) {
  one.key = new_key();
  const auto listening = exchange();
  EXPECT_FALSE(*zero.key.key == *one.key.key) << "so the rendezvous refuses rank 1";
}

TEST_F(StoreExchange, a_rank_without_the_key_that_rank_0_was_given_is_refused_by_name_at_once) {
  zero.key = new_key();
  const auto listening = exchange();
  EXPECT_FALSE(one.key.given());
  const auto tls = *TlsContext::make({*zero.key.key});
  auto waiting = std::async(std::launch::async, [&] {
    auto session = RendezvousSession::make(zero, *random_peer_id(), endpoints_of(0), tls);
    return (*session)->meet(monotonic_now() + second);
  });
  expect_error(meet(one).get().roster, Code::invalid, {"this process has none: set UNISONO_KEY_FILE"});
  expect_error(waiting.get(), Code::late, {"rank 1 (host " + this_host_name() + "): authentication failed: "});
}

TEST_F(StoreExchange, a_key_from_the_store_does_not_suffice_if_security_is_required) {
  for (auto* options : {&zero, &one}) {
    options->security = Security::required;
    const auto met = meet_by_store(*options, store);
    EXPECT_EQ(met.status().code(), Code::invalid);
    EXPECT_NE(met.status().message().find("guards only against strangers on the data ports: set UNISONO_KEY_FILE"),
              std::string::npos);
  }
  EXPECT_TRUE(store.values.empty());
  zero.key = new_key();
  one.key = zero.key;
  const auto listening = exchange();
}

TEST_F(StoreExchange, an_entry_with_a_damaged_key_names_the_entry_and_not_the_key) {
  store.values["unisono/job/rendezvous"] = "tcp://127.0.0.1:1 0123456789";
  const auto met = meet_by_store(one, store);
  EXPECT_EQ(met.status().code(), Code::invalid);
  EXPECT_NE(met.status().message().find("unisono/job/rendezvous"), std::string::npos);
  EXPECT_EQ(met.status().message().find("0123456789"), std::string::npos);
}

TEST_F(StoreExchange, the_rendezvous_listens_at_the_chosen_interface_only) {
  zero.interface = "lo";
  const auto listening = exchange();
  EXPECT_EQ(zero.rendezvous.host, "127.0.0.1");
  EXPECT_EQ(bound_address(listening.socket()).host(), "127.0.0.1");
}

TEST(RendezvousListening, a_loopback_address_is_not_reachable_from_elsewhere) {
  for (const std::string host : {"127.0.0.1", "127.0.0.2", "localhost", "127.0.0.1,127.0.0.2"}) {
    const RendezvousAddress address{.kind = RendezvousAddress::Kind::tcp, .host = host, .port = 0, .path = {}};
    EXPECT_TRUE(is_on_this_host(address)) << host;
    const auto listening = Listening::open(address);
    ASSERT_TRUE(listening.ok()) << listening.status().to_string();
    EXPECT_TRUE(bound_address(listening->socket()).host().starts_with("127.")) << host;
  }
}

TEST(RendezvousListening, an_address_of_other_hosts_is_not_on_this_host) {
  for (const std::string host : {"10.0.0.1", "host-a", "127.0.0.1,10.0.0.1", "::", "", "localhost.example"})
    EXPECT_FALSE(is_on_this_host({.kind = RendezvousAddress::Kind::tcp, .host = host, .port = 1, .path = {}})) << host;
  EXPECT_TRUE(is_on_this_host({.kind = RendezvousAddress::Kind::tcp, .host = "::1", .port = 1, .path = {}}));
  EXPECT_TRUE(is_on_this_host(file_address("/meet")));
}

}  // namespace
}  // namespace unisono

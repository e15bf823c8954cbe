#include "transports/tcp/kernel_streams.h"

#include <gtest/gtest.h>

#include "base/error_text.h"
#include "testing/descriptor_limit.h"
#include "tests/conformance/stream_promises.h"

namespace unisono::conformance {
namespace {

InterfaceAddress at(const char* address) { return {.interface = "lo", .address = *parse_tcp_address(address)}; }

class KernelPlace final : public StreamPlace {
 public:
  explicit KernelPlace(const char* address) : address_(at(address)) {}
  StreamNetwork& dialling() override { return kernel_streams(); }
  StreamNetwork& listening() override { return kernel_streams(); }
  InterfaceAddress address() override { return address_; }
  void pass() override {}

 private:
  InterfaceAddress address_;
};

INSTANTIATE_TEST_SUITE_P(KernelV4, StreamPromise, testing::Values([] { return std::make_unique<KernelPlace>("127.0.0.1"); }));
INSTANTIATE_TEST_SUITE_P(KernelV6, StreamPromise, testing::Values([] { return std::make_unique<KernelPlace>("::1"); }));

struct KernelStreams : testing::Test {
  static std::unique_ptr<StreamWatcher> make_watcher() {
    auto made = kernel_streams().make_watcher(nullptr, 0);
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  }
  void listen(std::vector<InterfaceAddress> addresses) {
    auto made = kernel_streams().listen({.addresses = std::move(addresses)}, *watcher, 0);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    listener = std::move(*made);
  }
  std::unique_ptr<StreamSocket> dial(const char* address, std::span<const TcpAddress> sources = {}) {
    auto to = *parse_tcp_address(address);
    to.set_port(listener->port());
    int error = 0;
    auto socket = kernel_streams().connect(to, sources, error);
    EXPECT_EQ(error, 0);
    return socket;
  }
  // Waits until a connection is complete, and so waits at the listener.
  static void complete(StreamSocket& socket) {
    const auto limit = clock_now() + patience;
    while (!socket.connected() && clock_now() < limit) {}
    EXPECT_EQ(socket.connected(), 0);
  }

  std::unique_ptr<StreamWatcher> watcher = make_watcher();
  std::unique_ptr<StreamListener> listener;
};

TEST_F(KernelStreams, addresses_take_turns) {
  listen({at("127.0.0.1"), at("127.0.0.2")});
  std::vector<std::unique_ptr<StreamSocket>> dialled;
  for (const char* address : {"127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2"}) {
    dialled.push_back(dial(address));
    complete(*dialled.back());
  }
  std::string order;
  while (auto socket = listener->accept().socket) order += socket->local().to_string().at(8);
  EXPECT_EQ(order, "121212");
}

TEST_F(KernelStreams, without_addresses_every_address_of_both_families_is_open) {
  listen({});
  for (const char* address : {"127.0.0.1", "::1"}) {
    const auto socket = dial(address);
    complete(*socket);
    const auto accepted = listener->accept().socket;
    ASSERT_NE(accepted, nullptr) << address;
    EXPECT_EQ(accepted->remote().to_string(), socket->local().to_string());
  }
}

TEST_F(KernelStreams, a_connection_comes_from_the_source_of_its_kind) {
  listen({at("127.0.0.1")});
  const std::vector<TcpAddress> sources{*parse_tcp_address("::1"), *parse_tcp_address("10.9.8.7"),
                                        *parse_tcp_address("127.0.0.5")};
  const auto socket = dial("127.0.0.1", sources);
  EXPECT_TRUE(socket->local().same_host(sources[2])) << socket->local().to_string();
}

TEST_F(KernelStreams, a_connection_for_which_no_descriptor_is_free_is_dropped_and_reported_no_more) {
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  listen({at("127.0.0.1"), at("127.0.0.2")});
  const auto socket = dial("127.0.0.2");
  complete(*socket);
  std::array<uint64_t, 1> tags;
  EXPECT_EQ(watcher->ready(tags), 1u);
  StreamArrival arrival, next;
  {
    const test::DescriptorLimit none(0);
    arrival = listener->accept();
    next = listener->accept();
  }
  EXPECT_EQ(arrival.socket, nullptr);
  EXPECT_TRUE(is_out_of_descriptors(arrival.error));
  EXPECT_TRUE(arrival.dropped);
  EXPECT_FALSE(next.dropped);
  EXPECT_EQ(watcher->ready(tags), 0u);
  const auto later = dial("127.0.0.2");
  complete(*later);
  EXPECT_NE(listener->accept().socket, nullptr);
}

TEST_F(KernelStreams, a_watcher_that_cannot_be_made_says_why) {
  if (test::sanitizer_needs_descriptors) GTEST_SKIP() << test::sanitizer_needs_descriptors_text;
  const test::DescriptorLimit none(0);
  const auto made = kernel_streams().make_watcher(watcher.get(), 1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::unavailable);
  EXPECT_NE(made.status().message().find(none.text()), std::string::npos) << made.status().message();
}

}  // namespace
}  // namespace unisono::conformance

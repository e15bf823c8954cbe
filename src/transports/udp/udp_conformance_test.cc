#include "tests/conformance/transport_conformance.h"

#include "transports/udp/udp_test_support.h"
#include "transports/udp/udp_transport.h"

namespace unisono::conformance {
namespace {

std::unique_ptr<Cluster> udp_cluster(size_t count, const UdpOptions& common, const BadNetwork* bad = nullptr) {
  return ConnectorCluster<UdpTransport>::make(count, [&](size_t index, PeerId self) -> Result<std::unique_ptr<UdpTransport>> {
    auto options = common;
    options.self = self;
    options.clock = clock_now;
    if (bad == nullptr) return UdpTransport::make(options);
    auto sockets = UdpTransport::sockets(options);
    if (!sockets.ok()) return sockets.status();
    for (auto& socket : *sockets) {
      auto network = *bad;
      network.seed = test_seed() + index;
      socket = std::make_unique<BadSocket>(std::move(socket), network);
    }
    return UdpTransport::from_sockets(options, std::move(*sockets));
  });
}

constexpr BadNetwork bad_network{.lose = 0.1, .repeat = 0.05, .reorder = 0.1};

[[maybe_unused]] const bool v4 =
    test_transport("UdpV4", [](size_t count) { return udp_cluster(count, {.interface = "127.0.0.1"}); });
[[maybe_unused]] const bool v6 =
    test_transport("UdpV6", [](size_t count) { return udp_cluster(count, {.interface = "::1", .payload_checksum = true}); });
std::shared_ptr<const TlsContext> new_keys() { return *TlsContext::make({*SecretKey::draw()}); }
[[maybe_unused]] const bool encrypted = test_transport(
    "UdpEncrypted", [](size_t count) { return udp_cluster(count, {.interface = "127.0.0.1", .tls = new_keys()}); });
[[maybe_unused]] const bool encrypted_lossy = test_transport("UdpEncryptedLossy", [](size_t count) {
  const UdpOptions options{
      .interface = "127.0.0.1", .datagram_bytes_max = 8972, .tls = new_keys(), .cipher = SealCipher::chacha20_poly1305};
  return udp_cluster(count, options, &bad_network);
});
[[maybe_unused]] const bool lossy = test_transport("UdpLossy", [](size_t count) {
  return udp_cluster(count, {.interface = "127.0.0.1", .datagram_bytes_max = 8972}, &bad_network);
});

// Simulates a killed process: its port is closed, and it could send no goodbye.
TEST(UdpKernel, a_peer_that_died_without_a_goodbye_is_detected_by_its_closed_port) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    BadSocket* bad_socket = nullptr;
    auto cluster =
        ConnectorCluster<UdpTransport>::make(2, [&](size_t index, PeerId self) -> Result<std::unique_ptr<UdpTransport>> {
          UdpOptions options{.self = self, .interface = address, .keep_alive = 100 * millisecond};
          auto sockets = UdpTransport::sockets(options);
          if (!sockets.ok()) return sockets.status();
          auto bad = std::make_unique<BadSocket>(std::move(sockets->front()), BadNetwork{});
          if (index == 1) bad_socket = bad.get();
          sockets->front() = std::move(bad);
          return UdpTransport::from_sockets(options, std::move(*sockets));
        });
    ASSERT_NE(cluster, nullptr);
    Recorders recorders(*cluster);
    bad_socket->lose(1);
    cluster->destroy(1);
    const auto since = clock_now();
    ASSERT_TRUE(recorders.until([&] { return !recorders[0].losses.empty(); }));
    EXPECT_LT(clock_now() - since, 5 * second) << "by silence, not by the closed port";
    EXPECT_NE(recorders[0].losses[1].at(0).message().find("refused"), std::string::npos)
        << recorders[0].losses[1].at(0).message();
  }
}

}  // namespace
}  // namespace unisono::conformance

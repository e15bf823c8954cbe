#include "tests/conformance/transport_conformance.h"

#include "transports/tcp/tcp_transport.h"

namespace unisono::conformance {
namespace {

std::unique_ptr<Cluster> tcp_cluster(size_t count, const TcpOptions& common) {
  return ConnectorCluster<TcpTransport>::make(count, [&](size_t, PeerId self) {
    auto options = common;
    options.self = self;
    return TcpTransport::make(options);
  });
}

[[maybe_unused]] const bool v4 =
    test_transport("TcpV4", [](size_t count) { return tcp_cluster(count, {.interface = "127.0.0.1"}); });
[[maybe_unused]] const bool v6 = test_transport("TcpV6", [](size_t count) { return tcp_cluster(count, {.interface = "::1"}); });
[[maybe_unused]] const bool three_streams = test_transport(
    "TcpThreeStreams", [](size_t count) { return tcp_cluster(count, {.streams = 3, .payload_checksum = true}); });
[[maybe_unused]] const bool encrypted = test_transport("TcpEncrypted", [](size_t count) {
  return tcp_cluster(count, {.tls = *TlsContext::make({*SecretKey::draw()}), .streams = 2});
});

}  // namespace
}  // namespace unisono::conformance

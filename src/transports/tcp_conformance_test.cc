#include "../../tests/conformance/transport_conformance.h"

#include "transports/tcp_transport.h"

namespace unisono::conformance {
namespace {

template <size_t count>
std::unique_ptr<Cluster> tcp_cluster(const TcpOptions& common) {
  return ConnectorCluster<TcpTransport>::make(count, [&](size_t, PeerId self) {
    auto options = common;
    options.self = self;
    return TcpTransport::make(options);
  });
}

template <size_t count>
struct TcpV4 {
  static std::unique_ptr<Cluster> make() { return tcp_cluster<count>({.interface = "127.0.0.1"}); }
};
template <size_t count>
struct TcpV6 {
  static std::unique_ptr<Cluster> make() { return tcp_cluster<count>({.interface = "::1"}); }
};
template <size_t count>
struct TcpThreeStreams {
  static std::unique_ptr<Cluster> make() { return tcp_cluster<count>({.streams = 3, .payload_checksum = true}); }
};

template <template <size_t> class Factory>
using Sizes = testing::Types<Factory<2>, Factory<3>, Factory<5>>;

INSTANTIATE_TYPED_TEST_SUITE_P(TcpV4, TransportConformance, Sizes<TcpV4>);
INSTANTIATE_TYPED_TEST_SUITE_P(TcpV6, TransportConformance, Sizes<TcpV6>);
INSTANTIATE_TYPED_TEST_SUITE_P(TcpThreeStreams, TransportConformance, Sizes<TcpThreeStreams>);

}  // namespace
}  // namespace unisono::conformance

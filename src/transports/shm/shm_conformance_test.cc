#include "tests/conformance/transport_conformance.h"

#include "transports/shm/shm_transport.h"

namespace unisono::conformance {
namespace {

template <size_t count>
std::unique_ptr<Cluster> shm_cluster(const ShmOptions& common) {
  return ConnectorCluster<ShmTransport>::make(count, [&](size_t, PeerId self) {
    auto options = common;
    options.self = self;
    return ShmTransport::make(options);
  });
}

template <size_t count>
struct Shm {
  static std::unique_ptr<Cluster> make() { return shm_cluster<count>({}); }
};
// Few slots: 4 guaranteed to each peer, and 10 shared by all. One peer alone may take all 10 with contributions.
template <size_t count>
struct ShmNarrow {
  static std::unique_ptr<Cluster> make() {
    ShmOptions options;
    options.peers_max = count;
    options.slots_per_peer = 12;
    options.address_bytes_max = (4 * count + 10) << 20;
    options.payload_checksum = true;
    return shm_cluster<count>(options);
  }
};

template <template <size_t> class Factory>
using Sizes = testing::Types<Factory<2>, Factory<3>, Factory<5>>;

INSTANTIATE_TYPED_TEST_SUITE_P(Shm, TransportConformance, Sizes<Shm>);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmNarrow, TransportConformance, Sizes<ShmNarrow>);

}  // namespace
}  // namespace unisono::conformance

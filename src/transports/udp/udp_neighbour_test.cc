// Tests of the transport's hints to the kernel that the next hop on the way to a peer still exists (MSG_CONFIRM).
#include <gtest/gtest.h>

#include "tests/conformance/udp_virtual_cluster.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;

// The transport may give the hint only while its datagrams arrive at the peer. Datagrams that come from the peer prove nothing
// about the way to the peer.
TEST(UdpNeighbour, arrivals_at_the_peer_confirm_the_next_hop) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  int confirmed = 0;
  bool lost = false;
  cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
    const bool from_0 = datagram.from.to_string() == cluster.endpoint(0);
    confirmed += from_0 && datagram.confirms;
    return !(lost && from_0);
  };
  const auto exchange = [&] {
    for (uint64_t turn = 0; turn < 10; ++turn) {
      for (PeerIndex from : {0u, 1u}) cluster.transports[from]->send(1 - from, data_header(turn, 100), pattern(100, 1), turn);
      cluster.pass(100 * millisecond);
    }
  };
  exchange();
  EXPECT_GE(confirmed, 3);
  EXPECT_LE(confirmed, 6) << "four in a second are enough";
  lost = true;
  exchange();  // the first reports of this turn are still about datagrams that arrived
  confirmed = 0;
  exchange();
  EXPECT_EQ(confirmed, 0);
}

}  // namespace
}  // namespace unisono

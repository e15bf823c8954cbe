// The transport's hints to the kernel that the next hop to a peer still exists.
#include <gtest/gtest.h>

#include "tests/conformance/udp_virtual_cluster.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;

// The transport confirms the next hop to the kernel while its datagrams arrive at the peer. Datagrams from the peer say nothing
// about the way to it.
TEST(UdpNeighbour, is_confirmed_by_what_arrives_there_not_by_what_comes_from_there) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  int confirmed = 0;
  bool lost = false;
  cluster.network.filter = [&](const VirtualNetwork::Flying& datagram) {
    const bool from_0 = datagram.from.to_string() == cluster.endpoint(0);
    confirmed += from_0 && datagram.confirms;
    return !(lost && from_0);
  };
  const auto talk = [&] {
    for (uint64_t turn = 0; turn < 10; ++turn) {
      for (PeerIndex from : {0u, 1u}) cluster.transports[from]->send(1 - from, data_header(turn, 100), pattern(100, 1), turn);
      cluster.pass(100 * millisecond);
    }
  };
  talk();
  EXPECT_GE(confirmed, 3);
  EXPECT_LE(confirmed, 6) << "four in a second are enough";
  lost = true;
  talk();  // reports of what arrived before
  confirmed = 0;
  talk();
  EXPECT_EQ(confirmed, 0);
}

}  // namespace
}  // namespace unisono

// For tests of groups over UDP: hosts on a switch. The kernels of the hosts drop some of the packets that arrive.
#pragma once

#include <string>

#include "base/concat.h"
#include "group_cluster.h"
#include "hosts.h"

namespace unisono::testing {

class LossyHosts : public NameSpaces {
 protected:
  // Drops `percent` percent of all UDP packets at random. The kernel does not merge segments, so each loss is one Ethernet
  // packet.
  static void lose(Hosts& hosts, int percent) {
    for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
    hosts.filter({concat("meta l4proto udp numgen random mod 100 < ", percent, " drop")});
  }
  static ClusterOptions options(const Hosts& hosts) {
    ClusterOptions options{.transport = "udp", .rendezvous = "tcp://" + Hosts::address('a') + ":29500"};
    for (const char host : hosts.names()) options.wrappers.push_back(hosts.wrapper(host));
    return options;
  }
};

}  // namespace unisono::testing

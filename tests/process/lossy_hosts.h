// Hosts on a switch whose kernels drop packets that arrive, for tests of groups over UDP.
#pragma once

#include <string>

#include "group_cluster.h"
#include "hosts.h"

namespace unisono::testing {

class LossyHosts : public NameSpaces {
 protected:
  // Drops `percent` of all UDP packets at random. Segments are not joined by the kernel, so each loss is one Ethernet packet.
  static void lose(Hosts& hosts, int percent) {
    for (const char host : hosts.names()) hosts.send_single_segments(std::string(1, host));
    hosts.filter({"meta l4proto udp numgen random mod 100 < " + std::to_string(percent) + " drop"});
  }
  static ClusterOptions options(const Hosts& hosts) {
    ClusterOptions options{.transport = "udp", .rendezvous = "tcp://" + Hosts::address('a') + ":29500"};
    for (const char host : hosts.names()) options.wrappers.push_back(hosts.wrapper(host));
    return options;
  }
};

}  // namespace unisono::testing

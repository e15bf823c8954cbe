// Facts about the host on which a measurement depends: its processor, its kernel and its network settings. They are read from
// /proc and /sys.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unisono::cli {

struct HostFacts {
  std::string host;
  std::string processor;                                     // "unknown" if the system does not say
  uint32_t cores = 0;                                        // number of cores that this process may use
  std::string kernel;                                        // release, such as "6.1.0-18-amd64"
  std::string congestion_control;                            // congestion control of TCP
  std::vector<std::pair<std::string, uint32_t>> interfaces;  // name and MTU of each interface that is up
};

HostFacts read_host_facts();

}  // namespace unisono::cli

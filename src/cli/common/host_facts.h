// Facts about the host that a measurement depends on: processor, kernel, network settings. They are read from /proc and /sys.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unisono::cli {

struct HostFacts {
  std::string host;
  std::string processor;                                     // "unknown" where the system does not say
  uint32_t cores = 0;                                        // that this process may use
  std::string kernel;                                        // "6.1.0-18-amd64"
  std::string congestion_control;                            // of TCP
  std::vector<std::pair<std::string, uint32_t>> interfaces;  // name and MTU, those that are up
};

HostFacts read_host_facts();

}  // namespace unisono::cli

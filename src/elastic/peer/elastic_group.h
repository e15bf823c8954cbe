// Ordinary groups made from an elastic run: the peers that a layout names, in its order, with all collectives of a group.
//
// The layout's first peer serves their rendezvous from its own thread once it is asked for a group; its roster entry carries
// the address. Peers that call after the same averaging step join the same group. The rendezvous names peers that do not come.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "elastic/layout/layout.h"
#include "unisono/group.h"
#include "unisono/status.h"

namespace unisono {

// Marks a rendezvous address among a peer's addresses: "group://10.0.0.1:4711".
inline constexpr std::string_view group_address_begin = "group://";

class ElasticRendezvous {
 public:
  ~ElasticRendezvous();
  // Starts serving on a free port unless it does already. `host`: where other processes reach this one. Returns the address to
  // publish.
  Result<std::string> serve(const std::string& host);

 private:
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // for threads that ask at the same time
  std::optional<std::string> address_;
  std::thread thread_;
};

// The data that a peer needs to join a group.
struct ElasticGroupLocation {
  Layout layout;
  uint32_t rank = 0;
  int64_t step = -1;       // the peer's last finished averaging step
  std::string rendezvous;  // empty: not known yet
};

// "tcp://[::1]:4040" -> "::1"
std::string host_of_endpoint(std::string_view endpoint);
Options group_options(const ElasticGroupLocation& place, const std::string& run_id, const Options& base);

}  // namespace unisono

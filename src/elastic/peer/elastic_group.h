// Ordinary groups from an elastic run: the peers that a layout names, in its order, with the collectives that any group has.
//
// They meet at a rendezvous that the layout's first peer serves from a thread of its own once it is asked for a group, and
// whose address its roster entry tells. Peers that call after the same averaging step mean the same group; who does not come is
// named by the rendezvous.
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

// How such an address is told apart among those of a peer: "group://10.0.0.1:4711".
inline constexpr std::string_view group_address_begin = "group://";

class ElasticRendezvous {
 public:
  ~ElasticRendezvous();
  // Begins to serve at a free port, if it does not yet. `host`: where this process is reached. Returns what to tell others.
  Result<std::string> serve(const std::string& host);

 private:
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of threads that ask at once
  std::optional<std::string> address_;
  std::thread thread_;
};

// What a peer must know to come to a group.
struct ElasticGroupPlace {
  Layout layout;
  uint32_t rank = 0;
  int64_t step = -1;       // the last one that it finished
  std::string rendezvous;  // empty: not told yet
};

// "tcp://[::1]:4040" -> "::1"
std::string host_of_endpoint(std::string_view endpoint);
Options group_options(const ElasticGroupPlace& place, const std::string& run_id, const Options& base);

}  // namespace unisono

// Where processes that start together leave short values for each other, as frameworks and schedulers have it: torch's
// TCPStore, etcd, Redis, a shared folder.
//
//   struct Store : unisono::KeyValueStore { … };
//   auto group = unisono::Group::join({.rank = rank, .world_size = 8, .store = std::make_shared<Store>()});
//
// One value is left there: rank 0 serves the rendezvous at a free port, and tells the others its addresses.
#pragma once

#include <chrono>
#include <string>

#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

class UNISONO_EXPORT KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set it; late: nobody has, for so long.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace unisono

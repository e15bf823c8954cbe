// A key-value store through which the processes of a job meet: torch's TCPStore, etcd, Redis, a shared folder.
//
//   struct Store : unisono::KeyValueStore { … };
//   auto group = unisono::Group::join({.rank = rank, .world_size = 8, .store = std::make_shared<Store>()});
//
// The library stores one value: rank 0 serves the rendezvous at a free port and publishes its addresses here.
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
  // Waits until the key is set. late: it was not set within `timeout`.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace unisono

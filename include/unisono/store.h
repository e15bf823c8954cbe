// A key-value store through which the processes of a job find each other, such as torch's TCPStore, etcd, Redis or a shared
// folder.
//
//   struct Store : unisono::KeyValueStore { … };
//   auto group = unisono::Group::join({.rank = rank, .world_size = 8, .store = std::make_shared<Store>()});
//
// The library stores one value. Rank 0 opens a free port, at which all ranks meet, and publishes its addresses in this value.
// If no key is given (Options::key), it also publishes a key that it has drawn, so keep the value from others.
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
  // Waits until the key is set. Error late: it was not set within `timeout`.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace unisono

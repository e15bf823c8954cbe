// Decides whether results are copied to the caller's buffer through the caches or past them. A state machine: the bytes in
// flight come in.
//
// A line that is written through the caches is fetched from memory first and pushes out another one. That pays if it is read
// before it is pushed out itself, which it is not once the tensors of all that is in flight are larger than the caches: then
// what is written past them is neither fetched nor in the way. docs/design/decisions/0005-how-shared-memory-is-written.md has
// the measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace unisono {

// The last cache that processors share.
struct SharedCache {
  size_t bytes = 0;      // 0: not known
  uint32_t sharers = 1;  // processors that have it in common
};
// Reads what the kernel says of the cache in this folder; bytes are 0 if it says nothing.
SharedCache read_shared_cache(const std::string& folder = "/sys/devices/system/cpu/cpu0/cache/index3");

class ResultStores {
 public:
  // `processes` of this host, on `processors`, have tensors of about the same size in flight at once.
  void share(const SharedCache& cache, uint32_t processes, uint32_t processors) {
    const auto bytes = cache.bytes == 0 ? cache_bytes_unknown : cache.bytes;
    // Processes run anywhere: as many as there are for each cache, and at least this one.
    const uint64_t all = std::max(1u, processors), sharers = std::clamp<uint64_t>(cache.sharers, 1, all);
    const auto users = std::max<uint64_t>(1, (processes * sharers + all - 1) / all);
    fits_ = bytes * 3 / 8 / users;
  }
  // Inputs and outputs of this process's operations that have begun and not ended.
  void in_flight(uint64_t bytes) { past_ = bytes >= fits_; }
  bool past_caches(size_t bytes) const { return past_ && bytes > 4096; }

 private:
  static constexpr size_t cache_bytes_unknown = 32u << 20;

  uint64_t fits_ = cache_bytes_unknown;
  bool past_ = false;
};

}  // namespace unisono

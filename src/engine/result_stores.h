// Decides how results are written to the caller's buffer: through the caches, or with non-temporal stores, which bypass the
// caches. This is a state machine: the caller tells it how many bytes are in flight.
//
// A write through the caches first fetches the cache line from memory, and evicts another line. That pays only if the line is
// read again before it is evicted. If the tensors in flight do not fit into the caches, the line is evicted first. Non-temporal
// stores then avoid both the fetch and the eviction. Measurements: docs/design/decisions/0005-how-shared-memory-is-written.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace unisono {

// Describes the last-level cache, which several processors share.
struct SharedCache {
  size_t bytes = 0;      // 0: the size is not known
  uint32_t sharers = 1;  // number of processors that share this cache
};
// Reads the kernel's description of the cache in this folder. If there is no description, `bytes` is 0 in the result.
SharedCache read_shared_cache(const std::string& folder = "/sys/devices/system/cpu/cpu0/cache/index3");

class ResultStores {
 public:
  // Sets this process's share of the cache. It assumes that `processes` processes run on `processors` processors of the host,
  // and that the tensors that each has in flight are equally large.
  void share(const SharedCache& cache, uint32_t processes, uint32_t processors) {
    const auto bytes = cache.bytes == 0 ? cache_bytes_unknown : cache.bytes;
    // This assumes that processes are spread evenly over the caches, with at least one process per cache.
    const uint64_t all = std::max(1u, processors), sharers = std::clamp<uint64_t>(cache.sharers, 1, all);
    const auto users = std::max<uint64_t>(1, (processes * sharers + all - 1) / all);
    fits_ = bytes * 3 / 8 / users;
  }
  // bytes: the size of the inputs and outputs of all operations of this process that are running.
  void in_flight(uint64_t bytes) { past_ = bytes >= fits_; }
  bool past_caches(size_t bytes) const { return past_ && bytes > 4096; }

 private:
  static constexpr size_t cache_bytes_unknown = 32u << 20;

  uint64_t fits_ = cache_bytes_unknown;
  bool past_ = false;
};

}  // namespace unisono

// Arithmetic on the thread that drives the node, timed when it is large enough for the clock not to matter.
#pragma once

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "node/compute.h"
#include "node/slot_stores.h"

namespace unisono {

class InlineCompute final : public Compute {
 public:
  Computed reduce(const kernels::Reduction& task, uint64_t) override { return reduce_now(task); }
  Computed reduce_now(const kernels::Reduction& task) override {
    const size_t bytes = task.count * element_bytes(task.dtype);
    if (task.copy == nullptr || !stores_.past_caches(bytes)) {
      return timed(bytes * (task.sources.size() + 1 + (task.copy != nullptr)), task.copy == nullptr, [&] { kernels::reduce(task); });
    }
    auto sum = task;
    auto* const slot = std::exchange(sum.copy, nullptr);
    return timed(bytes * (task.sources.size() + 3), false, [&] {
      kernels::reduce(sum);
      kernels::stream_copy(slot, sum.destination, bytes);
    });
  }
  Computed fill(void* slot, const void* source, size_t bytes) override {
    if (stores_.past_caches(bytes)) return timed(2 * bytes, false, [&] { kernels::stream_copy(slot, source, bytes); });
    const auto computed = timed(2 * bytes, false, [&] { kernels::copy(slot, source, bytes); });
    if (computed.cost > 0) stores_.filled(2 * bytes, computed.cost);
    return computed;
  }
  Computed copy(void* destination, const void* source, size_t bytes, uint64_t) override {
    return timed(2 * bytes, true, [&] { kernels::copy(destination, source, bytes); });
  }

 private:
  // bytes: read and written. plain: no slot is written.
  template <typename F>
  Computed timed(size_t bytes, bool plain, F&& work) {
    if (bytes < 2 * SlotStores::bytes_min) {
      work();
      return {};
    }
    const auto start = std::chrono::steady_clock::now();
    work();
    const Nanos took = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
    if (plain) stores_.worked(bytes, took);
    return {.done = true, .cost = took};
  }

  SlotStores stores_;
};

}  // namespace unisono

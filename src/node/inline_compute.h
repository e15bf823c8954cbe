// Arithmetic on the thread that drives the node, timed when it is large enough for the clock not to matter.
#pragma once

#include <chrono>

#include "node/compute.h"

namespace unisono {

class InlineCompute final : public Compute {
 public:
  Computed reduce(const kernels::Reduction& task, uint64_t) override {
    return timed(task.count * task.sources.size() * element_bytes(task.dtype), [&] { kernels::reduce(task); });
  }
  Computed copy(void* destination, const void* source, size_t bytes, uint64_t) override {
    return timed(bytes, [&] { kernels::copy(destination, source, bytes); });
  }

 private:
  static constexpr size_t timed_bytes_min = 16u << 10;

  template <typename F>
  static Computed timed(size_t bytes, F&& work) {
    if (bytes < timed_bytes_min) {
      work();
      return {};
    }
    const auto start = std::chrono::steady_clock::now();
    work();
    return {.done = true, .cost = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count()};
  }
};

}  // namespace unisono

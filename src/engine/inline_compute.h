// Computes on the calling thread. Short work is not timed, because reading the clock would take too long. If the thread pool
// has threads, large encodings and decodings are split over them.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/compute.h"
#include "engine/result_stores.h"
#include "engine/slot_stores.h"
#include "engine/thread_pool.h"

namespace unisono {

class InlineCompute final : public Compute {
 public:
  // clock: the clock that gives the times of events. nullptr: time_since() ignores the time that was spent on computing.
  explicit InlineCompute(Nanos (*clock)() = nullptr) : clock_(clock) {}
  Nanos time_since(Nanos event) const override { return clock_ == nullptr ? event : clock_(); }
  Computed reduce(const kernels::Reduction& task, uint64_t) override { return reduce_now(task); }
  Computed reduce_now(const kernels::Reduction& task) override {
    const size_t bytes = task.count * element_bytes(task.dtype);
    if (task.copy == nullptr || !stores_.past_caches(bytes)) {
      return timed(bytes * (task.sources.size() + 1 + (task.copy != nullptr)), [&] { kernels::reduce(task); });
    }
    auto sum = task;
    auto* const slot = std::exchange(sum.copy, nullptr);
    return timed(bytes * (task.sources.size() + 3), [&] {
      kernels::reduce(sum);
      kernels::stream_copy(slot, sum.destination, bytes);
    });
  }
  Computed fill(void* slot, const void* source, size_t bytes) override {
    const auto computed =
        timed(2 * bytes, [&] { (stores_.past_caches(bytes) ? kernels::stream_copy : kernels::copy)(slot, source, bytes); });
    if (bytes >= SlotStores::bytes_min) stores_.filled(bytes, computed.cost);
    return computed;
  }
  Computed copy(void* destination, const void* source, size_t bytes, uint64_t) override {
    return copy_now(destination, source, bytes);
  }
  Computed copy_now(void* destination, const void* source, size_t bytes) override {
    return timed(2 * bytes,
                 [&] { (results_.past_caches(bytes) ? kernels::stream_copy : kernels::copy)(destination, source, bytes); });
  }
  void in_flight(uint64_t bytes) override { results_.in_flight(bytes); }

  Computed encode(const EncodeTask& task, kernels::BlockCounts& counts) override {
    return timed(2 * task.count * element_bytes(task.dtype), [&] {
      in_parts(task.count, 1, counts, [&](kernels::BlockCounts& c, TaskPart part) { unisono::encode(task, c, part); });
    });
  }
  Computed decode(const DecodeTask& task, kernels::BlockCounts& counts, uint64_t) override {
    return timed(2 * task.count * element_bytes(task.dtype), [&] {
      in_parts(task.count, 1, counts, [&](kernels::BlockCounts& c, TaskPart part) { unisono::decode(task, c, part); });
    });
  }
  Computed fold(const FoldTask& task, kernels::BlockCounts& counts, uint64_t) override {
    return timed(task.messages.size() * task.count * element_bytes(task.dtype), [&] {
      in_parts(task.count, task.messages.size(), counts,
               [&](kernels::BlockCounts& c, TaskPart part) { unisono::fold(task, c, part); });
    });
  }

  // Sets the number of threads that compute in addition to the calling thread.
  void set_helpers(uint32_t helpers) { thread_pool_.set_helpers(helpers); }
  void share_cache(uint32_t processes, uint32_t processors) { results_.share(read_shared_cache(), processes, processors); }

 private:
  // shared_min is in elements times messages. Less work than this takes about 10 us, and is not split. `piece` is in elements.
  static constexpr size_t shared_min = 32 * part_unit, piece = 8 * part_unit;

  template <typename F>
  void in_parts(size_t count, size_t times, kernels::BlockCounts& counts, F&& work) {
    if (thread_pool_.helpers() == 0 || count * times < shared_min || count <= piece) return work(counts, {});
    thread_pool_.parallel_for(static_cast<uint32_t>((count + piece - 1) / piece), [&](uint32_t i) {
      kernels::BlockCounts found;
      work(found, {.first = i * piece, .count = piece});
      const MutexLock lock(counting_);
      counts.saturated += found.saturated;
      counts.nonfinite_groups += found.nonfinite_groups;
    });
  }

  // bytes: the number of bytes that are read, plus the number of bytes that are written.
  template <typename F>
  Computed timed(size_t bytes, F&& work) {
    if (bytes < 2 * SlotStores::bytes_min) {
      work();
      return {};
    }
    const auto start = std::chrono::steady_clock::now();
    work();
    return {.done = true,
            .cost = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count()};
  }

  Nanos (*const clock_)();
  SlotStores stores_;
  ResultStores results_;
  ThreadPool thread_pool_;
  Mutex counting_;
};

}  // namespace unisono

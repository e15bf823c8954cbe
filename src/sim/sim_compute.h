// Executes arithmetic at once and charges virtual time for it. In mode `free`, the arithmetic takes no time. In mode `busy`, it
// takes time of the process, which does nothing else meanwhile. In mode `deferred`, it takes time of a worker, which reports
// the end later.
#pragma once

#include <algorithm>

#include "engine/compute.h"
#include "sim/event_queue.h"

namespace unisono::sim {

enum class ComputeMode : uint8_t { free, busy, deferred };

struct ComputeSettings {
  ComputeMode mode = ComputeMode::free;
  double bytes_per_us = 4000;
  Nanos per_call = 300;
};

class SimCompute final : public Compute {
 public:
  SimCompute(const ComputeSettings& settings, EventQueue& event_queue, PeerIndex self)
      : settings_(settings), event_queue_(event_queue), self_(self) {}

  Computed reduce(const kernels::Reduction& task, uint64_t id) override {
    kernels::reduce(task);
    return charge(task.count * task.sources.size() * element_bytes(task.dtype), id);
  }
  Computed copy(void* destination, const void* source, size_t bytes, uint64_t id) override {
    kernels::copy(destination, source, bytes);
    return charge(bytes, id);
  }

  Computed decode(const DecodeTask& task, kernels::BlockCounts& counts, uint64_t id) override {
    unisono::decode(task, counts);
    return charge(task.count * element_bytes(task.dtype), id);
  }
  Computed fold(const FoldTask& task, kernels::BlockCounts& counts, uint64_t id) override {
    unisono::fold(task, counts);
    return charge(task.count * (task.messages.size() + 1) * element_bytes(task.dtype), id);
  }

  void slow_down(double factor) { slowness_ = factor; }
  // Returns the time until which the process computes and does not poll.
  Nanos busy_until() const { return settings_.mode == ComputeMode::busy ? free_at_ : 0; }

 private:
  Computed charge(size_t bytes, uint64_t id) {
    if (settings_.mode == ComputeMode::free) return {};
    const auto cost = static_cast<Nanos>(
        (static_cast<double>(settings_.per_call) + static_cast<double>(bytes) * 1000 / settings_.bytes_per_us) * slowness_);
    free_at_ = std::max(free_at_, event_queue_.now()) + cost;
    if (settings_.mode == ComputeMode::busy) return {.done = true, .cost = cost};
    event_queue_.add(free_at_, EventKind::computed, self_, id);
    return {.done = false, .cost = cost};
  }

  ComputeSettings settings_;
  EventQueue& event_queue_;
  PeerIndex self_;
  double slowness_ = 1;
  Nanos free_at_ = 0;
};

}  // namespace unisono::sim

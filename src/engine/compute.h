// The seam for arithmetic: inline on the driving thread (InlineCompute), or later (a simulator that charges virtual time).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "codecs/codec.h"
#include "kernels/dispatch.h"

namespace unisono {

struct Computed {
  bool done = true;  // false: Engine::computed(id) will be called; sources and destination stay valid until then
  Nanos cost = 0;    // time spent, where known
};

class Compute {
 public:
  virtual ~Compute() = default;
  virtual Computed reduce(const kernels::Reduction& task, uint64_t id) = 0;
  // Always done at once.
  virtual Computed reduce_now(const kernels::Reduction& task) {
    kernels::reduce(task);
    return {};
  }
  // Into memory that another process reads next (as the `copy` of a reduction is). Always done at once.
  virtual Computed fill(void* slot, const void* source, size_t bytes) {
    kernels::copy(slot, source, bytes);
    return {};
  }
  virtual Computed copy(void* destination, const void* source, size_t bytes, uint64_t id) = 0;
  // Always done at once.
  virtual Computed copy_now(void* destination, const void* source, size_t bytes) {
    kernels::copy(destination, source, bytes);
    return {};
  }
  // When it is by now, after what was done at once since an event that came at `event`.
  virtual Nanos time_since(Nanos event) const { return event; }
  // Inputs and outputs of all operations that have begun and not ended.
  virtual void in_flight(uint64_t) {}
  // Always done at once.
  virtual Computed encode(const EncodeTask& task, kernels::BlockCounts& counts) {
    unisono::encode(task, counts);
    return {};
  }
  virtual Computed decode(const DecodeTask& task, kernels::BlockCounts& counts, uint64_t id) = 0;
  virtual Computed fold(const FoldTask& task, kernels::BlockCounts& counts, uint64_t id) = 0;
};

}  // namespace unisono

// The interface for arithmetic. InlineCompute computes at once, on the calling thread. A simulator completes the work later, in
// virtual time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "codecs/codec.h"
#include "kernels/dispatch.h"

namespace unisono {

struct Computed {
  // false: the work is not done yet. Engine::computed(id) is called when it is; the memory must stay valid until then.
  bool done = true;
  Nanos cost = 0;  // time that the work took; 0 if it is not known
};

class Compute {
 public:
  virtual ~Compute() = default;
  virtual Computed reduce(const kernels::Reduction& task, uint64_t id) = 0;
  // Like reduce(), but the work is always done on return.
  virtual Computed reduce_now(const kernels::Reduction& task) {
    kernels::reduce(task);
    return {};
  }
  // Copies into a slot of shared memory, which another process reads next. The copy is always complete on return.
  virtual Computed fill(void* slot, const void* source, size_t bytes) {
    kernels::copy(slot, source, bytes);
    return {};
  }
  virtual Computed copy(void* destination, const void* source, size_t bytes, uint64_t id) = 0;
  // Like copy(), but the copy is always complete on return.
  virtual Computed copy_now(void* destination, const void* source, size_t bytes) {
    kernels::copy(destination, source, bytes);
    return {};
  }
  // Returns the current time. `event` is the arrival time of the last event; the result includes the work done since then.
  virtual Nanos time_since(Nanos event) const { return event; }
  // Tells this object how large the inputs and outputs of all running operations are together.
  virtual void in_flight(uint64_t) {}
  // Encodes a message. The message is always complete on return.
  virtual Computed encode(const EncodeTask& task, kernels::BlockCounts& counts) {
    unisono::encode(task, counts);
    return {};
  }
  virtual Computed decode(const DecodeTask& task, kernels::BlockCounts& counts, uint64_t id) = 0;
  virtual Computed fold(const FoldTask& task, kernels::BlockCounts& counts, uint64_t id) = 0;
};

}  // namespace unisono

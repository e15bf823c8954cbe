// How the engine handles a lack of memory. This is a part of engine.h. Only engine*.cc include it.
#pragma once

#include <memory>
#include <new>

#include "engine/engine.h"

namespace unisono {

template <typename Event>
void Engine::attempt(Operation& operation, Event&& event) {
  try {
    event();
  } catch (const std::bad_alloc&) {
    operation.out_of_memory(now_);
  }
  settle_needed_ |= operation.done();
}

template <typename Start>
std::shared_ptr<Completion> Engine::guarded(Start&& start) {
  if (memory_ == Memory::ended) return no_memory_;
  try {
    auto completion = start();
    if (memory_ == Memory::missing) end_without_memory();
    return completion;
  } catch (const std::bad_alloc&) {
    end_without_memory();
    return no_memory_;
  }
}

}  // namespace unisono

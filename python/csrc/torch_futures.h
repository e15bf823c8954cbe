// Waits for futures during which Python's handlers of signals run. The waits of torch itself run none.
#pragma once

#include <ATen/core/ivalue.h>

namespace unisono::torch_backend {

// Waits until the future is complete, and runs the handlers of signals meanwhile. In a thread in which Python handles no
// signals, does nothing.
void wait_for_future(const c10::intrusive_ptr<c10::ivalue::Future>& future);
// If this thread runs a backward pass, the pass waits for the future as above when it ends, before it runs the callbacks that
// are queued later. DistributedDataParallel's reducer waits in such a callback, in code of torch that runs no handlers.
void wait_in_backward(const c10::intrusive_ptr<c10::ivalue::Future>& future);

}  // namespace unisono::torch_backend

// A simulated device, which needs no hardware. It is torch's device type PrivateUse1. It is used to test the order in which
// threads and streams wait for each other.
//
// Every stream is a thread with a queue, and runs its work late on purpose. A copy takes a random time. `hold` stops all copies
// or kernels of one kind until `release` is called. Memory contains a pattern before it is written and after it is freed, and
// freed memory is never used again. So an access that is too early or too late gives a wrong result. As with CUDA's allocator,
// to free device memory means to wait for its stream and for the streams that were recorded for it. To free pinned memory,
// there is no wait.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

namespace {

constexpr auto kind_of_device = c10::DeviceType::PrivateUse1;
constexpr int stream_count = 9;  // the default stream and the streams of the pool
constexpr int fresh = 0xA7, freed = 0xDB;

struct Mark {
  bool passed = false;
};

// The streams and the memory of the device. One lock guards all of this state, but tasks run without the lock.
class Machine {
 public:
  void enqueue(int64_t stream, std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    auto& one = streams_[stream];
    one.tasks.push_back(std::move(task));
    if (!one.started) std::thread([this, stream] { work(stream); }).detach();
    one.started = true;
    changed_.notify_all();
  }

  std::shared_ptr<Mark> record(int64_t stream) {
    auto mark = std::make_shared<Mark>();
    enqueue(stream, [this, mark] {
      const std::lock_guard lock(mutex_);
      mark->passed = true;
      changed_.notify_all();
    });
    return mark;
  }
  void wait_on_stream(int64_t stream, const std::shared_ptr<Mark>& mark) {
    enqueue(stream, [this, stream, mark] {
      std::unique_lock lock(mutex_);
      wait_in(lock, stream, [&] { return mark->passed; });
    });
  }
  void wait_on_host(const std::shared_ptr<Mark>& mark) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return mark->passed; });
  }
  bool passed(const std::shared_ptr<Mark>& mark) {
    const std::lock_guard lock(mutex_);
    return mark->passed;
  }

  // This is called before each piece of work. It blocks the thread of a stream while work of this kind is held, and then for a
  // random time.
  void pass_gate(int64_t stream, const std::string& kind) {
    std::unique_lock lock(mutex_);
    wait_in(lock, stream, [&] { return !held_.contains(kind); });
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random_() % 500);
    lock.unlock();
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  }
  void hold(const std::string& kind) {
    const std::lock_guard lock(mutex_);
    held_.insert(kind);
  }
  void release(const std::string& kind) {
    const std::lock_guard lock(mutex_);
    held_.erase(kind);
    changed_.notify_all();
  }
  // Waits until no stream can continue by itself: each stream is idle, or waits for a condition that is not true.
  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      for (const auto& [number, stream] : streams_) {
        const bool stuck = stream.until && !stream.until();
        if (!stuck && (stream.busy || !stream.tasks.empty())) return false;
      }
      return true;
    });
  }

  void add_pinned(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    pinned_[data] = bytes;
  }
  void remove_pinned(void* data) {
    const std::lock_guard lock(mutex_);
    std::memset(data, freed, pinned_[data]);
    pinned_.erase(data);
  }
  bool is_pinned(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto after = pinned_.upper_bound(const_cast<void*>(data));
    return after != pinned_.begin() && data < static_cast<std::byte*>(std::prev(after)->first) + std::prev(after)->second;
  }
  size_t pinned_pieces() {
    const std::lock_guard lock(mutex_);
    return pinned_.size();
  }

 private:
  struct Stream {
    std::deque<std::function<void()>> tasks;
    std::function<bool()> until;  // the condition for which the stream's thread waits; empty: it does not wait
    bool started = false, busy = false;
  };

  void work(int64_t stream) {
    std::unique_lock lock(mutex_);
    auto& own = streams_[stream];
    for (;;) {
      changed_.wait(lock, [&] { return !own.tasks.empty(); });
      auto task = std::move(own.tasks.front());
      own.tasks.pop_front();
      own.busy = true;
      lock.unlock();
      task();
      task = {};
      lock.lock();
      own.busy = false;
      changed_.notify_all();
    }
  }
  template <typename Done>
  void wait_in(std::unique_lock<std::mutex>& lock, int64_t stream, Done done) {
    streams_[stream].until = done;
    changed_.notify_all();
    changed_.wait(lock, done);
    streams_[stream].until = {};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Stream> streams_;
  std::set<std::string> held_;
  std::map<void*, size_t> pinned_;
  std::minstd_rand random_{1};
};

Machine& machine() {
  static auto* const one = new Machine;  // this is never destroyed, because its threads live as long as the process
  return *one;
}

thread_local int64_t current = 0;

c10::Stream stream_of(int64_t number) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(kind_of_device, 0), number); }

// Streams and events ------------------------------------------------------------------------------------------------

struct Block {
  void* data;
  size_t bytes;
  int64_t stream;
  std::set<int64_t> used_by{};
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  for (const auto other : block->used_by) machine().wait_on_stream(block->stream, machine().record(other));
  machine().enqueue(block->stream, [block] { std::memset(block->data, freed, block->bytes); });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kind_of_device; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kind_of_device, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream_of(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<int64_t> next{0};
    return stream_of(1 + next++ % (stream_count - 1));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStreamFromGlobalPool(device, false); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream_of(std::exchange(current, stream.id())); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    delete static_cast<std::shared_ptr<Mark>*>(*event);
    *event = new std::shared_ptr<Mark>(machine().record(stream.id()));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<std::shared_ptr<Mark>*>(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    machine().wait_on_stream(stream.id(), *static_cast<std::shared_ptr<Mark>*>(event));
  }
  bool queryEvent(void* event) const override { return machine().passed(*static_cast<std::shared_ptr<Mark>*>(event)); }
  void synchronizeEvent(void* event) const override { machine().wait_on_host(*static_cast<std::shared_ptr<Mark>*>(event)); }
  void synchronizeStream(const c10::Stream& stream) const override { machine().wait_on_host(machine().record(stream.id())); }
  bool queryStream(const c10::Stream&) const override { return false; }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_context() != nullptr) static_cast<Block*>(data.get_context())->used_by.insert(stream.id());
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory ------------------------------------------------------------------------------------------------------------

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kind_of_device, 0);
    if (bytes == 0) return {nullptr, device};
    auto* block = new Block{std::malloc(bytes), bytes, current};
    std::memset(block->data, fresh, bytes);
    return {block->data, block, &free_block, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} device_memory;
REGISTER_ALLOCATOR(kind_of_device, &device_memory);

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    auto* data = std::malloc(bytes);
    std::memset(data, fresh, bytes);
    machine().add_pinned(data, bytes);
    return {data, data, [](void* gone) { machine().remove_pinned(gone); }, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} pinned_memory;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return machine().is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  at::Device getDeviceFromPtr(void*) const override { return {kind_of_device, 0}; }
};

// Operations --------------------------------------------------------------------------------------------------------

// Returns a CPU tensor that uses the same memory but does not own it. Kernels use this view.
at::Tensor bare(const at::Tensor& tensor) {
  const c10::InferenceMode off(false);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
}

template <typename Task>
void launch(const char* kind, Task task) {
  machine().enqueue(current, [kind, stream = current, task]() mutable {
    machine().pass_gate(stream, kind);
    task();
  });
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

// Copies a tensor. The call blocks, unless non_blocking is true. In that case, the caller must keep the memory of both tensors
// alive until the copy is done.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto* kind = from.is_cpu() ? "to_device" : to.is_cpu() ? "to_host" : "inside";
  const auto source = from.expand_as(to);
  launch(kind, [source = bare(source), target = bare(to)]() mutable { target.copy_(source); });
  if (!non_blocking && (from.is_cpu() || to.is_cpu())) machine().wait_on_host(machine().record(current));
  return to;
}
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto bytes = c10::multiply_integers(size) * self.element_size();
  const auto& storage = self.storage();
  if (storage.nbytes() < bytes) {
    storage.set_data_ptr_noswap(device_memory.allocate(bytes));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to.resize_(from.sizes()), false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  launch("kernel", [target = bare(self), value]() mutable { target.fill_(value); });
  return self;
}
at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }
at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& factor) {
  launch("kernel", [target = bare(self), other = other.is_cpu() ? other.clone() : bare(other), factor]() mutable {
    target.add_(other, factor);
  });
  return self;
}

void on_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) { at::native::cpu_fallback(operation, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("fill_.Scalar", &fill);
  m.impl("zero_", &zero);
  m.impl("add_.Tensor", &add);
  m.impl("view", &at::native::view);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  const auto call = py::call_guard<py::gil_scoped_release>();
  m.def(
      "hold", [](const std::string& kind) { machine().hold(kind); },
      "Copies \"to_host\", \"to_device\", \"inside\", or what is a \"kernel\", wait for release().");
  m.def(
      "release", [](const std::string& kind) { machine().release(kind); }, call);
  m.def(
      "settle", [] { machine().settle(); }, call, "Waits until no stream can go on by itself.");
  m.def(
      "synchronize", [] { machine().wait_on_host(machine().record(current)); }, call, "Waits for the current stream.");
  m.def(
      "pinned_pieces", [] { return machine().pinned_pieces(); }, "How many pieces of pinned memory there are.");
}

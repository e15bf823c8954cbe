// Shared declarations of unisono._core, which offers the C++ API over NumPy arrays.
//
// The GIL is released around library calls that may block or compute. An operation holds the memory of its arrays (Buffer)
// until it is done. If no thread waits for the operation, keep_until_done() keeps its Flight, which owns this memory. Functions
// report errors by throwing Python errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "unisono/unisono.h"

namespace unisono_python {

namespace py = pybind11;
using namespace unisono;

// --- errors

// Throws the subclass of unisono.Error that belongs to the code of this status.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T check(Result<T>&& result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}
// Calls the function without holding the GIL. If the Status that it returns is an error, throws this error.
template <typename F>
auto without_gil(F function) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return function();
  }();
  return check(std::move(result));
}
// Returns true if the calling thread is the one in which Python handles signals.
bool is_main_thread();
// Runs a blocking function that cannot be called with a timeout. If this is called in the main thread, the function runs in
// another thread, and the main thread checks for signals meanwhile. Other threads call the function directly. After a
// KeyboardInterrupt, the function continues to run, so it must own copies of its data.
void run_interruptibly(std::function<void()> function);
template <typename F>
auto interruptibly(F function) {
  auto result = std::make_shared<std::optional<decltype(function())>>();
  run_interruptibly([result, function]() mutable { result->emplace(function()); });
  return check(std::move(**result));
}

// --- memory

enum class Access { read, write };

// The memory of an array, as the array exports it. A Buffer must be created and destroyed under the GIL.
class Buffer {
 public:
  Buffer() = default;
  // `what` names the argument in error messages: "all_reduce: input". If `dtype` is bf16, uint16 elements are taken as
  // bfloat16. Throws TypeError if the object is no buffer, or if its elements are not supported. Throws ValueError if it is not
  // C-contiguous, or if `access` is write and it is read-only.
  Buffer(py::handle object, const std::string& what, Access access, std::optional<DType> dtype = {});
  Tensor tensor() const { return {view_->buf, count_, dtype_}; }
  ConstTensor const_tensor() const { return tensor(); }
  std::span<float> floats() const { return {static_cast<float*>(view_->buf), count_}; }
  explicit operator bool() const { return view_ != nullptr; }
  DType dtype() const { return dtype_; }
  size_t count() const { return count_; }
  std::vector<py::ssize_t> shape() const;

 private:
  struct Release {
    void operator()(Py_buffer* view) const;
  };
  std::unique_ptr<Py_buffer, Release> view_;
  size_t count_ = 0;
  DType dtype_ = DType::f32;
};

// Returns a Buffer. Its elements must be fp32.
Buffer float_buffer(py::handle object, const std::string& what, Access access);
// Accepts either one array or a sequence of arrays. A single array is not taken as a sequence of its rows.
std::vector<Buffer> float_buffers(py::handle arrays, const std::string& what, Access access);
// Returns a new array whose Python type is that of `like`.
py::object empty_like(py::handle like, DType dtype, const std::vector<py::ssize_t>& shape);
// Returns an array that is a view of memory. `base` owns this memory.
py::object float_view(const float* data, size_t count, py::handle base, Access access);
// An array that a Python function may use only during one call.
class CallArray {
 public:
  CallArray(const float* data, size_t count, Access access) : array_(float_view(data, count, py::none(), access)) {}
  CallArray(std::span<const float> values, Access access) : CallArray(values.data(), values.size(), access) {}
  const py::object& array() const { return array_; }
  // Call this after the function has returned. Throws RuntimeError if the function has kept the array or a view of it, because
  // the memory will be freed.
  void end(const char* what) const;

 private:
  py::object array_;
};
py::bytes bytes_of(const std::vector<std::byte>& bytes);
std::span<const std::byte> span_of(const py::bytes& bytes);

// --- times and texts

// Converts seconds to whole milliseconds and rounds up. Throws ValueError if the number is negative or not finite.
Milliseconds milliseconds(double seconds, const char* what);
// Returns the index of the word in `words`. If the word is not there, throws ValueError; the message lists the words.
size_t word_index(py::handle word, const char* what, std::span<const char* const> words);
// Returns a text that shows all attributes: "<unisono.DropStep: step=1 planned=12 …>".
std::string fields_text(const py::object& self);

// --- calls

// The keyword arguments of a collective, and the objects to which they refer.
struct CallWords {
  std::string collective;  // for error messages
  CallOptions options;
  std::optional<DType> dtype;
  Buffer encode_error;
  std::shared_ptr<const std::vector<std::vector<uint32_t>>> needed_ranges;
};
CallWords call_words(const py::kwargs& words, const char* collective);
Options join_options(const py::kwargs& words);

// A deleter that releases the GIL. It is for objects whose destructor may wait for threads.
struct DeleteReleased {
  template <typename T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    delete object;
  }
};
using GroupClass = py::class_<Group, std::unique_ptr<Group, DeleteReleased>>;

// An operation, and everything that must live until this operation is done. Use it under the GIL.
struct Flight {
  Flight();
  ~Flight();
  Flight(const Flight&) = delete;
  Work work;
  // true: other ranks may need this operation, so the end of the program waits for it. A receive is not needed. After
  // KeyboardInterrupt, the program ends without waiting.
  bool needed = true;
  // Set if the operation has no Work, because the library offers it as a blocking call only. true: it has ended.
  std::shared_ptr<std::atomic<bool>> ended;
  std::vector<Buffer> buffers;
  CallWords words;
  py::object output = py::none();  // the output array, if the call has allocated one
};
// The report of one operation, and the output array if the call has allocated one, as all_gather and similar calls do.
struct OutputReport : Report {
  py::object output = py::none();
};
// Waits for the operation in short pieces of time, and checks for signals between them. Throws Late ("still running") if it is
// not done after `seconds`.
Report wait_for(Work& work, std::optional<double> seconds);
// Makes a flight. Also frees those of the kept flights whose operations are done.
std::unique_ptr<Flight> new_flight();
// Keeps the flight alive until its operation is done. A later new_flight() frees it.
void keep_until_done(std::unique_ptr<Flight> flight);
// Waits until the operations that other ranks may need have ended. Call it before the interpreter ends. If the program ends
// because of an exception, this does not wait.
void wait_for_needed_flights();
// Returns a unisono.Work that owns the flight.
py::object work_object(std::unique_ptr<Flight> flight);

// Protects an object that only one thread may use at a time. During a call, callbacks in the same thread may use those
// functions of the object that only read.
class Exclusive {
 public:
  class Use {
   public:
    explicit Use(Exclusive& owner) : owner_(owner) {}
    ~Use() { owner_.depth_ -= 1; }
    Use(const Use&) = delete;

   private:
    Exclusive& owner_;
  };
  // call() begins a call. query() begins a call that only reads. Use both under the GIL. Both throw RuntimeError if another
  // thread is in a call. call() also throws it if this thread is already in a call.
  [[nodiscard]] Use call(const char* what) { return enter(what, false); }
  [[nodiscard]] Use query(const char* what) { return enter(what, true); }

 private:
  Use enter(const char* what, bool again);
  std::thread::id thread_;
  int depth_ = 0;
};

// Catches the errors of callbacks, because the library code that calls them must not see exceptions. After the library's call
// has returned, rethrow() throws the first error. Use this under the GIL.
class Caught {
 public:
  // Calls the function. If it throws, returns the error as a Status. The first error is also kept for rethrow().
  Status run(const std::function<void()>& function);
  bool any() const { return error_ != nullptr; }
  void rethrow();

 private:
  std::exception_ptr error_;
};

// Calls `end` before the interpreter ends. Some objects need this, and have an EndsEarly as a member: their threads may call
// Python, or other ranks wait until these objects end. Use this under the GIL.
class EndsEarly {
 public:
  explicit EndsEarly(std::function<void()> end);
  ~EndsEarly();
  EndsEarly(const EndsEarly&) = delete;
  static void end_all();

 private:
  std::function<void()> end_;
};

// --- the parts of the module

// Returns a handler that passes events to a Python function, or, for None, to Python's logging. It may be empty: then the
// library writes its log itself.
EventHandler event_handler(py::handle function);
// Call it before the interpreter ends. Hands the last events on. Later events are dropped.
void end_events();
void add_events(py::module_& m);
void add_option_classes(py::module_& m);
void add_reports(py::module_& m);
void add_work(py::module_& m);
void add_group(py::module_& m);
void add_collectives(GroupClass& group);
void add_training(py::module_& m);
void add_drop_compute(py::module_& m);
void add_sharded_step(py::module_& m);
void add_elastic(py::module_& m);
void add_moshpit_sgd(py::module_& m);

}  // namespace unisono_python

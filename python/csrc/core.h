// Shared declarations of unisono._core, the C++ API over NumPy arrays.
//
// The GIL is released around library calls that may block or compute. A Python object exports its memory (Buffer) until the
// operation that uses it is done. If nobody waits for the operation, keep_until_done() keeps its Flight. Functions throw Python
// errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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
// ---------------------------------------------------------------------------------------------------------------------

// Throws the subclass of unisono.Error for this code.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T check(Result<T>&& result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}
// Calls the function without the GIL, and throws the returned Status if it is an error.
template <typename F>
auto without_gil(F function) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return function();
  }();
  return check(std::move(result));
}
// The thread in which Python handles signals.
bool is_main_thread();
// From the main thread: runs the function in another thread, and checks for signals meanwhile. From other threads: runs it
// directly. After KeyboardInterrupt the other thread continues, so it must own copies of its data. For calls that cannot be
// waited for in slices.
void run_interruptibly(std::function<void()> function);
template <typename F>
auto interruptibly(F function) {
  auto result = std::make_shared<std::optional<decltype(function())>>();
  run_interruptibly([result, function]() mutable { result->emplace(function()); });
  return check(std::move(**result));
}

// --- memory
// ---------------------------------------------------------------------------------------------------------------------

enum class Access { read, write };

// The exported memory of an array. Made and destroyed under the GIL.
class Buffer {
 public:
  Buffer() = default;
  // what: "all_reduce: input". dtype: the meaning of uint16 elements ("bf16"), else none. TypeError: not a buffer, or
  // unsupported elements. ValueError: not C-contiguous, or read-only.
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

// A Buffer of fp32 elements.
Buffer float_buffer(py::handle object, const std::string& what, Access access);
// One array or several; an array does not count as a sequence here.
std::vector<Buffer> float_buffers(py::handle arrays, const std::string& what, Access access);
// A new array of the same type as `like`.
py::object empty_like(py::handle like, DType dtype, const std::vector<py::ssize_t>& shape);
// A view of memory owned by `base`.
py::object float_view(const float* data, size_t count, py::handle base, Access access);
// An array that a function may use during one call.
class CallArray {
 public:
  CallArray(const float* data, size_t count, Access access) : array_(float_view(data, count, py::none(), access)) {}
  CallArray(std::span<const float> values, Access access) : CallArray(values.data(), values.size(), access) {}
  const py::object& array() const { return array_; }
  // RuntimeError: the function kept the array or a part of it, but its memory will not last.
  void end(const char* what) const;

 private:
  py::object array_;
};
py::bytes bytes_of(const std::vector<std::byte>& bytes);
std::span<const std::byte> span_of(const py::bytes& bytes);

// --- times and texts
// ---------------------------------------------------------------------------------------------------------------------

// Converts seconds to whole milliseconds, rounded up. ValueError: negative or not finite.
Milliseconds milliseconds(double seconds, const char* what);
// Index of the word in `words`. ValueError: lists the valid words.
size_t word_place(py::handle word, const char* what, std::span<const char* const> words);
// "<unisono.DropStep: step=1 planned=12 …>": all attributes.
std::string fields_text(const py::object& self);

// --- calls
// ---------------------------------------------------------------------------------------------------------------------

// The keyword arguments of a collective, and the objects that they refer to.
struct CallWords {
  CallOptions options;
  std::optional<DType> dtype;
  Buffer encode_error;
  std::shared_ptr<const std::vector<std::vector<uint32_t>>> needed_ranges;
};
CallWords call_words(const py::kwargs& words, const char* collective);
Options join_options(const py::kwargs& words);

// Deletes without the GIL, for objects whose destructor may wait for threads.
struct DeleteReleased {
  template <typename T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    delete object;
  }
};
using GroupClass = py::class_<Group, std::unique_ptr<Group, DeleteReleased>>;

// An operation, and everything that must live as long as it runs.
struct Flight {
  ~Flight() {
    const py::gil_scoped_release
        released;  // may hold the last handle of the group, whose destructor says goodbye to the other ranks
    work = Work();
  }
  Work work;
  std::vector<Buffer> buffers;
  CallWords words;
  py::object output = py::none();  // allocated by the call
};
// The report of one operation, with the output that all_gather and similar calls allocate.
struct OutputReport : Report {
  py::object output = py::none();
};
// Waits in slices of time, and checks for signals between them. Throws Late ("still running") after `seconds`.
Report wait_for(Work& work, std::optional<double> seconds);
// Frees kept flights that are done, and makes a new one.
std::unique_ptr<Flight> new_flight();
// Keeps the flight unless it is done. The first new_flight() after its end frees it.
void keep_until_done(std::unique_ptr<Flight> flight);
// Makes a unisono.Work.
py::object work_object(std::unique_ptr<Flight> flight);

// An object that one thread may use at a time. During a call, callbacks in the same thread may use its read-only functions.
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
  // Call under the GIL. RuntimeError: another thread is in a call, or this thread is and the call is not read-only.
  [[nodiscard]] Use call(const char* what) { return enter(what, false); }
  [[nodiscard]] Use question(const char* what) { return enter(what, true); }

 private:
  Use enter(const char* what, bool again);
  std::thread::id thread_;
  int depth_ = 0;
};

// Catches errors of callbacks that library code calls. They are thrown when the library's call has returned. Used under the
// GIL.
class Caught {
 public:
  // Calls the function. Keeps its first error, and returns it as a Status.
  Status run(const std::function<void()>& function);
  bool any() const { return error_ != nullptr; }
  void rethrow();

 private:
  std::exception_ptr error_;
};

// Member of an object that must end before the interpreter: its threads may call back, or other ranks wait for its goodbye.
// Used under the GIL.
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
// ---------------------------------------------------------------------------------------------------------------------

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

// unisono._core, the C++ API over NumPy arrays: what its parts share.
//
// The GIL is not held while the library is called where that may block or compute. Memory that an operation works on is
// exported by its Python object (Buffer) until the operation is done, also if nobody waits for it: then its Flight is kept by
// keep_until_done(). What is thrown here is a Python error.
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
// ------------------------------------------------------------------------------------------------------------------------------------------

// Throws the subclass of unisono.Error that belongs to the code.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <typename T>
T check(Result<T>&& result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}
// Calls the function without the GIL, and throws what it returns if that is an error.
template <typename F>
auto without_gil(F function) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return function();
  }();
  return check(std::move(result));
}
// Where Python handles signals.
bool is_main_thread();
// Calls the function in a thread of its own while this one, the main thread, looks for signals; elsewhere right here. After
// KeyboardInterrupt the thread goes on with what it has: copies only. For calls that cannot be waited for in slices.
void run_interruptibly(std::function<void()> function);
template <typename F>
auto interruptibly(F function) {
  auto result = std::make_shared<std::optional<decltype(function())>>();
  run_interruptibly([result, function]() mutable { result->emplace(function()); });
  return check(std::move(**result));
}

// --- memory
// ------------------------------------------------------------------------------------------------------------------------------------------

enum class Access { read, write };

// The exported memory of an array. Made and destroyed under the GIL.
class Buffer {
 public:
  Buffer() = default;
  // what: "all_reduce: input". dtype: how uint16 elements are meant ("bf16"), else none. TypeError: no buffer, or no such
  // elements. ValueError: not C-contiguous, or read-only.
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

// As Buffer, of fp32 elements only.
Buffer float_buffer(py::handle object, const std::string& what, Access access);
// One array, or several: an array is no sequence here.
std::vector<Buffer> float_buffers(py::handle arrays, const std::string& what, Access access);
// A new array of the type that `like` has.
py::object empty_like(py::handle like, DType dtype, const std::vector<py::ssize_t>& shape);
// A view of memory that `base` owns.
py::object float_view(const float* data, size_t count, py::handle base, Access access);
// An array that a function is lent for one call.
class LentArray {
 public:
  LentArray(const float* data, size_t count, Access access) : array_(float_view(data, count, py::none(), access)) {}
  LentArray(std::span<const float> values, Access access) : LentArray(values.data(), values.size(), access) {}
  const py::object& array() const { return array_; }
  // RuntimeError: the array, or a part of it, was kept, and its memory will not last.
  void end(const char* what) const;

 private:
  py::object array_;
};
py::bytes bytes_of(const std::vector<std::byte>& bytes);
std::span<const std::byte> span_of(const py::bytes& bytes);

// --- times and texts
// ----------------------------------------------------------------------------------------------------------------------------------

// Seconds as whole milliseconds, rounded up. ValueError: negative or not finite.
Milliseconds milliseconds(double seconds, const char* what);
// The place of the word. ValueError: names those that exist.
size_t word_place(py::handle word, const char* what, std::span<const char* const> words);
// "<unisono.DropStep: step=1 planned=12 …>": all attributes.
std::string fields_text(const py::object& self);

// --- calls
// -------------------------------------------------------------------------------------------------------------------------------------------

// Of a collective: the keywords, and what they point at.
struct CallWords {
  CallOptions options;
  std::optional<DType> dtype;
  Buffer encode_error;
  std::shared_ptr<const std::vector<std::vector<uint32_t>>> needed_ranges;
};
CallWords call_words(const py::kwargs& words, const char* collective);
Options join_options(const py::kwargs& words);

// Deletes without the GIL: what may have to wait for its threads.
struct DeleteReleased {
  template <typename T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    delete object;
  }
};
using GroupClass = py::class_<Group, std::unique_ptr<Group, DeleteReleased>>;

// An operation, and all that has to live as long as it runs.
struct Flight {
  ~Flight() {
    const py::gil_scoped_release released;  // it may be the last that holds the group, which then takes leave of the others
    work = Work();
  }
  Work work;
  std::vector<Buffer> buffers;
  CallWords words;
  py::object output = py::none();  // that the call has allocated
};
// Of one operation: what all_gather and its like have allocated goes with it.
struct OutputReport : Report {
  py::object output = py::none();
};
// Waits, a slice of time after the other, and looks for signals in between. Throws Late ("still running") after `seconds`.
Report wait_for(Work& work, std::optional<double> seconds);
// Lets go of what is kept and done by now.
std::unique_ptr<Flight> new_flight();
// Unless it is done already. It is let go by the first new_flight() after that.
void keep_until_done(std::unique_ptr<Flight> flight);
// A unisono.Work.
py::object work_object(std::unique_ptr<Flight> flight);

// An object that one thread may use at a time. The same thread may ask it questions while it calls back.
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
  // Under the GIL. RuntimeError: another thread is in a call (or this one, where the call is not a question).
  [[nodiscard]] Use call(const char* what) { return enter(what, false); }
  [[nodiscard]] Use question(const char* what) { return enter(what, true); }

 private:
  Use enter(const char* what, bool again);
  std::thread::id thread_;
  int depth_ = 0;
};

// What called back from the library's code: errors are kept, to be thrown when the library's call has returned. Used under the
// GIL.
class Caught {
 public:
  // Calls the function; what it throws is kept, if nothing is kept yet, and told as a Status.
  Status run(const std::function<void()>& function);
  bool any() const { return error_ != nullptr; }
  void rethrow();

 private:
  std::exception_ptr error_;
};

// Member of an object that has to end before the interpreter does, as a thread of its may call back, or others wait for a
// goodbye. Under the GIL.
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
// -------------------------------------------------------------------------------------------------------------------------

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

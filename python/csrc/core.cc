// The module unisono._core, which offers the C++ API over NumPy arrays. This file also raises the library's errors in Python.
#include "core.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "core_calls.h"
#include "forking.h"

namespace unisono_python {

namespace {

// The Python classes of errors: unisono.Error and its subclasses. The index is a Code. They are never freed, because errors may
// be raised while the interpreter ends.
std::array<PyObject*, 8>& error_classes() {
  static std::array<PyObject*, 8> classes{};
  return classes;
}

void import_errors() {
  constexpr const char* names[] = {"Error", "Invalid", "Unavailable", "PeerLost", "Late", "Corrupt", "Unsupported", "Internal"};
  const auto errors = py::module_::import("unisono._errors");
  for (size_t i = 0; i < std::size(names); ++i) error_classes()[i] = py::object(errors.attr(names[i])).release().ptr();
}

// All EndsEarly objects that exist. The list is never freed, because some of these objects are destroyed only at exit.
std::vector<EndsEarly*>& early_ones() {
  static auto& ones = *new std::vector<EndsEarly*>;
  return ones;
}

}  // namespace

bool is_main_thread() {
  // `main` has no initializer that calls Python, because during such a call Python could switch to another thread. This thread
  // could then hold the GIL and wait for the guard of the static variable, and neither thread could continue.
  static std::atomic<unsigned long> main{0};
  if (main == 0) main = py::cast<unsigned long>(py::module_::import("threading").attr("main_thread")().attr("ident"));
  return PyThread_get_thread_ident() == main;
}

Status Caught::run(const std::function<void()>& function) {
  try {
    function();
    return {};
  } catch (const std::exception& error) {
    if (!any()) error_ = std::current_exception();
    return {Code::internal, error.what()};
  }
}

void Caught::rethrow() {
  if (any()) std::rethrow_exception(std::exchange(error_, nullptr));
}

EndsEarly::EndsEarly(std::function<void()> end) : end_(std::move(end)) { early_ones().push_back(this); }
EndsEarly::~EndsEarly() { std::erase(early_ones(), this); }

void EndsEarly::end_all() {
  while (!early_ones().empty()) {
    auto* one = early_ones().back();
    early_ones().pop_back();
    one->end_();
  }
}

void raise(const Status& status) {
  PyErr_SetString(error_classes()[static_cast<size_t>(status.code())], status.to_string().c_str());
  throw py::error_already_set();
}

void run_interruptibly(std::function<void()> function) {
  if (!is_main_thread()) {
    const py::gil_scoped_release released;
    return function();
  }
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, function = std::move(function)] {
    function();
    const std::lock_guard lock(shared->mutex);
    shared->done = true;
    shared->changed.notify_all();
  }).detach();
  for (bool done = false; !done;) {
    {
      const py::gil_scoped_release released;
      std::unique_lock lock(shared->mutex);
      done = shared->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return shared->done; });
    }
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

Exclusive::Use Exclusive::enter(const char* what, bool again) {
  if (depth_ > 0 && !(again && thread_ == std::this_thread::get_id()))
    throw std::runtime_error(std::string(what) + ": the object is in use, by another thread or by the call that called back");
  thread_ = std::this_thread::get_id();
  depth_ += 1;
  return Use(*this);
}

}  // namespace unisono_python

PYBIND11_MODULE(_core, m) {
  using namespace unisono_python;
  m.doc() = "The C++ API of Unisono over NumPy arrays; the package unisono has all of it.";
  m.attr("__version__") = UNISONO_VERSION;
  import_errors();
  const auto at_exit = py::module_::import("atexit").attr("register");
  at_exit(py::cpp_function(end_events));  // what is registered first runs last
  at_exit(py::cpp_function([owner = Owner()] {
    EndsEarly::end_all();
    if (!owner.forked()) refuse_library_threads();
    wait_for_needed_flights();
  }));
  add_events(m);
  add_option_classes(m);
  add_reports(m);
  add_work(m);
  add_group(m);
  add_training(m);
  add_drop_compute(m);
  add_sharded_step(m);
  add_elastic(m);
  add_moshpit_sgd(m);
}

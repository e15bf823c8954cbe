// unisono._core: the C++ API over NumPy arrays. The module, and its errors.
#include "core.h"

#include <array>
#include <condition_variable>
#include <mutex>

namespace unisono_python {

namespace {

// By Code: unisono.Error and its subclasses. Never freed: errors may come while the interpreter ends.
std::array<PyObject*, 8>& error_classes() {
  static std::array<PyObject*, 8> classes{};
  return classes;
}

void import_errors() {
  constexpr const char* names[] = {"Error", "Invalid", "Unavailable", "PeerLost", "Late", "Corrupt", "Unsupported", "Internal"};
  const auto errors = py::module_::import("unisono._errors");
  for (size_t i = 0; i < std::size(names); ++i) error_classes()[i] = py::object(errors.attr(names[i])).release().ptr();
}

bool is_main_thread() {
  const auto threading = py::module_::import("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

}  // namespace

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
  if (depth_ > 0 && !(again && thread_ == std::this_thread::get_id())) throw std::runtime_error(std::string(what) + ": the object is in use, by another thread or by the call that called back");
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
  add_option_classes(m);
  add_reports(m);
  add_work(m);
  add_group(m);
}

// The module unisono._torch: the Python interface of the backend. Only this file includes the headers of Python and pybind11
// together with those of torch.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/gil_safe_call_once.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "torch_futures.h"
#include "torch_staged.h"

namespace unisono::torch_backend {
namespace {

template <typename T>
T parsed(Result<T> result) {
  if (!result) throw py::value_error(result.status().message());
  return std::move(*result);
}

ScheduleKind schedule_of(const std::string& name) {
  if (name.empty()) return ScheduleKind::automatic;
  if (const auto* const facts = find_schedule(name); facts != nullptr) return facts->kind;
  std::string known;
  for (size_t i = 0; i < schedule_count; ++i)
    known += std::string(i == 0 ? "" : i + 1 == schedule_count ? " or " : ", ") + schedule_words[i];
  throw py::value_error("schedule \"" + name + "\": " + known);
}

Order order_of(const std::string& name) {
  if (name.empty() || name == "auto") return Order::automatic;
  if (name == "rank") return Order::in_rank_order;
  if (name == "any") return Order::any;
  throw py::value_error("order \"" + name + "\": auto, rank or any");
}

Security security_of(const std::string& name) {
  if (name.empty() || name == "automatic" || name == "auto") return Security::automatic;
  if (name == "required") return Security::required;
  if (name == "off") return Security::off;
  throw py::value_error("security \"" + name + "\": auto, required or off");
}

// Accepts texts such as "reliable", "lossy", "lossy:loss_budget=0.1,…" and "automatic".
void set_delivery(CallSettings& settings, const std::string& text) {
  const auto colon = text.find(':');
  const auto kind = text.substr(0, colon);
  if (kind.empty() || kind == "reliable") settings.delivery = Delivery::reliable;
  else if (kind == "lossy") settings.delivery = Delivery::lossy;
  else if (kind == "automatic" || kind == "auto") settings.delivery = Delivery::automatic;
  else throw py::value_error("delivery \"" + text + "\": reliable, lossy or automatic, then \":\" and options");
  if (colon != std::string::npos) settings.lossy = parsed(DeliveryOptions::parse(text.substr(colon + 1)));
}

// Reads a setting from the argument. If the argument is empty, reads it from the environment variable; errors then name the
// variable.
template <typename Read>
void read(const std::string& given, const char* variable, Read&& to) {
  const char* text = given.empty() ? std::getenv(variable) : nullptr;
  if (text == nullptr) return to(given);
  try {
    to(std::string(text));
  } catch (const py::value_error& error) {
    throw py::value_error(std::string(variable) + " is '" + text + "': " + error.what());
  }
}

// Returns the settings of a group. Each setting comes from the argument; if it is empty, from the environment; otherwise it has
// its default value.
CallSettings group_settings_of(const std::string& codec, const std::string& schedule, const std::string& order,
                               const std::string& delivery) {
  CallSettings settings;
  read(codec, "UNISONO_CODEC", [&](const std::string& text) {
    if (!text.empty()) settings.codec = parsed(Codec::parse(text));
  });
  read(schedule, "UNISONO_SCHEDULE", [&](const std::string& text) { settings.schedule = schedule_of(text); });
  read(order, "UNISONO_ORDER", [&](const std::string& text) { settings.order = order_of(text); });
  read(delivery, "UNISONO_DELIVERY", [&](const std::string& text) { set_delivery(settings, text); });
  return settings;
}

CallSettings settings_of(const std::string& codec, const std::string& schedule, const std::string& order,
                         const std::string& delivery) {
  CallSettings settings;
  if (!codec.empty()) settings.codec = parsed(Codec::parse(codec));
  settings.schedule = schedule_of(schedule);
  settings.order = order_of(order);
  set_delivery(settings, delivery);
  return settings;
}

py::dict dict_of(const Report& report) {
  py::dict all;
  all["operation"] = std::string(report.operation);
  all["schedule"] = std::string(report.schedule);
  all["world_size"] = report.world_size;
  all["contributors"] = report.contributors;
  all["sent_bytes"] = report.sent_bytes;
  all["received_bytes"] = report.received_bytes;
  all["seconds"] = static_cast<double>(report.total_us) / 1e6;
  all["waited_seconds"] = static_cast<double>(report.wait_us) / 1e6;
  all["last_rank"] = report.last_rank;
  all["codec"] = report.codec.to_string();
  all["codec_note"] = std::string(report.codec_note);
  all["link_note"] = report.link_note;
  all["nonfinite_groups"] = report.nonfinite_groups;
  all["bits_per_element"] = report.bits_per_element();
  if (report.delivery != nullptr) {
    const auto& delivery = *report.delivery;
    uint64_t expected = 0, missing = 0;
    for (const auto* phase : {&delivery.contribute, &delivery.result}) {
      for (const auto& stream : phase->streams) expected += stream.expected, missing += stream.missing;
    }
    all["delivery"] = delivery.to_string();
    all["lossy"] = delivery.used == Delivery::lossy;
    all["missing"] = expected == 0 ? 0.0 : static_cast<double>(missing) / static_cast<double>(expected);
    all["effective_contributors"] = delivery.effective_contributors;
  }
  all["text"] = report.to_string();
  return all;
}

py::object* timed_out_class = nullptr;

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const TimedOut& late) {
    if (timed_out_class == nullptr) throw;
    PyErr_SetString(timed_out_class->ptr(), late.what_without_backtrace());
  }
}

// Makes a future. It completes when the operation does, and it has the identity of the operation (unisono/torch/_future.py).
template <typename AnyWork>
py::object future_of(const c10::intrusive_ptr<AnyWork>& work) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> make;
  make.call_once_and_store_result([] { return py::object(py::module_::import("unisono.torch._future").attr("Future")); });
  py::object future = make.get_stored()(work->identity(), work->devices());
  const auto inner = future.cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
  const py::gil_scoped_release release;
  work->adopt(inner);
  return future;
}

// Joins a group. If this is the thread in which Python handles signals, another thread joins, and handlers run meanwhile. After
// a handler has raised an exception, that thread goes on until the timeout, and leaves the group if it has joined it.
c10::intrusive_ptr<StagedBackend> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const c10::intrusive_ptr<BackendOptions>& options) {
  if (!is_signal_thread()) return StagedBackend::join(store, rank, size, options);
  struct Joining {
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false;
    c10::intrusive_ptr<StagedBackend> backend;
    std::exception_ptr error;
  };
  const auto joining = std::make_shared<Joining>();
  std::thread([joining, store, rank, size, options] {
    const unisono_python::PythonThread python;  // a store may be written in Python
    c10::intrusive_ptr<StagedBackend> backend;
    std::exception_ptr error;
    try {
      backend = StagedBackend::join(store, rank, size, options);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(joining->mutex);
    joining->backend = std::move(backend), joining->error = std::move(error);
    joining->done = true;
    joining->ended.notify_all();
  }).detach();
  (void)wait_interruptibly(far_future(), [&](Clock::duration time) {
    std::unique_lock lock(joining->mutex);
    return joining->ended.wait_for(lock, time, [&] { return joining->done; });
  });
  const std::lock_guard lock(joining->mutex);
  if (joining->error) std::rethrow_exception(joining->error);
  return std::move(joining->backend);
}

template <typename AnyWork>
void define_work(py::module_& m, const char* name) {
  py::class_<AnyWork, c10::intrusive_ptr<AnyWork>, c10d::Work>(m, name)
      .def("get_future", &future_of<AnyWork>)
      .def(
          "report", [](AnyWork& work) { return dict_of(work.report()); },
          "Report of the operation: a dictionary, complete once it has ended.");
}

// The thread in which Python handles signals. The module's initialisation sets it.
std::atomic<unsigned long> signal_thread{0};
std::atomic<bool> interrupted{false};

void add_backend(py::module_& m) {
  py::class_<StagedBackend, c10::intrusive_ptr<StagedBackend>, c10d::Backend>(m, "Backend")
      .def_property_readonly("_over", &StagedBackend::over)
      .def("_all_over", &StagedBackend::all_over, py::call_guard<py::gil_scoped_release>())
      .def("_end_all", &StagedBackend::end_all, py::arg("failure"), py::call_guard<py::gil_scoped_release>())
      .def("_abandon_batch", &StagedBackend::abandon_batch, py::call_guard<py::gil_scoped_release>())
      .def("last_report", [](StagedBackend& backend) { return dict_of(backend.last_report()); })
      // As _enter_call_settings, but order and delivery stay as they are.
      .def("_enter_codec",
           [](const StagedBackend& backend, const std::string& codec, const std::string& schedule) {
             auto settings = backend.call_settings();
             settings.codec = codec.empty() ? std::nullopt : std::optional(parsed(Codec::parse(codec)));
             settings.schedule = schedule_of(schedule);
             return std::exchange(call_context().settings, std::move(settings));
           })
      .def("_check_error_feedback", &StagedBackend::check_error_feedback)
      .def("_group_capsule",
           [](StagedBackend& backend) {
             auto group = std::make_unique<Group>(backend.group());
             return py::capsule(group.release(), "unisono.Group", [](PyObject* capsule) {
               auto* group = static_cast<Group*>(PyCapsule_GetPointer(capsule, "unisono.Group"));
               // The GIL is released because this may be the last handle of the group. Then its destructor tells the other
               // ranks that this rank leaves, which may take time.
               without_gil([group] { delete group; });
             });
           })
      .def(
          "_all_reduce_with_feedback",
          [](StagedBackend& backend, at::Tensor tensor, at::Tensor error, const std::string& codec, bool average) {
            return backend.all_reduce_with_feedback(tensor, error, parsed(Codec::parse(codec)), average);
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "_reduce_scatter_with_feedback",
          [](StagedBackend& backend, at::Tensor output, at::Tensor input, at::Tensor error, const std::string& codec,
             bool average) {
            return backend.reduce_scatter_with_feedback(output, input, error, parsed(Codec::parse(codec)), average);
          },
          py::call_guard<py::gil_scoped_release>());
}

void add_functions(py::module_& m) {
  signal_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  m.def("_set_timed_out_class", [](py::object type) { timed_out_class = new py::object(std::move(type)); });
  // Later groups pass their events to the handler in this capsule, which unisono._core has made.
  m.def("_set_event_handler", [](const py::capsule& capsule) {
    const auto* handler = static_cast<const EventHandler*>(PyCapsule_GetPointer(capsule.ptr(), "unisono.EventHandler"));
    if (handler == nullptr) throw py::error_already_set();
    set_event_handler(*handler);
  });
  m.def("_join", &join, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
        py::call_guard<py::gil_scoped_release>());
  // Both are for the thread in which Python handles signals; in other threads they do nothing.
  const auto future_function = [&](const char* name, void (*function)(const c10::intrusive_ptr<c10::ivalue::Future>&)) {
    m.def(
        name, [function](const std::shared_ptr<torch::jit::PythonFutureWrapper>& future) { function(future->fut); },
        py::arg("future"), py::call_guard<py::gil_scoped_release>());
  };
  future_function("_wait_for", &wait_for_future);
  future_function("_wait_in_backward", &wait_in_backward);
  // Completes the future `to` with the value or the error of the future `from`. An exception keeps its class.
  m.def("_pass_on", [](const std::shared_ptr<torch::jit::PythonFutureWrapper>& from,
                       const std::shared_ptr<torch::jit::PythonFutureWrapper>& to) {
    const py::gil_scoped_release release;
    from->fut->addCallback([to = to->fut](c10::ivalue::Future& future) {
      if (future.hasError()) to->setError(future.exception_ptr());
      else to->markCompleted(future.value());
    });
  });
  // Completes a future with a Python exception object. With torch.futures.Future.set_exception, only the text of the exception
  // would remain.
  m.def("_fail_future", [](const std::shared_ptr<torch::jit::PythonFutureWrapper>& future, const py::object& exception) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    python_error error;
    error.persist();
    const auto pointer = std::make_exception_ptr(error);
    const py::gil_scoped_release release;
    future->fut->setErrorIfNeeded(pointer);
  });
  // The calls of this thread get these settings. Returns the previous ones, which _leave_call_settings needs. ValueError: a
  // setting makes no sense; then nothing has changed.
  m.def("_enter_call_settings",
        [](const std::string& codec, const std::string& schedule, const std::string& order, const std::string& delivery) {
          return std::exchange(call_context().settings, settings_of(codec, schedule, order, delivery));
        });
  m.def("_leave_call_settings", [](std::optional<CallSettings> before) { call_context().settings = std::move(before); });
  // From now on, calls in this thread belong to this callback. Returns the previous context, which _leave_callback needs.
  m.def("_enter_callback", [](uint64_t id) {
    auto& context = call_context();
    const std::pair<uint64_t, uint64_t> before{context.callback_id, context.calls};
    context.callback_id = id;
    context.calls = 0;
    return before;
  });
  m.def("_leave_callback", [](const std::pair<uint64_t, uint64_t>& before) {
    call_context().callback_id = before.first, call_context().calls = before.second;
  });
}

}  // namespace

bool is_signal_thread() { return PyThread_get_thread_ident() == signal_thread && Py_IsInitialized(); }

void handle_signals() {
  if (!is_signal_thread()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  interrupted = true;
  throw py::error_already_set();
}

bool was_interrupted() { return interrupted; }

void set_interrupted(bool value) { interrupted = value; }

void without_gil(const std::function<void()>& task) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return task();
  const py::gil_scoped_release release;
  task();
}

}  // namespace unisono::torch_backend

PYBIND11_MODULE(_torch, m) {
  using namespace unisono;
  using namespace unisono::torch_backend;
  m.doc() = "The backend `unisono` of torch.distributed; see unisono.torch.";
  py::module_::import("torch.distributed");
  py::register_exception_translator(&translate);

  py::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>, c10d::Backend::Options>(m, "Options")
      .def(py::init([](std::chrono::milliseconds timeout, const std::string& transport, const std::string& interface,
                       const std::string& codec, const std::string& schedule, const std::string& order,
                       const std::string& delivery, const std::string& tuning, uint32_t streams_per_link,
                       uint32_t compute_threads, uint32_t rate_limit_mbps, bool payload_checksum, const std::string& key,
                       const std::string& security) {
             auto options = c10::make_intrusive<BackendOptions>(timeout);
             options->join.transport = transport;
             options->join.interface = interface;
             options->join.tuning = tuning;
             options->join.key = key;
             options->join.security = security_of(security);
             options->join.streams_per_link = streams_per_link;
             options->join.compute_threads = compute_threads;
             options->join.rate_limit_mbps = rate_limit_mbps;
             options->join.payload_checksum = payload_checksum;
             // The codec is kept in CallSettings. Without this line, the core would read a codec from the environment.
             options->join.codec = "plain";
             options->calls = group_settings_of(codec, schedule, order, delivery);
             return options;
           }),
           py::kw_only(), py::arg("timeout") = kBackendDefaultTimeout, py::arg("transport") = "", py::arg("interface") = "",
           py::arg("codec") = "", py::arg("schedule") = "", py::arg("order") = "", py::arg("delivery") = "",
           py::arg("tuning") = "", py::arg("streams_per_link") = 0, py::arg("compute_threads") = 0,
           py::arg("rate_limit_mbps") = 0, py::arg("payload_checksum") = false, py::arg("key") = "", py::arg("security") = "")
      .def("_copy", [](const BackendOptions& options) { return c10::make_intrusive<BackendOptions>(options); })
      .def_property(
          "_timeout", [](const BackendOptions& options) { return options.timeout; },
          [](BackendOptions& options, std::chrono::milliseconds timeout) { options.timeout = timeout; });

  py::class_<CallSettings>(m, "_CallSettings");  // opaque

  define_work<TorchWork>(m, "Work");
  define_work<StagedWork>(m, "StagedWork");

  add_backend(m);
  add_functions(m);
}

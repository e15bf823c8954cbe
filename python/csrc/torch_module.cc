// The module unisono._torch: the backend's Python interface. The only file that includes Python's and pybind11's headers
// together with torch's.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include <cstdlib>

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

// "reliable", "lossy", "lossy:loss_budget=0.1,…", "automatic"
void set_delivery(CallSettings& settings, const std::string& text) {
  const auto colon = text.find(':');
  const auto kind = text.substr(0, colon);
  if (kind.empty() || kind == "reliable") settings.delivery = Delivery::reliable;
  else if (kind == "lossy") settings.delivery = Delivery::lossy;
  else if (kind == "automatic" || kind == "auto") settings.delivery = Delivery::automatic;
  else throw py::value_error("delivery \"" + text + "\": reliable, lossy or automatic, then \":\" and options");
  if (colon != std::string::npos) settings.lossy = parsed(DeliveryOptions::parse(text.substr(colon + 1)));
}

// Settings not given are read from the environment; an error names the variable.
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

// Settings of a group: arguments first, then the environment, then defaults.
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

// Makes a future that completes with the operation and knows which operation it was (unisono/torch/_future.py).
template <typename AnyWork>
py::object future_of(const c10::intrusive_ptr<AnyWork>& work) {
  static py::object* const make = new py::object(py::module_::import("unisono.torch._future").attr("Future"));
  py::object future = (*make)(work->identity(), work->devices());
  const auto inner = future.cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
  const py::gil_scoped_release release;
  work->adopt(inner);
  return future;
}

template <typename AnyWork>
void define_work(py::module_& m, const char* name) {
  py::class_<AnyWork, c10::intrusive_ptr<AnyWork>, c10d::Work>(m, name)
      .def("get_future", &future_of<AnyWork>)
      .def(
          "report", [](AnyWork& work) { return dict_of(work.report()); },
          "Report of the operation: a dictionary, complete once it has ended.");
}

void add_functions(py::module_& m) {
  m.def("_join", &StagedBackend::join, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
        py::call_guard<py::gil_scoped_release>());
  // A callback's result or error becomes that of its caller's future; exceptions stay exceptions.
  m.def("_pass_on", [](const std::shared_ptr<torch::jit::PythonFutureWrapper>& from,
                       const std::shared_ptr<torch::jit::PythonFutureWrapper>& to) {
    const py::gil_scoped_release release;
    from->fut->addCallback([to = to->fut](c10::ivalue::Future& future) {
      if (future.hasError()) to->setError(future.exception_ptr());
      else to->markCompleted(future.value());
    });
  });
  // Completes a future with a Python exception object; torch.futures.Future.set_exception would keep only its text.
  m.def("_fail_future", [](const std::shared_ptr<torch::jit::PythonFutureWrapper>& future, const py::object& exception) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    python_error error;
    error.persist();
    const auto pointer = std::make_exception_ptr(error);
    const py::gil_scoped_release release;
    future->fut->setErrorIfNeeded(pointer);
  });
  m.def("_set_call_settings",
        [](const std::string& codec, const std::string& schedule, const std::string& order, const std::string& delivery) {
          call_context().settings = settings_of(codec, schedule, order, delivery);
        });
  m.def("_clear_call_settings", [] { call_context().settings.reset(); });
  // Returns the previous value, for _leave_place.
  m.def("_enter_place", [](uint64_t place) {
    auto& context = call_context();
    const std::pair<uint64_t, uint64_t> before{context.place, context.calls};
    context.place = place;
    context.calls = 0;
    return before;
  });
  m.def("_leave_place", [](const std::pair<uint64_t, uint64_t>& before) {
    call_context().place = before.first, call_context().calls = before.second;
  });
}

}  // namespace

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
  m.def("_set_timed_out_class", [](py::object type) { timed_out_class = new py::object(std::move(type)); });

  py::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>, c10d::Backend::Options>(m, "Options")
      .def(py::init([](std::chrono::milliseconds timeout, const std::string& transport, const std::string& interface,
                       const std::string& codec, const std::string& schedule, const std::string& order,
                       const std::string& delivery, const std::string& tuning, uint32_t streams_per_link,
                       uint32_t compute_threads, uint32_t rate_limit_mbps, bool payload_checksum) {
             auto options = c10::make_intrusive<BackendOptions>(timeout);
             options->join.transport = transport;
             options->join.interface = interface;
             options->join.tuning = tuning;
             options->join.streams_per_link = streams_per_link;
             options->join.compute_threads = compute_threads;
             options->join.rate_limit_mbps = rate_limit_mbps;
             options->join.payload_checksum = payload_checksum;
             options->join.codec = "plain";  // overrides the environment's codec
             options->calls = group_settings_of(codec, schedule, order, delivery);
             return options;
           }),
           py::kw_only(), py::arg("timeout") = kBackendDefaultTimeout, py::arg("transport") = "", py::arg("interface") = "",
           py::arg("codec") = "", py::arg("schedule") = "", py::arg("order") = "", py::arg("delivery") = "",
           py::arg("tuning") = "", py::arg("streams_per_link") = 0, py::arg("compute_threads") = 0,
           py::arg("rate_limit_mbps") = 0, py::arg("payload_checksum") = false)
      .def("_copy", [](const BackendOptions& options) { return c10::make_intrusive<BackendOptions>(options); })
      .def_property(
          "_timeout", [](const BackendOptions& options) { return options.timeout; },
          [](BackendOptions& options, std::chrono::milliseconds timeout) { options.timeout = timeout; });

  define_work<TorchWork>(m, "Work");
  define_work<StagedWork>(m, "StagedWork");

  py::class_<StagedBackend, c10::intrusive_ptr<StagedBackend>, c10d::Backend>(m, "Backend")
      // For a forked child, which has none of the backend's threads: leaves the object as it is.
      .def("_abandon", [](c10::intrusive_ptr<StagedBackend> backend) { (void)backend.release(); })
      .def_property_readonly("_over", &StagedBackend::over)
      .def("last_report", [](StagedBackend& backend) { return dict_of(backend.last_report()); })
      .def("_group_capsule",
           [](StagedBackend& backend) {
             auto group = std::make_unique<Group>(backend.group());
             return py::capsule(group.release(), "unisono.Group", [](PyObject* capsule) {
               auto* group = static_cast<Group*>(PyCapsule_GetPointer(capsule, "unisono.Group"));
               without_gil([group] { delete group; });  // the last handle says goodbye to the other ranks
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
  add_functions(m);
}

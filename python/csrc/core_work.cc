// Operations in flight: interruptible waiting, and memory that lives as long as the library may write to it.
#include <algorithm>
#include <chrono>

#include "core.h"

namespace unisono_python {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto slice = std::chrono::milliseconds(100);

// Never freed: an operation that still runs when the interpreter ends keeps its memory until the process ends.
std::vector<std::unique_ptr<Flight>>& kept() {
  static auto& flights = *new std::vector<std::unique_ptr<Flight>>;
  return flights;
}

bool is_done(const Work& work) {
  const py::gil_scoped_release released;
  return work.done();
}

void let_go_of_done() {
  auto running = std::exchange(kept(), {});  // others may be added while the GIL is released
  for (auto& flight : running) {
    if (!is_done(flight->work)) kept().push_back(std::move(flight));
  }
}

void let_go_of_memory(Flight& flight) {
  flight.buffers.clear();
  flight.words.encode_error = Buffer();
}

// unisono::Work together with its memory.
class PythonWork {
 public:
  explicit PythonWork(std::unique_ptr<Flight> flight) : flight_(std::move(flight)) {}
  PythonWork(PythonWork&&) = default;
  ~PythonWork() {
    if (flight_ != nullptr) keep_until_done(std::move(flight_));
  }

  OutputReport wait(std::optional<double> seconds) {
    auto work = flight_->work;
    try {
      OutputReport report{wait_for(work, seconds), flight_->output};
      let_go_of_memory(*flight_);
      return report;
    } catch (...) {
      (void)done();
      throw;
    }
  }
  bool done() {
    if (!is_done(flight_->work)) return false;
    let_go_of_memory(*flight_);
    return true;
  }
  OutputReport report() const {
    const auto report = [&] {
      const py::gil_scoped_release released;
      return flight_->work.report();
    }();
    return {report, flight_->output};
  }

 private:
  std::unique_ptr<Flight> flight_;
};

}  // namespace

Report wait_for(Work& work, std::optional<double> seconds) {
  const auto until = seconds ? Clock::now() + milliseconds(*seconds, "timeout") : Clock::time_point::max();
  for (;;) {
    const auto begun = Clock::now();
    const auto left =
        std::chrono::ceil<Milliseconds>(std::clamp(until - begun, Clock::duration::zero(), Clock::duration(slice)));
    auto [outcome, done] = [&] {
      const py::gil_scoped_release released;
      auto waited = work.wait_for(left);
      const bool is_over = work.done();
      // An aborted operation returns at once; wait() gives the reason.
      if (is_over || (left == slice && Clock::now() - begun < slice / 2)) return std::pair(work.wait(), true);
      return std::pair(std::move(waited), false);
    }();
    if (done || Clock::now() >= until) return check(std::move(outcome));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void keep_until_done(std::unique_ptr<Flight> flight) {
  if (!is_done(flight->work)) kept().push_back(std::move(flight));
}

std::unique_ptr<Flight> new_flight() {
  if (!kept().empty()) let_go_of_done();
  return std::make_unique<Flight>();
}

py::object work_object(std::unique_ptr<Flight> flight) { return py::cast(PythonWork(std::move(flight))); }

void add_work(py::module_& m) {
  py::class_<PythonWork>(m, "Work",
                         "One operation in flight. Its arrays must not be touched until it is done. They are kept alive until "
                         "then, even if this object is dropped.")
      .def("wait", &PythonWork::wait, py::arg("timeout") = py::none(),
           "Blocks until the operation is done. Returns its Report, or raises the Error of its failure.\n\ntimeout: seconds "
           "until Late (\"still running\") is raised; the operation continues. None: until its own "
           "deadline.\nKeyboardInterrupt is raised within 0.1 s; the operation continues.")
      .def("done", &PythonWork::done, "Whether the operation has ended, whatever the outcome.")
      .def("report", &PythonWork::report,
           "The report so far. It is complete once done() is true, also for a failed operation.");
  m.def(
      "_kept",
      [] {
        let_go_of_done();
        return kept().size();
      },
      "Number of running operations without a waiting thread (for tests).");
}

}  // namespace unisono_python

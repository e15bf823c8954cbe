// Waits for operations in such a way that signals can interrupt the wait. Keeps memory alive as long as the library may write
// to it.
#include <algorithm>
#include <chrono>
#include <set>

#include "core.h"

namespace unisono_python {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto slice = std::chrono::milliseconds(100);

// The flights of operations for which no thread waits. They are never freed at exit, because an operation may still be running
// when the interpreter ends. It needs its memory until the process ends.
std::vector<std::unique_ptr<Flight>>& kept() {
  static auto& flights = *new std::vector<std::unique_ptr<Flight>>;
  return flights;
}

// All flights. Their end is waited for when the program ends.
std::set<Flight*>& all_flights() {
  static auto& flights = *new std::set<Flight*>;
  return flights;
}

bool is_done(const Flight& flight) {
  if (flight.ended != nullptr) return *flight.ended;
  const py::gil_scoped_release released;
  return flight.work.done();
}

void release_done_flights() {
  auto running = std::exchange(kept(), {});  // the list may grow while the GIL is released
  for (auto& flight : running) {
    if (!is_done(*flight)) kept().push_back(std::move(flight));
  }
}

void release_memory(Flight& flight) {
  flight.buffers.clear();
  flight.words.encode_error = Buffer();
}

// Waits for the operation in short pieces of time. Throws what the handler of a signal raises.
Result<Report> outcome_of(Work& work, std::optional<double> seconds) {
  const auto until = seconds ? Clock::now() + milliseconds(*seconds, "timeout") : Clock::time_point::max();
  for (;;) {
    const auto begun = Clock::now();
    const auto left =
        std::chrono::ceil<Milliseconds>(std::clamp(until - begun, Clock::duration::zero(), Clock::duration(slice)));
    auto [outcome, done] = [&] {
      const py::gil_scoped_release released;
      auto waited = work.wait_for(left);
      const bool is_over = work.done();
      // If the operation was aborted, wait_for() returns early, and then wait() returns the reason at once.
      if (is_over || (left == slice && Clock::now() - begun < slice / 2)) return std::pair(work.wait(), true);
      return std::pair(std::move(waited), false);
    }();
    if (done || Clock::now() >= until) return std::move(outcome);
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// A unisono::Work, and the memory that its operation uses.
class PythonWork {
 public:
  explicit PythonWork(std::unique_ptr<Flight> flight) : flight_(std::move(flight)) {}
  PythonWork(PythonWork&&) = default;
  ~PythonWork() {
    if (flight_ != nullptr) keep_until_done(std::move(flight_));
  }

  OutputReport wait(std::optional<double> seconds) {
    auto outcome = [&] {
      try {
        auto work = flight_->work;
        return outcome_of(work, seconds);
      } catch (...) {
        flight_->needed = false;
        throw;
      }
    }();
    (void)done();
    return {check(std::move(outcome)), flight_->output};
  }
  bool done() {
    if (!is_done(*flight_)) return false;
    release_memory(*flight_);
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

Flight::Flight() { all_flights().insert(this); }

Flight::~Flight() {
  all_flights().erase(this);
  // `work` may hold the group's last handle, whose destructor tells the other ranks that this rank leaves. This may take time.
  const py::gil_scoped_release released;
  work = Work();
}

Report wait_for(Work& work, std::optional<double> seconds) { return check(outcome_of(work, seconds)); }

void keep_until_done(std::unique_ptr<Flight> flight) {
  if (!is_done(*flight)) kept().push_back(std::move(flight));
}

void wait_for_needed_flights() {
  if (!py::getattr(py::module_::import("sys"), "last_value", py::none()).is_none()) return;
  std::vector<Work> works;
  for (const auto* flight : all_flights()) {
    if (flight->needed) works.push_back(flight->work);
  }
  for (auto& work : works) (void)outcome_of(work, {});
  release_done_flights();
}

std::unique_ptr<Flight> new_flight() {
  if (!kept().empty()) release_done_flights();
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
        release_done_flights();
        return kept().size();
      },
      "Number of running operations without a waiting thread (for tests).");
}

}  // namespace unisono_python

// DropCompute: its options, its reports and its steps. Its callbacks are Python functions.
#include "core_calls.h"
#include "core_options.h"

namespace unisono_python {

namespace {

constexpr const char* thresholds[] = {"off", "fixed", "automatic"};
constexpr const char* rules[] = {"after", "before", "at"};
constexpr const char* normalizes[] = {"maximum", "computed"};
constexpr const char* tails[] = {"defer", "discard"};
constexpr const char* objectives[] = {"step_mean", "total"};
constexpr const char* searches[] = {"exact", "grid"};

// The Python functions of one run(). The library keeps `compute` after the call has returned, and may free it in any thread.
struct Functions {
  py::object compute, reduce, apply;
  Caught caught;
};

std::shared_ptr<Functions> make_functions(py::object compute, py::object reduce, py::object apply) {
  return {new Functions{std::move(compute), std::move(reduce), std::move(apply), {}}, [](Functions* functions) {
            // If this does not run, the interpreter ends, and the memory stays until the process ends.
            (void)call_python([functions] { delete functions; });
          }};
}

Status call_with_array(Functions& functions, const char* what, std::span<const float> values, Access access,
                       const std::function<void(const py::object&)>& call) {
  Status status;
  const bool ran = call_python([&] {
    status = functions.caught.run([&] {
      const CallArray lent(values, access);
      call(lent.array());
      lent.end(what);
    });
  });
  return ran ? status
             : Status(Code::unavailable, std::string(what) + " has not run, because the program has given up the step");
}

DropWork work_of(const std::shared_ptr<Functions>& functions) {
  DropWork work;
  work.compute = [functions](uint64_t position, std::span<float> gradients) {
    return call_with_array(*functions, "compute", gradients, Access::write,
                           [&](const py::object& array) { functions->compute(position, array); });
  };
  if (!functions->reduce.is_none()) {
    work.reduce = [functions](std::span<float> gradients) {
      return call_with_array(*functions, "reduce", gradients, Access::write,
                             [&](const py::object& array) { functions->reduce(array); });
    };
  }
  if (!functions->apply.is_none()) {
    work.apply = [functions](std::span<const float> gradients, const DropStep& step) {
      (void)call_with_array(*functions, "apply", gradients, Access::read,
                            [&](const py::object& array) { functions->apply(array, step); });
    };
  }
  return work;
}

class PythonDropCompute {
 public:
  PythonDropCompute(const Group& group, uint32_t micro_batches, py::handle options, const Group* replica)
      : early_([this] { end(); }) {
    const auto read = option_of<DropOptions>(options, "options");
    const auto with = replica == nullptr ? std::optional<Group>() : std::optional(*replica);
    const auto groups = owned(std::pair(Group(group), with));
    has_replica_ = with.has_value();
    drop_ = owned(check(calls_.run(
        [groups, micro_batches, read] { return DropCompute::make(groups->first, micro_batches, read, groups->second); })));
  }
  PythonDropCompute(const PythonDropCompute&) = delete;
  ~PythonDropCompute() { end(); }

  // call() is for calls that may block; the function must own all that it uses. change() is for calls that send nothing.
  // query() is for calls that only read.
  template <typename F>
  auto call(const char* what, F function) {
    const auto use = busy_.call(what);
    (void)alive();
    return calls_.run([drop = drop_, function] { return function(*drop); });
  }
  template <typename F>
  auto change(const char* what, F function) {
    const auto use = busy_.call(what);
    calls_.finish();
    auto& drop = alive();
    const py::gil_scoped_release released;
    return function(drop);
  }
  template <typename F>
  auto query(const char* what, F function) {
    const auto use = busy_.query(what);
    calls_.finish();
    return function(alive());
  }
  // The processes of a replica decide together, so they wait for each other.
  bool next() {
    const auto function = [](DropCompute& drop) { return drop.next(); };
    return has_replica_ ? call("DropCompute.next", function) : change("DropCompute.next", function);
  }
  DropStep run(py::handle gradients, py::object compute, py::object apply, py::object reduce) {
    const auto buffer = std::make_shared<const Buffer>(float_buffer(gradients, "run: gradients", Access::write));
    return check(run_with("DropCompute.run", make_functions(std::move(compute), std::move(reduce), std::move(apply)),
                          [buffer](DropCompute& drop, const DropWork& work) { return drop.run(buffer->floats(), work); }));
  }
  void drain(py::object compute, py::object apply) {
    check(run_with("DropCompute.drain", make_functions(std::move(compute), py::none(), std::move(apply)),
                   [](DropCompute& drop, const DropWork& work) { return drop.drain(work); }));
  }
  void resume(const Group& group, const Group* replica) {
    const auto groups = owned(std::pair(Group(group), replica == nullptr ? std::optional<Group>() : std::optional(*replica)));
    check(call("DropCompute.resume", [groups](DropCompute& drop) { return drop.resume(groups->first, groups->second); }));
    has_replica_ = replica != nullptr;
  }

 private:
  DropCompute& alive() {
    if (!drop_) throw std::runtime_error("DropCompute has ended");
    return *drop_;
  }
  // Throws the errors of the callbacks of this call. With the rule `at`, a micro-batch may still be running when its step ends.
  // So errors that the callbacks of the previous call have caused since then are thrown, too.
  template <typename F>
  auto run_with(const char* what, const std::shared_ptr<Functions>& functions, F function)
      -> decltype(function(std::declval<DropCompute&>(), std::declval<const DropWork&>())) {
    const auto earlier = std::exchange(functions_, functions);
    auto result = call(what, [work = work_of(functions), function](DropCompute& drop) { return function(drop, work); });
    if (earlier != nullptr) earlier->caught.rethrow();
    functions->caught.rethrow();
    return result;
  }
  void end() {
    calls_.abandon();
    drop_.reset();  // the destructor may wait for a running micro-batch; it releases the GIL
  }
  std::shared_ptr<DropCompute> drop_;
  std::shared_ptr<Functions> functions_;
  bool has_replica_ = false;
  Exclusive busy_;
  InterruptibleCalls calls_;
  EndsEarly early_;
};

using Drop = PythonDropCompute;

void add_drop_options(py::module_& m) {
  py::class_<DropOptions> options(m, "DropOptions",
                                  "When a rank drops micro-batches (docs/guides/stragglers.md). Times are in seconds.");
  add_options(options, "DropOptions");
  add_word(options, "threshold", &DropOptions::threshold, thresholds);
  options.def_readwrite("seconds", &DropOptions::seconds);
  add_word(options, "rule", &DropOptions::rule, rules);
  options.def_readwrite("lag", &DropOptions::lag);
  options.def_readwrite("min_computed", &DropOptions::min_computed);
  add_word(options, "normalize", &DropOptions::normalize, normalizes);
  add_word(options, "tail", &DropOptions::tail, tails);
  options.def_readwrite("warmup_steps", &DropOptions::warmup_steps);
  options.def_readwrite("calibration_steps", &DropOptions::calibration_steps);
  options.def_readwrite("min_calibration_steps", &DropOptions::min_calibration_steps);
  add_word(options, "objective", &DropOptions::objective, objectives);
  add_word(options, "search", &DropOptions::search, searches);
  options.def_readwrite("slack", &DropOptions::slack);
  options.def_readwrite("max_drop", &DropOptions::max_drop);
  options.def_readwrite("min_gain", &DropOptions::min_gain);
  options.def_readwrite("recalibrate", &DropOptions::recalibrate);
  options.def_readwrite("window", &DropOptions::window);
  options.def_readwrite("shard", &DropOptions::shard);
  options.def_readwrite("replay", &DropOptions::replay);
  options.attr("never") = uint64_t{DropOptions::never};
  options.attr("on_drift") = uint64_t{DropOptions::on_drift};
  options.def(
      "check", [](const DropOptions& self, uint32_t micro_batches) { check(self.check(micro_batches)); },
      py::arg("micro_batches"), "Invalid: names the first error.");
}

void add_drop_reports(py::module_& m) {
  py::class_<DropStep> step(m, "DropStep", "Result of one step on this rank.");
  step.def_readonly("step", &DropStep::step);
  step.def_readonly("planned", &DropStep::planned);
  step.def_readonly("computed", &DropStep::computed);
  step.def_readonly("applied", &DropStep::applied);
  step.def_readonly("scale", &DropStep::scale);
  step.def_readonly("epoch_ended", &DropStep::epoch_ended);
  step.def_readonly("compute_ns", &DropStep::compute_ns);
  step.def_readonly("warnings", &DropStep::warnings);
  add_fields_text(step);
  py::class_<DropReport> report(
      m, "DropReport", "Report of a window of steps, or of all windows so far; equal on all ranks. Times are in seconds.");
  report.def_readonly("first_step", &DropReport::first_step);
  report.def_readonly("last_step", &DropReport::last_step);
  report.def_readonly("steps", &DropReport::steps);
  report.def_readonly("state", &DropReport::state);
  report.def_readonly("rule", &DropReport::rule);
  report.def_readonly("off", &DropReport::off);
  report.def_readonly("threshold", &DropReport::threshold);
  report.def_readonly("other", &DropReport::other);
  report.def_readonly("micro_batch", &DropReport::micro_batch);
  report.def_readonly("predicted_drop", &DropReport::predicted_drop);
  report.def_readonly("drop", &DropReport::drop);
  report.def_readonly("drop_most", &DropReport::drop_most);
  report.def_readonly("drop_most_rank", &DropReport::drop_most_rank);
  report.def_readonly("predicted_step", &DropReport::predicted_step);
  report.def_readonly("predicted_total", &DropReport::predicted_total);
  report.def_readonly("per_second_before", &DropReport::per_second_before);
  report.def_readonly("per_second", &DropReport::per_second);
  report.def_readonly("step_mean", &DropReport::step_mean);
  report.def_readonly("step_deviation", &DropReport::step_deviation);
  report.def_readonly("compute_mean", &DropReport::compute_mean);
  report.def_readonly("compute_deviation", &DropReport::compute_deviation);
  report.def_readonly("arrival_spread", &DropReport::arrival_spread);
  report.def_readonly("extra_steps", &DropReport::extra_steps);
  add_text(report);
}

void add_steps(py::class_<Drop>& drop) {
  drop.def(
      "begin_step",
      [](Drop& self) { check(self.call("DropCompute.begin_step", [](DropCompute& d) { return d.begin_step(); })); },
      "Call right after the optimizer's step; the step's time begins. Invalid after a step that failed once its micro-batches "
      "were computed: then all ranks call resume().");
  drop.def("next", &Drop::next,
           "Whether to compute another micro-batch; the previous one must be complete. False: join the all-reduce.");
  drop.def_property_readonly(
      "position", [](Drop& self) { return self.query("DropCompute.position", [](DropCompute& d) { return d.position(); }); },
      "Position in this rank's data of the micro-batch that next() requested, in micro-batches from 0.");
  drop.def_property_readonly(
      "last", [](Drop& self) { return self.query("DropCompute.last", [](DropCompute& d) { return d.last(); }); },
      "Whether the running micro-batch is certainly the step's last.");
  drop.def(
      "should_stop",
      [](Drop& self) { return self.query("DropCompute.should_stop", [](DropCompute& d) { return d.should_stop(); }); },
      "Call inside a micro-batch: whether it is late. The caller may discard its partial gradients, call abandon(), and join "
      "the all-reduce.");
  drop.def("abandon", [](Drop& self) { self.query("DropCompute.abandon", [](DropCompute& d) { return d.abandon(); }); });
  drop.def(
      "end_step",
      [](Drop& self) { return check(self.call("DropCompute.end_step", [](DropCompute& d) { return d.end_step(); })); },
      "Call after the all-reduce.");
  drop.def(
      "pause", [](Drop& self) { self.change("DropCompute.pause", [](DropCompute& d) { return d.pause(); }); },
      "Call between two steps, before work that belongs to no step, such as a validation.");
  drop.def("run", &Drop::run, py::arg("gradients"), py::arg("compute"), py::arg("apply") = py::none(),
           py::arg("reduce") = py::none(),
           "Runs a whole step under any rule.\n\ngradients: float32, zeros at first, and zeros again on "
           "return.\ncompute(position, gradients): adds the gradient of that micro-batch, divided by the micro-batches per "
           "step. With the rule `at` it runs in another thread, and may outlast run().\napply(gradients, step): uses the "
           "averages; not called for a step that is not applied.\nreduce(gradients): averages over the group; None: an "
           "all-reduce.\nThe arrays are valid during the call only. run() raises the functions' errors.\nKeyboardInterrupt is "
           "raised within "
           "0.1 s; the step continues, and the next call of this object first waits for its end.");
  drop.def("drain", &Drop::drain, py::arg("compute"), py::arg("apply") = py::none(),
           "With the rule `at`: waits for the abandoned micro-batch, and calls apply() for pending averages.");
}

}  // namespace

void add_drop_compute(py::module_& m) {
  add_drop_options(m);
  add_drop_reports(m);
  py::class_<Drop> drop(m, "DropCompute",
                        "A compute threshold per step, so that no rank waits long for the slowest of many micro-batches "
                        "(docs/guides/stragglers.md).");
  drop.def(py::init<const Group&, uint32_t, py::handle, const Group*>(), py::arg("group"), py::arg("micro_batches"),
           py::arg("options") = "auto", py::arg("replica") = py::none(),
           "All ranks call it with equal arguments.\n\nmicro_batches: of each rank in a step. options: DropOptions, or their "
           "text. replica: the processes that compute one replica together, if there are several.\nInvalid: options make no "
           "sense, or differ between ranks.");
  add_steps(drop);
  drop.def(
      "report", [](Drop& self) { return self.query("DropCompute.report", [](DropCompute& d) { return d.report(); }); },
      "Report of the last window; before the first, steps is 0.");
  drop.def(
      "total", [](Drop& self) { return self.query("DropCompute.total", [](DropCompute& d) { return d.total(); }); },
      "Report of all windows so far.");
  drop.def(
      "finish", [](Drop& self) { return check(self.call("DropCompute.finish", [](DropCompute& d) { return d.finish(); })); },
      "Call at the end, between two steps, on all ranks: turns the current window into a report.");
  drop.def(
      "recorded", [](Drop& self) { return self.query("DropCompute.recorded", [](DropCompute& d) { return d.recorded(); }); },
      "Times that this rank recorded, as lines that `unisono-lab drop-compute search` reads.");
  drop.def_static("recorded_head", &DropCompute::recorded_head, py::arg("micro_batches"),
                  "The header line of a file of such lines.");
  drop.def(
      "save", [](Drop& self) { return bytes_of(self.change("DropCompute.save", [](DropCompute& d) { return d.save(); })); },
      "This rank's data position and step.");
  drop.def(
      "load",
      [](Drop& self, const py::bytes& state) {
        check(self.change("DropCompute.load", [bytes = span_of(state)](DropCompute& d) { return d.load(bytes); }));
      },
      py::arg("state"),
      "All ranks load, each the bytes that it saved after the same step. Corrupt, Invalid: nothing has changed.");
  drop.def(
      "resume", &Drop::resume, py::arg("group"), py::arg("replica") = py::none(),
      "Call on all ranks after Group.reform(), or after a step that failed on some ranks; processes that joined make a new "
      "DropCompute.");
}

}  // namespace unisono_python

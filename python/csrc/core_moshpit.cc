// MoshpitSgd in Python. Each peer makes local optimizer steps, and every few steps an elastic run averages the peers'
// parameters.
#include "core_calls.h"
#include "core_elastic.h"
#include "core_options.h"

namespace unisono_python {

namespace {

constexpr const char* averages[] = {"parameters", "pseudo_gradients"};
constexpr const char* outers[] = {"sgd", "nesterov"};

class PythonMoshpitSgd {
 public:
  PythonMoshpitSgd(std::shared_ptr<PythonElastic> run, py::handle parameters, py::handle options)
      : own_(std::make_shared<Own>(std::move(run))) {
    const auto buffers = float_buffers(parameters, "MoshpitSgd: parameters", Access::write);
    const auto read = option_of<MoshpitSgdOptions>(options, "options");
    own_->sgd.emplace(without_gil([&] { return MoshpitSgd::make(own_->run->run(), spans_of(buffers), read); }));
  }
  PythonMoshpitSgd(const PythonMoshpitSgd&) = delete;
  using Tensors = std::span<const std::span<float>>;
  MoshpitStep step(const char* what, py::handle parameters,
                   const std::function<Result<MoshpitStep>(MoshpitSgd&, Tensors)>& call) {
    const auto use = busy_.call(what);
    const auto buffers = std::make_shared<const std::vector<Buffer>>(
        float_buffers(parameters, std::string(what) + ": parameters", Access::write));
    auto result = calls_.run([own = own_, buffers, call] { return call(*own->sgd, spans_of(*buffers)); });
    own_->caught.rethrow();
    return check(std::move(result));
  }
  // Waits in pieces of 100 ms, and checks for signals between them.
  MoshpitStep drain(py::handle parameters, std::optional<double> seconds) {
    const auto until = seconds ? std::chrono::steady_clock::now() + milliseconds(*seconds, "timeout")
                               : std::chrono::steady_clock::time_point::max();
    for (;;) {
      try {
        return step("MoshpitSgd.drain", parameters,
                    [](MoshpitSgd& sgd, Tensors tensors) { return sgd.drain(tensors, Milliseconds{100}); });
      } catch (py::error_already_set& error) {
        if (!error.matches(py::module_::import("unisono._errors").attr("Late")) || std::chrono::steady_clock::now() >= until)
          throw;
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
  void give_state(py::object give) {
    const auto use = busy_.call("MoshpitSgd.give_state");
    calls_.finish();
    own_->give = std::move(give);
    own_->sgd->give_state([own = own_.get()] { return own->blobs(); });
  }
  MoshpitSgd& query(const char* what) {
    const auto use = busy_.query(what);
    calls_.finish();
    return *own_->sgd;
  }
  void load(const py::bytes& state) {
    const auto use = busy_.call("MoshpitSgd.load");
    calls_.finish();
    check(own_->sgd->load(span_of(state)));
  }

 private:
  struct Own {
    explicit Own(std::shared_ptr<PythonElastic> its_run) : run(std::move(its_run)) {}
    ~Own() {
      const py::gil_scoped_release released;
      sgd.reset();
    }
    // The library calls this within step(), in the same thread.
    Blobs blobs() {
      Blobs blobs;
      (void)call_python([&] { (void)caught.run([&] { blobs = blobs_of(py::cast<py::dict>(give())); }); });
      return blobs;
    }
    const std::shared_ptr<PythonElastic> run;  // must outlive sgd
    std::optional<MoshpitSgd> sgd;
    py::object give;
    Caught caught;
  };
  const std::shared_ptr<Own> own_;
  Exclusive busy_;
  InterruptibleCalls calls_;
};

using Sgd = PythonMoshpitSgd;

void add_moshpit_options(py::module_& m) {
  py::class_<MoshpitSgdOptions> options(m, "MoshpitSgdOptions",
                                        "When an averaging step begins, and what is averaged in it (docs/guides/elastic.md).");
  add_options(options, "MoshpitSgdOptions");
  options.def_readwrite("local_steps", &MoshpitSgdOptions::local_steps);
  options.def_readwrite("target_samples", &MoshpitSgdOptions::target_samples);
  add_word(options, "average", &MoshpitSgdOptions::average, averages);
  add_word(options, "outer", &MoshpitSgdOptions::outer, outers);
  options.def_readwrite("outer_rate", &MoshpitSgdOptions::outer_rate);
  options.def_readwrite("outer_momentum", &MoshpitSgdOptions::outer_momentum);
  options.def_readwrite("overlap", &MoshpitSgdOptions::overlap);
  options.def(
      "check", [](const MoshpitSgdOptions& self) { check(self.check()); }, "Raises Invalid, naming the field.");
}

void add_moshpit_reports(py::module_& m) {
  py::class_<MoshpitStep> step(m, "MoshpitStep", "What one call of after_step(), drain() or finish() did.");
  step.def_readonly("began", &MoshpitStep::began);
  step.def_property_readonly(
      "averaging", [](const MoshpitStep& self) { return std::const_pointer_cast<AveragingReport>(self.averaging); },
      "The averaging step that ended: brought into the parameters, or failed. None: none ended.");
  step.def_readonly("waited_s", &MoshpitStep::waited_s);
  add_fields_text(step);
  py::class_<MoshpitSgdReport> report(m, "MoshpitSgdReport",
                                      "Counters since this process made its MoshpitSgd. Times are in seconds.");
  report.def_readonly("steps", &MoshpitSgdReport::steps);
  report.def_readonly("samples", &MoshpitSgdReport::samples);
  report.def_readonly("averaging_steps", &MoshpitSgdReport::averaging_steps);
  report.def_readonly("exact", &MoshpitSgdReport::exact);
  report.def_readonly("alone", &MoshpitSgdReport::alone);
  report.def_readonly("without_weight", &MoshpitSgdReport::without_weight);
  report.def_readonly("not_finite", &MoshpitSgdReport::not_finite);
  report.def_readonly("overlapped_steps", &MoshpitSgdReport::overlapped_steps);
  report.def_readonly("peers", &MoshpitSgdReport::peers);
  report.def_readonly("spread", &MoshpitSgdReport::spread);
  report.def_readonly("total_s", &MoshpitSgdReport::total_s);
  report.def_readonly("waited_s", &MoshpitSgdReport::waited_s);
  report.def_readonly("handled_s", &MoshpitSgdReport::handled_s);
  report.def_readonly("averaging_s", &MoshpitSgdReport::averaging_s);
  report.def("useful_share", &MoshpitSgdReport::useful_share);
  add_text(report);
}

}  // namespace

void add_moshpit_sgd(py::module_& m) {
  add_moshpit_options(m);
  add_moshpit_reports(m);
  py::class_<Sgd> sgd(m, "MoshpitSgd",
                      "Training in an elastic run: each peer takes local steps, and every few steps an averaging step averages "
                      "their parameters (docs/guides/elastic.md).");
  sgd.def(py::init<std::shared_ptr<PythonElastic>, py::handle, py::handle>(), py::arg("run"), py::arg("parameters"),
          py::arg("options") = MoshpitSgdOptions(),
          "parameters: a float32 array, or a sequence of them, as the run's tensor_elements say. If the run had values, they "
          "are written into parameters.\n\nRaises Invalid: contradictory options, or sizes other than the run's.");
  sgd.def(
      "after_step",
      [](Sgd& self, py::handle parameters, uint64_t samples) {
        return self.step("MoshpitSgd.after_step", parameters,
                         [samples](MoshpitSgd& s, Sgd::Tensors tensors) { return s.after_step(tensors, samples); });
      },
      py::arg("parameters"), py::arg("samples"),
      "Call after each step of the local optimizer. Begins an averaging step, or brings one in. With overlap it does not wait; "
      "without, KeyboardInterrupt is raised within 0.1 s, the averaging step continues, and the next call of this object first "
      "waits for its end.\n\nsamples: how many the step used.");
  sgd.def("drain", &Sgd::drain, py::arg("parameters"), py::arg("timeout") = py::none(),
          "Waits for the averaging step that is under way, if any, and brings it in. Call it before values are saved or "
          "evaluated. Raises Late: it is still under way.");
  sgd.def(
      "finish",
      [](Sgd& self, py::handle parameters) {
        return self.step("MoshpitSgd.finish", parameters,
                         [](MoshpitSgd& s, Sgd::Tensors tensors) { return s.finish(tensors); });
      },
      py::arg("parameters"),
      "Like drain(), then one more averaging step, so that the last local steps count too, and up to two more while other "
      "peers still contribute changes.");
  sgd.def(
      "abandon", [](Sgd& self) { self.query("MoshpitSgd.abandon").abandon(); }, "Leaves the averaging step that is under way.");
  sgd.def("give_state", &Sgd::give_state, py::arg("give"),
          "give() -> dict of name -> bytes: state for joiners besides the values. Called right before each averaging step; "
          "after_step() raises what it raises.");
  sgd.def_property_readonly(
      "steps", [](Sgd& self) { return self.query("MoshpitSgd.steps").steps(); },
      "Steps since the run began, as this peer counts them.");
  sgd.def("report", [](Sgd& self) { return self.query("MoshpitSgd.report").report(); });
  sgd.def(
      "save", [](Sgd& self) { return bytes_of(self.query("MoshpitSgd.save").save()); },
      "The outer optimizer and the counters, to be saved beside the parameters for a restart of all peers. Call it after "
      "drain().");
  sgd.def("load", &Sgd::load, py::arg("state"),
          "Raises Corrupt (cut or changed) or Invalid (other sizes or another outer optimizer); nothing changes then.");
}

}  // namespace unisono_python

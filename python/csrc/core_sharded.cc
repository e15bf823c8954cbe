// ShardedStep, the library's optimizers, and optimizers written in Python.
#include "core_calls.h"
#include "core_options.h"

namespace unisono_python {

namespace {

constexpr const char* deliveries[] = {"reliable", "lossy", "automatic"};

// The argument of ShardOptimizer.update(). Its arrays are valid only during the call.
struct UpdateTask {
  uint64_t begin = 0, step = 1;
  float scale = 1;
  double rate = 0;
  py::object values, gradient, states;
};

// Wraps an optimizer that is written in Python. Such an optimizer is an object with rate, state_count and update(task). This
// class owns the arrays that hold its state.
class PythonOptimizer final : public ShardOptimizer {
 public:
  PythonOptimizer(py::object object, std::shared_ptr<Caught> caught) : object_(std::move(object)), caught_(std::move(caught)) {
    states_.resize(py::cast<uint32_t>(object_.attr("state_count")));
    rate_ = py::cast<double>(object_.attr("rate"));
  }
  ~PythonOptimizer() override {
    const bool freed = call_python([this] {
      object_ = py::object();
      caught_.reset();
    });
    if (freed) return;
    (void)object_.release();
    (void)new std::shared_ptr<Caught>(std::move(caught_));  // it may hold an exception of Python
  }
  void update(const ShardUpdate& task) override {
    (void)call_python([&] {
      if (!caught_->any()) (void)caught_->run([&] { update_in_python(task); });
    });
  }
  double rate() const override { return rate_; }
  void set_rate(double rate) override {
    const py::gil_scoped_acquire gil;
    rate_ = rate;
    (void)caught_->run([&] { object_.attr("rate") = rate; });
  }
  uint32_t state_count() const override { return static_cast<uint32_t>(states_.size()); }
  std::span<float> state(uint32_t index) override { return states_.at(index); }
  void resize(uint64_t elements) override {
    for (auto& state : states_) state.assign(elements, 0.0f);
  }

 private:
  void update_in_python(const ShardUpdate& task) {
    const CallArray values(task.values, Access::write), gradient(task.gradient, Access::read);
    std::vector<CallArray> lent;
    for (auto& state : states_) lent.emplace_back(std::span(state).subspan(task.begin, task.values.size()), Access::write);
    {
      py::list states;
      for (const auto& state : lent) states.append(state.array());
      auto given = py::cast(UpdateTask{.begin = task.begin,
                                       .step = task.step,
                                       .scale = task.scale,
                                       .rate = rate_,
                                       .values = values.array(),
                                       .gradient = gradient.array(),
                                       .states = std::move(states)});
      object_.attr("update")(given);
      if (given.ref_count() > 1) throw std::runtime_error("update has kept the task, which is valid during the call only");
    }
    values.end("update"), gradient.end("update");
    for (const auto& state : lent) state.end("update");
  }
  py::object object_;
  std::shared_ptr<Caught> caught_;
  std::vector<std::vector<float>> states_;
  double rate_ = 0;
};

std::unique_ptr<ShardOptimizer> optimizer_of(const py::object& given, const std::shared_ptr<Caught>& caught) {
  if (py::isinstance<SgdOptions>(given)) return make_sgd(py::cast<SgdOptions>(given));
  if (py::isinstance<AdamWOptions>(given)) return make_adamw(py::cast<AdamWOptions>(given));
  for (const char* name : {"update", "rate", "state_count"}) {
    if (!py::hasattr(given, name))
      throw py::type_error(std::string("optimizer: ") + Py_TYPE(given.ptr())->tp_name + " has no " + name +
                           "; wanted: SGD, AdamW, or a ShardOptimizer");
  }
  return std::make_unique<PythonOptimizer>(given, caught);
}

class PythonShardedStep {
 public:
  PythonShardedStep(const Group& group, py::handle parameters, const py::object& optimizer, py::handle options) {
    const auto initial = std::make_shared<const Buffer>(float_buffer(parameters, "ShardedStep: parameters", Access::read));
    const auto read = option_of<ShardedOptions>(options, "options");
    const auto with = std::make_shared<std::unique_ptr<ShardOptimizer>>(optimizer_of(optimizer, caught_));
    step_ = owned(check(calls_.run([group = owned(Group(group)), initial, with, read] {
      return ShardedStep::make(*group, initial->floats(), std::move(*with), read);
    })));
  }
  PythonShardedStep(const PythonShardedStep&) = delete;
  // Makes a call that may block; the function must own all that it uses. If an optimizer written in Python has raised an error,
  // throws this error instead of the library's.
  template <typename F>
  auto call(const char* what, F function) {
    const auto use = busy_.call(what);
    auto result = calls_.run([step = step_, function] { return function(*step); });
    caught_->rethrow();
    return check(std::move(result));
  }
  ShardedReport run(py::handle gradient) {
    const auto buffer = std::make_shared<const Buffer>(float_buffer(gradient, "run: gradient", Access::read));
    return call("ShardedStep.run", [buffer](ShardedStep& step) { return step.run(buffer->floats()); });
  }
  void owners_values(py::handle values) {
    const auto buffer = std::make_shared<const Buffer>(float_buffer(values, "owners_values: values", Access::write));
    call("ShardedStep.owners_values", [buffer](ShardedStep& step) { return step.owners_values(buffer->floats()); });
  }
  // Makes a call that sends nothing.
  void change(const char* what, const std::function<Status(ShardedStep&)>& function) {
    const auto use = busy_.call(what);
    calls_.finish();
    const auto status = [&] {
      const py::gil_scoped_release released;
      return function(*step_);
    }();
    caught_->rethrow();
    check(status);
  }
  ShardedStep& query(const char* what) {
    const auto use = busy_.query(what);
    calls_.finish();
    return *step_;
  }

 private:
  std::shared_ptr<Caught> caught_ = std::make_shared<Caught>();
  std::shared_ptr<ShardedStep> step_;
  Exclusive busy_;
  InterruptibleCalls calls_;
};

using Step = PythonShardedStep;

void add_optimizers(py::module_& m) {
  py::class_<SgdOptions> sgd(m, "SGD",
                             "Stochastic gradient descent with the formulae of PyTorch's SGD (no dampening), in float32. "
                             "Without momentum it has no state.");
  sgd.def(py::init([](double rate, double momentum, double weight_decay, bool nesterov) {
            return SgdOptions{.rate = rate, .momentum = momentum, .weight_decay = weight_decay, .nesterov = nesterov};
          }),
          py::kw_only(), py::arg("rate") = 0.1, py::arg("momentum") = 0.0, py::arg("weight_decay") = 0.0,
          py::arg("nesterov") = false);
  sgd.def_readonly("rate", &SgdOptions::rate);
  sgd.def_readonly("momentum", &SgdOptions::momentum);
  sgd.def_readonly("weight_decay", &SgdOptions::weight_decay);
  sgd.def_readonly("nesterov", &SgdOptions::nesterov);
  add_fields_text(sgd);
  py::class_<AdamWOptions> adamw(m, "AdamW", "AdamW with the formulae of PyTorch's AdamW (no amsgrad), in float32.");
  adamw.def(py::init([](double rate, double beta1, double beta2, double epsilon, double weight_decay) {
              return AdamWOptions{
                  .rate = rate, .beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = weight_decay};
            }),
            py::kw_only(), py::arg("rate") = 1e-3, py::arg("beta1") = 0.9, py::arg("beta2") = 0.999, py::arg("epsilon") = 1e-8,
            py::arg("weight_decay") = 0.01);
  adamw.def_readonly("rate", &AdamWOptions::rate);
  adamw.def_readonly("beta1", &AdamWOptions::beta1);
  adamw.def_readonly("beta2", &AdamWOptions::beta2);
  adamw.def_readonly("epsilon", &AdamWOptions::epsilon);
  adamw.def_readonly("weight_decay", &AdamWOptions::weight_decay);
  add_fields_text(adamw);
  py::class_<UpdateTask>(
      m, "ShardUpdate",
      "The argument of ShardOptimizer.update(). The arrays are valid during the call only; copy values to keep them.")
      .def_readonly("begin", &UpdateTask::begin, "First element, relative to the shard.")
      .def_property(
          "values", [](const UpdateTask& self) { return self.values; },
          [](const UpdateTask& self, const py::object& values) {
            // The setter is needed because `task.values -= …` first changes the array in place, and then assigns the array to
            // the attribute.
            if (!values.is(self.values))
              throw py::type_error("ShardUpdate.values is to be changed in place: task.values[:] = …");
          },
          "float32; change it in place.")
      .def_readonly("gradient", &UpdateTask::gradient, "float32, as many elements as values.")
      .def_readonly("states", &UpdateTask::states,
                    "state_count arrays of as many elements, zeros at first; change them in place.")
      .def_readonly("scale", &UpdateTask::scale, "Factor of the gradient: clipping.")
      .def_readonly("rate", &UpdateTask::rate)
      .def_readonly("step", &UpdateTask::step, "1 for the first.");
}

void add_sharded_options(py::module_& m) {
  py::class_<ShardedOptions> options(
      m, "ShardedOptions", "How parameters and gradients are sent, and what is repaired (docs/guides/packet_loss.md).");
  add_options(options, "ShardedOptions");
  add_word(options, "delivery", &ShardedOptions::delivery, deliveries);
  add_option(options, "lossy", &ShardedOptions::lossy);
  add_option(options, "gradients", &ShardedOptions::gradients);
  add_option(options, "values", &ShardedOptions::values);
  options.def_readwrite("clip_norm", &ShardedOptions::clip_norm);
  options.def_readwrite("check_finite", &ShardedOptions::check_finite);
  options.def_readwrite("stale_max", &ShardedOptions::stale_max);
  options.def_readwrite("resync_every", &ShardedOptions::resync_every);
  options.def_readwrite("backup_every", &ShardedOptions::backup_every);
  options.def_readwrite("drift_every", &ShardedOptions::drift_every);
  add_seconds(options, "timeout", &ShardedOptions::timeout);
  options.def(
      "check", [](const ShardedOptions& self) { check(self.check()); }, "Invalid: names the field.");
}

void add_drift(py::module_& m) {
  py::class_<ShardedDrift> drift(
      m, "ShardedDrift",
      "Mean squared differences per element: measured, and expected from the formulae of docs/guides/packet_loss.md.");
  drift.def_readonly("owner", &ShardedDrift::owner);
  drift.def_readonly("owner_expected", &ShardedDrift::owner_expected);
  drift.def_readonly("pair", &ShardedDrift::pair);
  drift.def_readonly("pair_expected", &ShardedDrift::pair_expected);
  drift.def_readonly("paper_form", &ShardedDrift::paper_form);
  drift.def_readonly("gap", &ShardedDrift::gap);
  drift.def_readonly("second_moment", &ShardedDrift::second_moment);
  drift.def_readonly("rho", &ShardedDrift::rho);
  drift.def_readonly("loss", &ShardedDrift::loss);
  drift.def_readonly("recovery", &ShardedDrift::recovery);
  add_fields_text(drift);
}

void add_sharded_report(py::module_& m) {
  py::class_<ShardedReport> report(m, "ShardedReport", "Report of one step at this rank. Times are in microseconds.");
  const auto delivery = [&](const char* name, std::shared_ptr<const DeliveryReport> ShardedReport::*field) {
    report.def_property_readonly(
        name, [field](const ShardedReport& self) { return std::const_pointer_cast<DeliveryReport>(self.*field); });
  };
  report.def_readonly("step", &ShardedReport::step);
  report.def_readonly("behind", &ShardedReport::behind);
  report.def_readonly("applied", &ShardedReport::applied);
  report.def_readonly("gradient_norm", &ShardedReport::gradient_norm);
  report.def_readonly("clipped", &ShardedReport::clipped);
  report.def_readonly("scalars_missing", &ShardedReport::scalars_missing);
  report.def_readonly("ranges", &ShardedReport::ranges);
  report.def_readonly("stale_ranges", &ShardedReport::stale_ranges);
  report.def_readonly("age_max", &ShardedReport::age_max);
  report.def_readonly("held_ranges", &ShardedReport::held_ranges);
  report.def_readonly("fetched_ranges", &ShardedReport::fetched_ranges);
  delivery("gradients", &ShardedReport::gradients);
  delivery("values", &ShardedReport::values);
  report.def_readonly("lost", &ShardedReport::lost);
  report.def_readonly("drift", &ShardedReport::drift);
  report.def_readonly("sent_bytes", &ShardedReport::sent_bytes);
  report.def_readonly("reduce_us", &ShardedReport::reduce_us);
  report.def_readonly("update_us", &ShardedReport::update_us);
  report.def_readonly("gather_us", &ShardedReport::gather_us);
  report.def_readonly("total_us", &ShardedReport::total_us);
  report.def_readonly("warnings", &ShardedReport::warnings);
  add_text(report);
  py::class_<ShardedResumed> resumed(m, "ShardedResumed", "How ranks continue after their group was re-formed.");
  py::class_<ShardedResumed::Lost> lost(resumed, "Lost");
  lost.def_readonly("rank", &ShardedResumed::Lost::rank);
  lost.def_readonly("ranges", &ShardedResumed::Lost::ranges);
  lost.def_readonly("stale_ranges", &ShardedResumed::Lost::stale_ranges);
  lost.def_readonly("age_max", &ShardedResumed::Lost::age_max);
  lost.def_readonly("state_age", &ShardedResumed::Lost::state_age);
  add_fields_text(lost);
  resumed.def_readonly("step", &ShardedResumed::step);
  resumed.def_readonly("lost", &ShardedResumed::lost);
  add_fields_text(resumed);
}

}  // namespace

void add_sharded_step(py::module_& m) {
  add_optimizers(m);
  add_sharded_options(m);
  add_drift(m);
  add_sharded_report(m);
  py::class_<Step> step(m, "ShardedStep",
                        "Training with a sharded optimizer over links that lose packets: every rank owns a shard of the "
                        "parameters, updates it, and sends its values to all ranks (docs/guides/packet_loss.md).");
  step.def(py::init<const Group&, py::handle, const py::object&, py::handle>(), py::arg("group"), py::arg("parameters"),
           py::arg("optimizer"), py::arg("options") = ShardedOptions(),
           "All ranks of the group call it with equal arguments; all take rank 0's parameters (float32).\n\noptimizer: SGD, "
           "AdamW, or a ShardOptimizer. options: ShardedOptions, or their text; lossy by default, which needs the transport "
           "udp (Unsupported otherwise).\nInvalid: options make no sense, or differ between ranks.");
  step.def_property_readonly(
      "parameters",
      [](const py::object& self) {
        const auto values = py::cast<Step&>(self).query("ShardedStep.parameters").parameters();
        return float_view(values.data(), values.size(), self, Access::read);
      },
      "The values that the model computes with: a read-only float32 array, always in the same memory. run(), resync(), load() "
      "and resume() change them.");
  step.def("run", &Step::run, py::arg("gradient"),
           "Runs one step. gradient: this rank's, float32, of all parameters.\n\nPeerLost, Late: re-form the group, and call "
           "resume(). Raises the optimizer's errors; such a step must not be used.\nKeyboardInterrupt is raised within 0.1 s; "
           "the step continues, and the next call of this object first waits for its end.");
  step.def(
      "resync", [](Step& self) { self.call("ShardedStep.resync", [](ShardedStep& s) { return s.resync(); }); },
      "Sends all values reliably, after which all replicas are equal to the bit. All ranks call it.");
  step.def("owners_values", &Step::owners_values, py::arg("values"),
           "Writes the owners' values of all parameters to a float32 array. Replicas do not change. All ranks call it.");
  step.def(
      "set_rate",
      [](Step& self, double rate) {
        self.change("ShardedStep.set_rate", [rate](ShardedStep& s) { return s.set_rate(rate), Status(); });
      },
      py::arg("rate"), "Sets the optimizer's learning rate; equal on all ranks.");
  step.def_property_readonly(
      "step", [](Step& self) { return self.query("ShardedStep.step").step(); }, "The last completed step.");
  step.def(
      "save", [](Step& self) { return bytes_of(self.query("ShardedStep.save").save()); },
      "This rank's replica, shard and optimizer state, for a bit-exact continuation.");
  step.def(
      "load",
      [](Step& self, const py::bytes& state) {
        self.change("ShardedStep.load", [bytes = span_of(state)](ShardedStep& s) { return s.load(bytes); });
      },
      py::arg("state"),
      "Corrupt: truncated or changed. Invalid: of another rank, number of ranks, or optimizer. An error changes nothing. All "
      "ranks load.");
  step.def(
      "resume",
      [](Step& self, const Group& group) {
        return self.call("ShardedStep.resume", [with = owned(Group(group))](ShardedStep& s) { return s.resume(*with); });
      },
      py::arg("group"), "Call on all ranks after Group.reform(); processes that joined make a new ShardedStep.");
  step.def(
      "resumed", [](Step& self) { return self.query("ShardedStep.resumed").resumed(); },
      "How this object began, or the result of the last resume().");
}

}  // namespace unisono_python

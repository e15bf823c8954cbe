// Compressed gradients: Compression, CompressionPlan, GradientReducer.
#include <map>

#include "core_calls.h"
#include "core_options.h"

namespace unisono_python {

namespace {

constexpr const char* methods[] = {"dense", "arc_top_k", "random_k", "power_sgd"};
constexpr const char* feedbacks[] = {"none", "ef14", "ef21", "ef21m"};
constexpr const char* on_nonfinite[] = {"skip", "poison"};

// Reads either pairs (name, shape), or a mapping from names to shapes. Instead of a shape, there may be an object that has one,
// such as an array.
std::vector<Parameter> parameters_of(py::handle given) {
  const auto pairs =
      py::hasattr(given, "items") ? py::object(given.attr("items")()) : py::reinterpret_borrow<py::object>(given);
  std::vector<Parameter> parameters;
  for (const auto item : pairs) {
    const auto pair = py::cast<std::pair<std::string, py::object>>(item);
    const auto shape = py::hasattr(pair.second, "shape") ? py::object(pair.second.attr("shape")) : pair.second;
    parameters.push_back({pair.first, py::cast<std::vector<uint64_t>>(shape)});
  }
  return parameters;
}

class PythonReducer {
 public:
  PythonReducer(const Group& group, py::handle parameters, py::handle compression) {
    const auto list = parameters_of(parameters);
    for (const auto& each : list) {
      uint64_t elements = 1;
      for (const auto length : each.shape) elements *= length;
      elements_[each.name] = elements;
    }
    const auto options = option_of<Compression>(compression, "compression");
    own_->reducer.emplace(
        check(calls_.run([with = owned(Group(group)), list, options] { return GradientReducer::make(*with, list, options); })));
  }
  PythonReducer(const PythonReducer&) = delete;

  void reduce(const py::dict& bucket) {
    const auto use = busy_.call("GradientReducer.reduce");
    std::vector<std::string> names;
    std::vector<Buffer> buffers;
    for (const auto& [key, array] : bucket) {
      names.push_back(py::cast<std::string>(key));
      buffers.push_back(float_buffer(array, "reduce: the gradient of " + names.back(), Access::write));
      const auto known = elements_.find(names.back());
      if (known != elements_.end() && known->second != buffers.back().count()) {
        throw py::value_error("reduce: the gradient of " + names.back() + " has " + std::to_string(buffers.back().count()) +
                              " elements, the parameter " + std::to_string(known->second));
      }
    }
    std::vector<Gradient> gradients;
    for (size_t i = 0; i < names.size(); ++i) gradients.push_back({names[i], buffers[i].floats().data()});
    calls_.finish();
    check([&] {
      const py::gil_scoped_release released;
      return own_->reducer->reduce(gradients);
    }());
    for (auto& buffer : buffers) own_->held.push_back(std::move(buffer));
  }
  CompressionReport finish() {
    const auto use = busy_.call("GradientReducer.finish");
    auto report = calls_.run([own = own_] { return own->reducer->finish(); });
    own_->held.clear();
    return check(std::move(report));
  }
  void step_skipped() {
    const auto use = busy_.call("GradientReducer.step_skipped");
    ended().step_skipped();
  }
  void flush() {
    const auto use = busy_.call("GradientReducer.flush");
    ended().flush();
  }
  Resumed resume(const Group& group) {
    const auto use = busy_.call("GradientReducer.resume");
    return check(calls_.run([own = own_, with = owned(Group(group))] { return own->reducer->resume(*with); }));
  }
  Resumed resumed() {
    const auto use = busy_.call("GradientReducer.resumed");
    return ended().resumed();
  }
  py::bytes save() {
    const auto use = busy_.call("GradientReducer.save");
    auto& reducer = ended();
    const auto saved = [&] {
      const py::gil_scoped_release released;
      return reducer.save();
    }();
    if (saved.empty()) raise({Code::invalid, "save() in the middle of a step: call finish() first"});
    return bytes_of(saved);
  }
  void load(const py::bytes& bytes) {
    const auto use = busy_.call("GradientReducer.load");
    auto& reducer = ended();
    check([&, span = span_of(bytes)] {
      const py::gil_scoped_release released;
      return reducer.load(span);
    }());
  }
  CompressionReport total() {
    const auto use = busy_.call("GradientReducer.total");
    return ended().total();
  }
  uint64_t step() {
    const auto use = busy_.call("GradientReducer.step");
    return ended().step();
  }

 private:
  std::map<std::string, uint64_t> elements_;
  struct Own {
    ~Own() {
      const py::gil_scoped_release released;
      reducer.reset();
    }
    std::vector<Buffer> held;  // the arrays that are in use between reduce() and finish()
    std::optional<GradientReducer> reducer;
  };
  // Returns the reducer when an interrupted call has ended.
  GradientReducer& ended() {
    calls_.finish();
    return *own_->reducer;
  }
  const std::shared_ptr<Own> own_ = std::make_shared<Own>();
  Exclusive busy_;
  InterruptibleCalls calls_;
};

void add_compression(py::module_& m) {
  py::class_<Compression> bound(m, "Compression",
                                "How gradients are compressed: the method, the share that is sent, and the treatment of the "
                                "rest (docs/guides/thin_links.md).");
  add_options(bound, "Compression");
  add_word(bound, "method", &Compression::method, methods);
  bound.def_readwrite("ratio", &Compression::ratio);
  bound.def_readwrite("rank", &Compression::rank);
  bound.def_readwrite("round_down", &Compression::round_down);
  bound.def_readwrite("seed", &Compression::seed);
  add_word(bound, "feedback", &Compression::feedback, feedbacks);
  bound.def_readwrite("eta", &Compression::eta);
  bound.def_readwrite("start_step", &Compression::start_step);
  bound.def_property(
      "schedule",
      [](const Compression& self) {
        std::vector<std::pair<uint64_t, double>> pairs;
        for (const auto& from : self.schedule) pairs.emplace_back(from.step, from.ratio);
        return pairs;
      },
      [](Compression& self, const std::vector<std::pair<uint64_t, double>>& pairs) {
        self.schedule.clear();
        for (const auto& [step, ratio] : pairs) self.schedule.push_back({step, ratio});
      });
  bound.def_readwrite("max_payload", &Compression::max_payload);
  bound.def_readwrite("min_elements", &Compression::min_elements);
  bound.def_readwrite("auto_off", &Compression::auto_off);
  add_option(bound, "values", &Compression::values);
  add_word(bound, "values_schedule", &Compression::values_schedule, schedule_names);
  add_option(bound, "sketch", &Compression::sketch);
  bound.def_readwrite("refresh_every", &Compression::refresh_every);
  bound.def_readwrite("absorb_codec_error", &Compression::absorb_codec_error);
  add_word(bound, "on_nonfinite", &Compression::on_nonfinite, on_nonfinite);
  bound.def_readwrite("adaptive_optimizer", &Compression::adaptive_optimizer);
  bound.def(
      "check", [](const Compression& self) { check(self.check()); }, "Invalid: names the first error.");
}

void add_plan(py::module_& m) {
  py::class_<PlannedParameter> planned(m, "PlannedParameter", "How the gradients of one parameter are sent, and why.");
  planned.def_readonly("name", &PlannedParameter::name);
  planned.def_readonly("rows", &PlannedParameter::rows);
  planned.def_readonly("columns", &PlannedParameter::columns);
  planned.def_readonly("compressed", &PlannedParameter::compressed);
  planned.def_readonly("kept_rows", &PlannedParameter::kept_rows);
  planned.def_readonly("factor_columns", &PlannedParameter::factor_columns);
  planned.def_readonly("payload", &PlannedParameter::payload);
  planned.def_property_readonly("reason", [](const PlannedParameter& self) { return std::string(self.reason); });
  add_fields_text(planned);
  py::class_<CompressionPlan> plan(m, "CompressionPlan",
                                   "The sizes of data sent and state kept, computed without allocating any state. Invalid: "
                                   "options or parameters make no sense.");
  plan.def(py::init([](py::handle parameters, py::handle compression) {
             return check(CompressionPlan::make(parameters_of(parameters), option_of<Compression>(compression, "compression")));
           }),
           py::arg("parameters"), py::arg("compression") = Compression());
  plan.def_readonly("parameters", &CompressionPlan::parameters);
  plan.def_readonly("elements", &CompressionPlan::elements);
  plan.def_readonly("payload", &CompressionPlan::payload);
  plan.def_readonly("state_bytes", &CompressionPlan::state_bytes);
  plan.def_readonly("buffer_bytes", &CompressionPlan::buffer_bytes);
  add_text(plan);
}

void add_compression_report(py::module_& m) {
  py::class_<CompressionCosts> costs(m, "CompressionCosts", "Sums over buckets, which overlap in time.");
  costs.def_readonly("sketch_us", &CompressionCosts::sketch_us);
  costs.def_readonly("sketch_reduce_us", &CompressionCosts::sketch_reduce_us);
  costs.def_readonly("select_us", &CompressionCosts::select_us);
  costs.def_readonly("pack_us", &CompressionCosts::pack_us);
  costs.def_readonly("value_reduce_us", &CompressionCosts::value_reduce_us);
  costs.def_readonly("unpack_us", &CompressionCosts::unpack_us);
  costs.def_readonly("payload_elements", &CompressionCosts::payload_elements);
  costs.def_readonly("collectives", &CompressionCosts::collectives);
  costs.def_readonly("sent_payload", &CompressionCosts::sent_payload);
  costs.def_readonly("sent_headers", &CompressionCosts::sent_headers);
  add_fields_text(costs);
  py::class_<CompressionReport> report(m, "CompressionReport", "Report of one step, or of all steps so far.");
  report.def_readonly("step", &CompressionReport::step);
  report.def_readonly("applied", &CompressionReport::applied);
  report.def_readonly("ratio", &CompressionReport::ratio);
  report.def_readonly("rank", &CompressionReport::rank);
  report.def_readonly("compressed", &CompressionReport::compressed);
  report.def_readonly("whole", &CompressionReport::whole);
  report.def_readonly("elements", &CompressionReport::elements);
  report.def_readonly("costs", &CompressionReport::costs);
  report.def_readonly("total_us", &CompressionReport::total_us);
  report.def_readonly("wait_us", &CompressionReport::wait_us);
  report.def_readonly("captured", &CompressionReport::captured);
  report.def_readonly("output_norm", &CompressionReport::output_norm);
  report.def_readonly("residual_norm_mean", &CompressionReport::residual_norm_mean);
  report.def_readonly("residual_norm_max", &CompressionReport::residual_norm_max);
  report.def_readonly("state_bytes", &CompressionReport::state_bytes);
  report.def_readonly("buffer_bytes", &CompressionReport::buffer_bytes);
  report.def_readonly("off", &CompressionReport::off);
  report.def_readonly("warnings", &CompressionReport::warnings);
  report.def("payload_ratio", &CompressionReport::payload_ratio);
  add_text(report);
}

void add_resumed(py::module_& m) {
  py::class_<Resumed> resumed(m, "Resumed", "How ranks continue after their group was re-formed.");
  py::class_<Resumed::Lost> lost(resumed, "Lost");
  lost.def_readonly("member", &Resumed::Lost::member);
  lost.def_readonly("residual_norm", &Resumed::Lost::residual_norm);
  add_fields_text(lost);
  resumed.def_readonly("step", &Resumed::step);
  resumed.def_readonly("parameters_from", &Resumed::parameters_from);
  resumed.def_readonly("lost", &Resumed::lost);
  add_fields_text(resumed);
}

}  // namespace

void add_training(py::module_& m) {
  add_compression(m);
  add_plan(m);
  add_compression_report(m);
  add_resumed(m);
  py::class_<PythonReducer> reducer(m, "GradientReducer",
                                    "Averages compressed gradients over a group, step by step: each step sends a part, and the "
                                    "rest is kept and sent later (docs/guides/thin_links.md).");
  reducer.def(py::init<const Group&, py::handle, py::handle>(), py::arg("group"), py::arg("parameters"),
              py::arg("compression") = Compression(),
              "All ranks of the group call it with equal arguments; a process that joined a re-formed group calls it while the "
              "others call resume().\n\nparameters: name -> shape, or an object with a shape; or pairs. compression: a "
              "Compression, or its text.\nInvalid: options or parameters make no sense, or differ between ranks.");
  reducer.def("reduce", &PythonReducer::reduce, py::arg("bucket"),
              "Hands over complete gradients (name -> float32 array). Do not touch them until finish(), which makes them "
              "averages. All ranks pass the same buckets in the same order. Returns at once.\n\nInvalid: a name is unknown, or "
              "occurs twice in a step; nothing of the bucket was sent.");
  reducer.def(
      "finish", &PythonReducer::finish,
      "Waits until everything is averaged. After PeerLost and Late: Group.reform(), then resume().\n\nKeyboardInterrupt "
      "is raised within 0.1 s; the step continues, and the next call of this object first waits for its end.");
  reducer.def("step_skipped", &PythonReducer::step_skipped,
              "Call after finish() if no rank used the averages. The sent part is kept and sent again.");
  reducer.def("flush", &PythonReducer::flush, "Sends the next step whole, so that no residual is left.");
  reducer.def("resume", &PythonReducer::resume, py::arg("group"),
              "Call on all ranks after the group was re-formed; processes that joined make a new GradientReducer.");
  reducer.def("resumed", &PythonReducer::resumed, "How this reducer began, or the result of the last resume().");
  reducer.def("save", &PythonReducer::save,
              "This rank's state, for a bit-exact continuation. Call it between finish() and reduce().");
  reducer.def(
      "load", &PythonReducer::load, py::arg("state"),
      "Corrupt: not a saved state. Invalid: of another rank, number of ranks, options or shapes. An error changes nothing.");
  reducer.def("total", &PythonReducer::total, "Report of all steps so far.");
  reducer.def_property_readonly("step", &PythonReducer::step, "The number of the next step.");
}

}  // namespace unisono_python

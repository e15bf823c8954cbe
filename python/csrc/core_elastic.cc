// Elastic in Python: runs in which peers come and go. Every wait is cut into short pieces of time, so that Ctrl-C can end it.
#include "core_elastic.h"
#include "core_options.h"

#include <chrono>
#include <unordered_map>

namespace unisono_python {

namespace {

constexpr const char* roles[] = {"peer", "client", "reducer"};
constexpr const char* profiles[] = {"lan", "wan"};
constexpr const char* grids[] = {"fitted", "published", "chunk_keys"};
constexpr const char* commits[] = {"agreed", "per_result"};
constexpr Milliseconds slice{100};
using Clock = std::chrono::steady_clock;

using Setter = void (*)(ElasticOptions&, py::handle);
const std::unordered_map<std::string_view, Setter>& setters() {
  using Options = ElasticOptions;
  static const std::unordered_map<std::string_view, Setter> all{
      {"on_event", [](Options& o, py::handle v) { o.on_event = event_handler(v); }},
      {"run_id", [](Options& o, py::handle v) { o.run_id = py::cast<std::string>(v); }},
      {"found", [](Options& o, py::handle v) { o.found = py::cast<bool>(v); }},
      {"seeds", [](Options& o, py::handle v) { o.seeds = py::cast<std::vector<std::string>>(v); }},
      {"tensor_elements", [](Options& o, py::handle v) { o.tensor_elements = py::cast<std::vector<uint64_t>>(v); }},
      {"name", [](Options& o, py::handle v) { o.name = py::cast<std::string>(v); }},
      {"interface", [](Options& o, py::handle v) { o.interface = py::cast<std::string>(v); }},
      {"port", [](Options& o, py::handle v) { o.port = py::cast<uint16_t>(v); }},
      {"role", [](Options& o, py::handle v) { o.role = static_cast<Options::Role>(word_index(v, "role", roles)); }},
      {"key", [](Options& o, py::handle v) { o.key = key_text(v); }},
      {"security", [](Options& o, py::handle v) { o.security = security_word(v); }},
      {"profile",
       [](Options& o, py::handle v) { o.profile = static_cast<Options::Profile>(word_index(v, "profile", profiles)); }},
      {"max_group", [](Options& o, py::handle v) { o.max_group = py::cast<uint32_t>(v); }},
      {"rounds", [](Options& o, py::handle v) { o.rounds = py::cast<uint32_t>(v); }},
      {"min_peers", [](Options& o, py::handle v) { o.min_peers = py::cast<uint32_t>(v); }},
      {"min_chunks", [](Options& o, py::handle v) { o.min_chunks = py::cast<uint32_t>(v); }},
      {"max_peers", [](Options& o, py::handle v) { o.max_peers = py::cast<uint32_t>(v); }},
      {"grid", [](Options& o, py::handle v) { o.grid = static_cast<Options::Grid>(word_index(v, "grid", grids)); }},
      {"commit", [](Options& o, py::handle v) { o.commit = static_cast<Options::Commit>(word_index(v, "commit", commits)); }},
      {"contribute", [](Options& o, py::handle v) { o.contribute = option_of<StepCodec>(v, "contribute"); }},
      {"result", [](Options& o, py::handle v) { o.result = option_of<StepCodec>(v, "result"); }},
      {"join_timeout", [](Options& o, py::handle v) { o.join_timeout = milliseconds(py::cast<double>(v), "join_timeout"); }},
      {"gather_timeout",
       [](Options& o, py::handle v) { o.gather_timeout = milliseconds(py::cast<double>(v), "gather_timeout"); }},
      {"stall_timeout", [](Options& o, py::handle v) { o.stall_timeout = milliseconds(py::cast<double>(v), "stall_timeout"); }},
  };
  return all;
}

// Calls poll(t) without the GIL until it returns true. Each time, poll() may wait for the time t. Returns false if the timeout
// is over.
bool poll_interruptibly(std::optional<double> seconds, const std::function<bool(Milliseconds)>& poll) {
  const auto until = seconds ? Clock::now() + milliseconds(*seconds, "timeout") : Clock::time_point::max();
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(
        std::clamp(until - Clock::now(), Clock::duration(Milliseconds(1)), Clock::duration(slice)));
    const bool over = [&] {
      const py::gil_scoped_release released;
      return poll(left);
    }();
    if (over) return true;
    if (Clock::now() >= until) return false;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// An averaging step, and the arrays into which wait() merges its result.
class PythonAveragingStep {
 public:
  PythonAveragingStep(ElasticWork work, std::vector<Buffer> buffers) : work_(std::move(work)), buffers_(std::move(buffers)) {}
  PythonAveragingStep(PythonAveragingStep&&) = default;
  AveragingReport wait(std::optional<double> seconds) {
    const auto use = busy_.call("ElasticWork.wait");
    auto result = Result<AveragingReport>(Status(Code::late, "the averaging step is not done"));
    poll_interruptibly(seconds, [&](Milliseconds left) {
      result = work_.wait(left);
      return result.ok() || result.status().code() != Code::late;
    });
    if (result.ok() || result.status().code() != Code::late) buffers_.clear();
    return check(std::move(result));
  }
  bool done() const { return work_.done(); }
  void cancel() { work_.cancel(); }

 private:
  ElasticWork work_;
  std::vector<Buffer> buffers_;
  Exclusive busy_;
};

PythonAveragingStep begin_step(PythonElastic& self, py::handle tensors, double weight) {
  auto buffers = float_buffers(tensors, "average: tensors", Access::write);
  auto work = without_gil([&] { return self.run().average_async(spans_of(buffers), weight); });
  return {std::move(work), std::move(buffers)};
}

AveragingReport average(PythonElastic& self, py::handle tensors, double weight) {
  auto step = begin_step(self, tensors, weight);
  try {
    return step.wait({});
  } catch (const py::error_already_set&) {
    step.cancel();  // after a KeyboardInterrupt, nobody uses the result, so the other peers need not wait for this one
    throw;
  }
}

ElasticOptions options_of(const py::kwargs& words) {
  ElasticOptions options;
  for (const auto& [key, value] : words) {
    const std::string name = py::str(key);
    const auto setter = setters().find(name);
    if (setter == setters().end()) throw py::type_error("Elastic.join() got an unexpected keyword argument '" + name + "'");
    try {
      if (!value.is_none()) setter->second(options, value);
    } catch (const py::cast_error&) {
      const auto given = name == "key" ? std::string("of this type") : std::string(py::repr(value));  // it is a secret
      throw py::type_error("Elastic.join: " + name + " cannot be " + given);
    }
  }
  if (!options.on_event) options.on_event = event_handler(py::none());
  return options;
}

void add_averaging_reports(py::module_& m) {
  py::class_<RoundSummary> round(m, "RoundSummary",
                                 "One round of an averaging step, as this peer saw it. Times are in seconds.");
  round.def_readonly("round", &RoundSummary::round);
  round.def_readonly("outcome", &RoundSummary::outcome);
  round.def_readonly("group", &RoundSummary::group);
  round.def_readonly("contributors_min", &RoundSummary::contributors_min);
  round.def_readonly("contributors_max", &RoundSummary::contributors_max);
  round.def_readonly("contributors_mean", &RoundSummary::contributors_mean);
  round.def_readonly("committed", &RoundSummary::committed);
  round.def_readonly("kept_local", &RoundSummary::kept_local);
  round.def_readonly("voided", &RoundSummary::voided);
  round.def_readonly("undecided", &RoundSummary::undecided);
  round.def_readonly("lost", &RoundSummary::lost);
  round.def_readonly("refused", &RoundSummary::refused);
  round.def_readonly("absent", &RoundSummary::absent);
  round.def_readonly("gather_s", &RoundSummary::gather_s);
  round.def_readonly("contribute_s", &RoundSummary::contribute_s);
  round.def_readonly("result_s", &RoundSummary::result_s);
  round.def_readonly("verdict_s", &RoundSummary::verdict_s);
  round.def_readonly("sent_bytes", &RoundSummary::sent_bytes);
  round.def_readonly("received_bytes", &RoundSummary::received_bytes);
  round.def_readonly("model_bytes", &RoundSummary::model_bytes);
  round.def_readonly("variance", &RoundSummary::variance);
  round.def_readonly("total_weight", &RoundSummary::total_weight);
  add_fields_text(round);
  py::class_<AveragingReport, std::shared_ptr<AveragingReport>> step(
      m, "AveragingReport",
      "One averaging step, as this peer saw it. Whatever went wrong, each chunk of the arrays holds its old values or an "
      "average.");
  step.def_readonly("step", &AveragingReport::step);
  step.def_readonly("exact", &AveragingReport::exact);
  step.def_readonly("layout", &AveragingReport::layout);
  step.def_readonly("dims", &AveragingReport::dims);
  step.def_readonly("peers", &AveragingReport::peers);
  step.def_readonly("rounds", &AveragingReport::rounds);
  step.def_readonly("seconds", &AveragingReport::seconds);
  step.def_readonly("note", &AveragingReport::note);
  step.def("__str__", &AveragingReport::to_string);
  add_fields_text(step);
}

void add_status(py::module_& m) {
  py::class_<ElasticPeer> peer(m, "ElasticPeer", "What this process knows of a peer.");
  peer.def_readonly("name", &ElasticPeer::name);
  peer.def_readonly("status", &ElasticPeer::status);
  peer.def_readonly("address", &ElasticPeer::address);
  peer.def_readonly("role", &ElasticPeer::role);
  peer.def_readonly("bytes_per_second", &ElasticPeer::bytes_per_second);
  peer.def_readonly("finished_step", &ElasticPeer::finished_step);
  peer.def_property_readonly("is_self", [](const ElasticPeer& self) { return self.self; });
  add_fields_text(peer);
  py::class_<ElasticStatus> status(m, "ElasticStatus", "The status of this process in its run.");
  status.def_readonly("phase", &ElasticStatus::phase);
  status.def_readonly("peers", &ElasticStatus::peers);
  status.def_readonly("layout", &ElasticStatus::layout);
  status.def_readonly("dims", &ElasticStatus::dims);
  status.def_readonly("averaging_steps", &ElasticStatus::averaging_steps);
  status.def_readonly("exact_averaging_steps", &ElasticStatus::exact_averaging_steps);
  status.def_readonly("sent_bytes", &ElasticStatus::sent_bytes);
  status.def_readonly("received_bytes", &ElasticStatus::received_bytes);
  status.def_readonly("refused", &ElasticStatus::refused);
  status.def_readonly("last_refusal", &ElasticStatus::last_refusal);
  status.def_readonly("links", &ElasticStatus::links);
  status.def_readonly("serving", &ElasticStatus::serving);
  status.def_readonly("endpoints", &ElasticStatus::endpoints);
  add_fields_text(status);
}

void add_state(py::module_& m) {
  py::class_<StateView> state(m, "ElasticState", "The state that a process received when it joined.");
  state.def_property_readonly(
      "loaded", [](const StateView& self) { return self.state().loaded; },
      "False: this process founded the run, or no peer had a state to give.");
  state.def_property_readonly(
      "step", [](const StateView& self) { return self.state().step; }, "The donors' last averaging step; -1: none.");
  state.def_property_readonly(
      "values",
      [](const py::object& self) {
        const auto& values = py::cast<const StateView&>(self).state().values;
        return float_view(values.data(), values.size(), self, Access::read);
      },
      "All tensors one after the other: a read-only float32 array.");
  state.def_property_readonly(
      "blobs",
      [](const StateView& self) {
        py::dict blobs;
        for (const auto& [name, bytes] : self.state().blobs) blobs[py::str(name)] = bytes_of(bytes);
        return blobs;
      },
      "What the donors set by set_state().");
  state.def_property_readonly(
      "mixed", [](const StateView& self) { return self.state().mixed; },
      "Donors had different states; the values come from more than one of them.");
  state.def_property_readonly("donors", [](const StateView& self) { return self.state().donors; });
  state.def_property_readonly("seconds", [](const StateView& self) { return self.state().seconds; });
  state.def_property_readonly("bytes", [](const StateView& self) { return self.state().bytes; });
  state.def_property_readonly(
      "note", [](const StateView& self) { return self.state().note; }, "Why nothing was loaded.");
  state.def("__repr__", [](const StateView& self) {
    const auto& s = self.state();
    return "<unisono.ElasticState: " +
           (s.loaded ? std::to_string(s.values.size()) + " values of averaging step " + std::to_string(s.step) + " from " +
                           std::to_string(s.donors) + " donors"
                     : "nothing loaded: " + s.note) +
           ">";
  });
}

}  // namespace

Blobs blobs_of(const py::dict& given) {
  Blobs blobs;
  for (const auto& [name, bytes] : given) {
    const auto held = py::cast<py::bytes>(bytes);
    const auto span = span_of(held);
    blobs.emplace_back(py::cast<std::string>(name), std::vector<std::byte>(span.begin(), span.end()));
  }
  return blobs;
}

void add_elastic(py::module_& m) {
  add_averaging_reports(m);
  add_status(m);
  add_state(m);
  py::class_<PythonAveragingStep>(
      m, "ElasticWork", "An averaging step that runs while the caller computes. Dropping the last reference does not end it.")
      .def("done", &PythonAveragingStep::done)
      .def("wait", &PythonAveragingStep::wait, py::arg("timeout") = py::none(),
           "Waits for the end, then brings the result into the given arrays, once; local changes made meanwhile are "
           "kept.\n\ntimeout: seconds; None: no limit. Raises Late: not done yet; call again.")
      .def("cancel", &PythonAveragingStep::cancel,
           "Ends this peer's part early. wait() still brings in what finished rounds averaged.");
  py::class_<PythonElastic, std::shared_ptr<PythonElastic>> run(
      m, "Elastic", "Averaging among peers that come and go, without a master (docs/guides/elastic.md).");
  run.def_static(
      "join",
      [](const py::kwargs& words) {
        auto joined = interruptibly([options = options_of(words)] {
          auto made = Elastic::join(options);
          return made ? Result(std::make_shared<Elastic>(std::move(*made))) : Result<std::shared_ptr<Elastic>>(made.status());
        });
        return std::make_shared<PythonElastic>(std::move(joined));
      },
      "Blocks until this process knows the run's peers and has loaded their state.\n\nOptions: see unisono.ElasticOptions. "
      "Raises Invalid (also if a seed answered for another run or other tensors) and Unavailable (no seed answered).");
  run.def(
      "state", [](const std::shared_ptr<PythonElastic>& self) { return StateView{self->shared()}; },
      "The state that this process received when it joined.");
  run.def(
      "ready",
      [](PythonElastic& self, double timeout) {
        return poll_interruptibly(timeout, [&](Milliseconds left) { return self.run().ready(left); });
      },
      py::arg("timeout"), "Waits until min_peers are there and have a layout. False: they were not within `timeout` seconds.");
  run.def("average", average, py::arg("tensors"), py::arg("weight") = 1.0,
          "One averaging step over the float32 arrays (one, or a sequence; sizes as in tensor_elements), in place: the "
          "weighted mean over all peers that took part.\n\nweight: how much this peer's values count; 0: this peer takes the "
          "mean and gives nothing. After KeyboardInterrupt the arrays are unchanged.");
  run.def("average_async", begin_step, py::arg("tensors"), py::arg("weight") = 1.0,
          "The same, over a copy, while the caller computes on. ElasticWork.wait() brings the result in.");
  run.def(
      "set_state", [](PythonElastic& self, const py::dict& blobs) { check(self.run().set_state(blobs_of(blobs))); },
      py::arg("blobs"), "Named bytes that joiners receive together with the values: name -> bytes. Replaces the earlier ones.");
  run.def(
      "offer_values",
      [](PythonElastic& self, py::handle tensors) {
        const auto buffers = float_buffers(tensors, "offer_values: tensors", Access::read);
        check(self.run().offer_values(spans_of(buffers)));
      },
      py::arg("tensors"), "Gives joiners these values until the first averaging step.");
  run.def("status", [](PythonElastic& self) {
    const py::gil_scoped_release released;
    return self.run().status();
  });
  run.def(
      "group",
      [](PythonElastic& self, double form_timeout, const py::kwargs& words) {
        const auto options = join_options(words);
        return without_gil([&] { return self.run().group(milliseconds(form_timeout, "form_timeout"), options); });
      },
      py::arg("form_timeout") = 10.0,
      "An ordinary Group of the peers that the newest layout names. All of them must call it after the same averaging step, "
      "within form_timeout seconds. Options: as of Group.join(). Raises Unavailable (no layout, or it does not name this "
      "process) and Late (some peers did not come).");
  run.def(
      "leave", [](PythonElastic& self) { self.leave(); },
      "Says goodbye and ends; first finishes what other peers wait for. Safe to call twice; also called at exit.");
  run.def("__enter__", [](const std::shared_ptr<PythonElastic>& self) { return self; });
  run.def("__exit__", [](PythonElastic& self, const py::args&) { self.leave(); });
}

}  // namespace unisono_python

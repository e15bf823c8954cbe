// Binds the library's options as Python classes, and reads keyword arguments into options.
#include "core_options.h"

#include <chrono>
#include <cmath>
#include <unordered_map>

namespace unisono_python {

namespace {

constexpr const char* reduce_ops[] = {"sum", "avg", "min", "max", "prod", "band", "bor", "bxor"};
constexpr const char* orders[] = {"automatic", "in_rank_order", "any"};
constexpr const char* deliveries[] = {"reliable", "lossy", "automatic"};
constexpr const char* metadata[] = {"f16", "bf16", "f32", "automatic"};
constexpr const char* spikes[] = {"off", "on", "automatic"};
constexpr const char* estimators[] = {"stratified", "count", "count_all", "horvitz_thompson", "zero_fill"};
constexpr const char* on_empty[] = {"automatic", "hold", "own", "zero", "fail"};
constexpr const char* dtypes[] = {"f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"};

// Reads a delivery from a text such as "lossy:loss_budget=0.2". The command-line tool accepts the same texts.
void set_delivery(CallWords& call, py::handle value) {
  if (!py::isinstance<py::str>(value)) throw py::type_error("delivery: wanted: a string");
  const auto text = value.cast<std::string>();
  const auto end = text.find(':');
  call.options.delivery = static_cast<Delivery>(word_index(py::str(text.substr(0, end)), "delivery", deliveries));
  if (end == std::string::npos) return;
  if (call.options.delivery == Delivery::reliable) throw py::value_error("delivery: reliable has no options");
  call.options.lossy = check(DeliveryOptions::parse(std::string_view(text).substr(end + 1)));
}

using Setter = void (*)(CallWords&, py::handle);
const std::unordered_map<std::string_view, Setter>& call_setters() {
  static const std::unordered_map<std::string_view, Setter> setters{
      {"op", [](CallWords& c, py::handle v) { c.options.op = static_cast<ReduceOp>(word_index(v, "op", reduce_ops)); }},
      {"order", [](CallWords& c, py::handle v) { c.options.order = static_cast<Order>(word_index(v, "order", orders)); }},
      {"schedule",
       [](CallWords& c, py::handle v) {
         c.options.schedule = static_cast<ScheduleKind>(word_index(v, "schedule", schedule_names));
       }},
      {"timeout", [](CallWords& c, py::handle v) { c.options.timeout = milliseconds(v.cast<double>(), "timeout"); }},
      {"id", [](CallWords& c, py::handle v) { c.options.id = v.cast<uint64_t>(); }},
      {"slice_bytes", [](CallWords& c, py::handle v) { c.options.slice_bytes = v.cast<uint64_t>(); }},
      {"agreement", [](CallWords& c, py::handle v) { c.options.agreement = v.cast<uint64_t>(); }},
      {"codec", [](CallWords& c, py::handle v) { c.options.codec = option_of<Codec>(v, "codec"); }},
      {"encode_error",
       [](CallWords& c, py::handle v) { c.encode_error = float_buffer(v, c.collective + ": encode_error", Access::write); }},
      {"error_feedback", [](CallWords& c, py::handle v) { c.options.error_feedback = v.cast<bool>(); }},
      {"measure_error", [](CallWords& c, py::handle v) { c.options.measure_error = v.cast<bool>(); }},
      {"delivery", set_delivery},
      {"lossy", [](CallWords& c, py::handle v) { c.options.lossy = option_of<DeliveryOptions>(v, "lossy"); }},
      {"shard_unit", [](CallWords& c, py::handle v) { c.options.shard_unit = v.cast<uint32_t>(); }},
      {"needed_ranges",
       [](CallWords& c, py::handle v) {
         c.needed_ranges =
             std::make_shared<const std::vector<std::vector<uint32_t>>>(v.cast<std::vector<std::vector<uint32_t>>>());
       }},
      {"dtype", [](CallWords& c, py::handle v) { c.dtype = static_cast<DType>(word_index(v, "dtype", dtypes)); }},
  };
  return setters;
}

using JoinSetter = void (*)(Options&, py::handle);
const std::unordered_map<std::string_view, JoinSetter>& join_setters() {
  static const std::unordered_map<std::string_view, JoinSetter> setters{
      {"rank", [](Options& o, py::handle v) { o.rank = v.cast<int32_t>(); }},
      {"world_size", [](Options& o, py::handle v) { o.world_size = v.cast<int32_t>(); }},
      {"rendezvous", [](Options& o, py::handle v) { o.rendezvous = v.cast<std::string>(); }},
      {"key", [](Options& o, py::handle v) { o.key = key_text(v); }},
      {"security", [](Options& o, py::handle v) { o.security = security_word(v); }},
      {"job", [](Options& o, py::handle v) { o.job = v.cast<std::string>(); }},
      {"interface", [](Options& o, py::handle v) { o.interface = v.cast<std::string>(); }},
      {"transport", [](Options& o, py::handle v) { o.transport = v.cast<std::string>(); }},
      {"join_running", [](Options& o, py::handle v) { o.join_running = v.cast<bool>(); }},
      {"join_timeout", [](Options& o, py::handle v) { o.join_timeout = milliseconds(v.cast<double>(), "join_timeout"); }},
      {"timeout", [](Options& o, py::handle v) { o.timeout = milliseconds(v.cast<double>(), "timeout"); }},
      {"reform_timeout", [](Options& o, py::handle v) { o.reform_timeout = milliseconds(v.cast<double>(), "reform_timeout"); }},
      {"min_world", [](Options& o, py::handle v) { o.min_world = v.cast<uint32_t>(); }},
      {"require_majority", [](Options& o, py::handle v) { o.require_majority = v.cast<bool>(); }},
      {"rate_limit_mbps", [](Options& o, py::handle v) { o.rate_limit_mbps = v.cast<uint32_t>(); }},
      {"datagram_checksum", [](Options& o, py::handle v) { o.datagram_checksum = v.cast<bool>(); }},
      {"streams_per_link", [](Options& o, py::handle v) { o.streams_per_link = v.cast<uint32_t>(); }},
      {"link_timeout", [](Options& o, py::handle v) { o.link_timeout = milliseconds(v.cast<double>(), "link_timeout"); }},
      {"resend_memory_per_link", [](Options& o, py::handle v) { o.resend_memory_per_link = v.cast<uint64_t>(); }},
      {"resend_memory", [](Options& o, py::handle v) { o.resend_memory = v.cast<uint64_t>(); }},
      {"tuning", [](Options& o, py::handle v) { o.tuning = v.cast<std::string>(); }},
      {"codec", [](Options& o,
                   py::handle v) { o.codec = py::isinstance<Codec>(v) ? v.cast<Codec>().to_string() : v.cast<std::string>(); }},
      {"compute_threads", [](Options& o, py::handle v) { o.compute_threads = v.cast<uint32_t>(); }},
      {"payload_checksum", [](Options& o, py::handle v) { o.payload_checksum = v.cast<bool>(); }},
      {"on_event", [](Options& o, py::handle v) { o.on_event = event_handler(v); }},
  };
  return setters;
}

template <typename Setters, typename Target>
void apply(const Setters& setters, const py::kwargs& words, Target& target, const char* what) {
  for (const auto& [key, value] : words) {
    const std::string name = py::str(key);
    const auto setter = setters.find(name);
    if (setter == setters.end())
      throw py::type_error(std::string(what) + "() got an unexpected keyword argument '" + name + "'");
    if (value.is_none()) continue;
    try {
      setter->second(target, value);
    } catch (const py::cast_error&) {
      const auto given = name == "key" ? std::string("of this type") : std::string(py::repr(value));  // it is a secret
      throw py::type_error(std::string(what) + ": " + name + " cannot be " + given);
    }
  }
}

void add_step_codec(py::module_& m) {
  py::class_<StepCodec> step(m, "StepCodec", "How one step of a collective encodes elements (docs/guides/thin_links.md).");
  step.def(py::init([](const py::kwargs& fields) {
    auto object = py::cast(StepCodec{});
    set_fields(object, fields);
    return object.cast<StepCodec>();
  }));
  add_word(step, "kind", &StepCodec::kind, codec_names);
  step.def_readwrite("bits", &StepCodec::bits);
  step.def_readwrite("group", &StepCodec::group);
  add_word(step, "metadata", &StepCodec::metadata, metadata);
  add_word(step, "spikes", &StepCodec::spikes, spikes);
  step.def(
      "__eq__", [](const StepCodec& self, const StepCodec& other) { return self == other; }, py::is_operator());
  step.attr("__hash__") = py::none();
  step.def("__repr__", [](const StepCodec& self) { return "StepCodec('" + Codec::of(self).to_string() + "')"; });
}

void add_codec(py::module_& m) {
  py::class_<Codec> codec(
      m, "Codec",
      "How elements are sent: unchanged, as 16-bit floats, or as codes of 2 to 8 bits (docs/guides/thin_links.md).");
  add_options(codec, "Codec");
  add_option(codec, "reduce", &Codec::reduce);
  add_option(codec, "across", &Codec::across);
  add_option(codec, "gather", &Codec::gather);
  codec.def_readwrite("own_exact", &Codec::own_exact);
  codec.def_readwrite("poison", &Codec::poison);
  codec.def("is_plain", &Codec::is_plain);
  codec.def_static(
      "of", [](py::handle step) { return Codec::of(option_of<StepCodec>(step, "step")); }, py::arg("step"));
  codec.def_static("quantized", &Codec::quantized, py::arg("bits"), py::arg("group") = 128);
}

void add_delivery_options(py::module_& m) {
  py::class_<DeliveryOptions> options(m, "DeliveryOptions",
                                      "How a collective treats datagrams that do not arrive (docs/guides/packet_loss.md).");
  add_options(options, "DeliveryOptions");
  options.def_readwrite("loss_budget", &DeliveryOptions::loss_budget);
  add_word(options, "estimator", &DeliveryOptions::estimator, estimators);
  add_word(options, "on_empty", &DeliveryOptions::on_empty, on_empty);
  const auto seconds = [&](const char* name, std::chrono::microseconds DeliveryOptions::*field) {
    options.def_property(
        name, [field](const DeliveryOptions& self) { return static_cast<double>((self.*field).count()) * 1e-6; },
        [field](DeliveryOptions& self, double value) { self.*field = std::chrono::microseconds(std::llround(value * 1e6)); });
  };
  seconds("deadline", &DeliveryOptions::deadline);
  seconds("deadline_max", &DeliveryOptions::deadline_max);
  options.def_readwrite("loss_off", &DeliveryOptions::loss_off);
  options.def_readwrite("staging_bytes_max", &DeliveryOptions::staging_bytes_max);
  options.def("check", [](const DeliveryOptions& self) { check(self.check()); });
}

}  // namespace

std::string key_text(py::handle value) {
  if (!py::isinstance<py::str>(value)) throw py::cast_error();
  return value.cast<std::string>();
}

Security security_word(py::handle value) {
  static constexpr const char* securities[] = {"automatic", "required", "off"};
  return static_cast<Security>(word_index(value, "security", securities));
}

Milliseconds milliseconds(double seconds, const char* what) {
  constexpr double most = 1e9;  // this only prevents overflow; the library itself refuses times that are too long
  if (!(seconds >= 0) || seconds > most)
    throw py::value_error(std::string(what) + ": " + std::to_string(seconds) + " s; wanted: seconds from 0 on");
  return Milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000 - 1e-6)));
}

size_t word_index(py::handle word, const char* what, std::span<const char* const> words) {
  if (!py::isinstance<py::str>(word))
    throw py::type_error(std::string(what) + " is of the type " + Py_TYPE(word.ptr())->tp_name + "; wanted: a string");
  const auto given = word.cast<std::string>();
  const std::string_view text = given == "auto" ? "automatic" : std::string_view(given);
  std::string known;
  for (size_t i = 0; i < words.size(); ++i) {
    if (text == words[i]) return i;
    known += std::string(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  throw py::value_error(std::string(what) + ": '" + given + "'; wanted: " + known);
}

template <>
StepCodec option_of<StepCodec>(py::handle value, const char* what) {
  if (py::isinstance<StepCodec>(value)) return value.cast<StepCodec>();
  const auto codec = option_of<Codec>(value, what);
  if (codec != Codec::of(codec.reduce))
    throw py::value_error(std::string(what) + ": '" + codec.to_string() + "' has more than one step");
  return codec.reduce;
}

void set_fields(py::handle object, const py::kwargs& fields) {
  for (const auto& [name, value] : fields) {
    if (!py::hasattr(object, name))
      throw py::type_error(std::string(Py_TYPE(object.ptr())->tp_name) + "() got an unexpected keyword argument '" +
                           std::string(py::str(name)) + "'");
    py::setattr(object, name, value);
  }
}

CallWords call_words(const py::kwargs& words, const char* collective) {
  CallWords call;
  call.collective = collective;
  apply(call_setters(), words, call, collective);
  return call;
}

Options join_options(const py::kwargs& words) {
  Options options;
  apply(join_setters(), words, options, "join");
  if (!options.on_event) options.on_event = event_handler(py::none());
  return options;
}

void add_option_classes(py::module_& m) {
  add_step_codec(m);
  add_codec(m);
  add_delivery_options(m);
}

}  // namespace unisono_python

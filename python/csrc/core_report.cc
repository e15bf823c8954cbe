// Binds the reports of operations, links and groups as Python classes with read-only attributes.
#include <iterator>

#include "core_options.h"

namespace unisono_python {

namespace {

constexpr const char* ends[] = {"none", "complete", "tail", "soft", "hard", "silent", "lost"};
constexpr const char* deliveries[] = {"reliable", "lossy", "automatic"};

void add_delivery_report(py::module_& m) {
  using Delivered = DeliveryReport;
  py::class_<Delivered, std::shared_ptr<Delivered>> report(
      m, "DeliveryReport", "Delivery of one operation at this rank that asked for lossy or automatic delivery.");
  py::class_<Delivered::Stream>(report, "Stream", "How the stream of datagrams from one rank ended.")
      .def_readonly("expected", &Delivered::Stream::expected)
      .def_readonly("missing", &Delivered::Stream::missing)
      .def_readonly("repaired", &Delivered::Stream::repaired)
      .def_readonly("duplicate", &Delivered::Stream::duplicate)
      .def_readonly("late", &Delivered::Stream::late)
      .def_property_readonly("end", [](const Delivered::Stream& self) { return ends[static_cast<size_t>(self.end)]; })
      .def_readonly("present", &Delivered::Stream::present)
      .def_readonly("missing_ranges", &Delivered::Stream::missing_ranges)
      .def("share", &Delivered::Stream::share);
  py::class_<Delivered::Phase>(report, "Phase",
                               "Contributions on their way to the owners of shards, or results on their way to all ranks.")
      .def_readonly("ran", &Delivered::Phase::ran)
      .def_readonly("learning", &Delivered::Phase::learning)
      .def_readonly("duration_us", &Delivered::Phase::duration_us)
      .def_readonly("soft_us", &Delivered::Phase::soft_us)
      .def_readonly("hard_us", &Delivered::Phase::hard_us)
      .def_readonly("streams", &Delivered::Phase::streams);
  report.def_property_readonly("used", [](const Delivered& self) { return deliveries[static_cast<size_t>(self.used)]; });
  report.def_readonly("note", &Delivered::note);
  report.def_readonly("contribute", &Delivered::contribute);
  report.def_readonly("result", &Delivered::result);
  report.def_readonly("contributors", &Delivered::contributors);
  report.def_readonly("full_ranges", &Delivered::full_ranges);
  report.def_readonly("short_ranges", &Delivered::short_ranges);
  report.def_readonly("empty_ranges", &Delivered::empty_ranges);
  report.def_readonly("effective_contributors", &Delivered::effective_contributors);
  report.def_readonly("stale_ranges", &Delivered::stale_ranges);
  report.def_readonly("behind", &Delivered::behind);
  report.def_property_readonly("outcome", [](const Delivered& self) { return self.outcome.to_string(); });
  report.def("share_ratio", &Delivered::share_ratio);
  report.def("__str__", &Delivered::to_string);
}

void add_report(py::module_& m) {
  py::class_<OutputReport> report(
      m, "Report",
      "Report of one operation: contributors, traffic, time and the ranks that were late. Times are in microseconds.");
  report.def_property_readonly("operation", [](const OutputReport& self) { return std::string(self.operation); });
  report.def_readonly("number", &OutputReport::number);
  report.def_property_readonly("schedule", [](const OutputReport& self) { return std::string(self.schedule); });
  report.def_readonly("world_size", &OutputReport::world_size);
  report.def_readonly("contributors", &OutputReport::contributors);
  report.def_readonly("sent_bytes", &OutputReport::sent_bytes);
  report.def_readonly("received_bytes", &OutputReport::received_bytes);
  report.def_readonly("sent_messages", &OutputReport::sent_messages);
  report.def_readonly("received_messages", &OutputReport::received_messages);
  report.def_readonly("total_us", &OutputReport::total_us);
  report.def_readonly("wait_us", &OutputReport::wait_us);
  report.def_readonly("compute_us", &OutputReport::compute_us);
  report.def_readonly("transfer_us", &OutputReport::transfer_us);
  report.def_readonly("last_rank", &OutputReport::last_rank);
  report.def_readonly("codec", &OutputReport::codec);
  report.def_property_readonly("codec_note", [](const OutputReport& self) { return std::string(self.codec_note); });
  report.def_readonly("link_note", &OutputReport::link_note, "Which links broke and were connected anew meanwhile.");
  report.def_readonly("passes", &OutputReport::passes);
  report.def_readonly("sent_payload", &OutputReport::sent_payload);
  report.def_readonly("sent_elements", &OutputReport::sent_elements);
  report.def_readonly("saturated", &OutputReport::saturated);
  report.def_readonly("nonfinite_groups", &OutputReport::nonfinite_groups);
  report.def_readonly("encode_us", &OutputReport::encode_us);
  report.def_readonly("sum_us", &OutputReport::sum_us);
  report.def_readonly("decode_us", &OutputReport::decode_us);
  report.def_readonly("measured_error", &OutputReport::measured_error);
  report.def_property_readonly("delivery",
                               [](const OutputReport& self) { return std::const_pointer_cast<DeliveryReport>(self.delivery); });
  report.def_readonly("output", &OutputReport::output, "The array that the call allocated; None if the caller gave one.");
  report.def("bits_per_element", &OutputReport::bits_per_element,
             "Payload bits per element sent; an element that was sent twice counts twice.");
  report.def("snr_db", &OutputReport::snr_db, "measured_error in decibels. Infinite: no error. NaN: not measured.");
  add_text(report);
}

std::string text_of(const Member& member) {
  return "rank " + std::to_string(member.rank) + " (host " + member.host + ", pid " + std::to_string(member.pid) + ", " +
         member.link + ")";
}

void add_members(py::module_& m) {
  py::class_<Member>(m, "Member", "A process of a group, and the link to it.")
      .def_readonly("rank", &Member::rank)
      .def_readonly("host", &Member::host)
      .def_readonly("pid", &Member::pid)
      .def_readonly("link", &Member::link)
      .def("__repr__", [](const Member& self) { return "<unisono.Member: " + text_of(self) + ">"; })
      .def("__str__", text_of);
  py::class_<Reformed>(m, "Reformed", "The outcome of re-forming a group.")
      .def_readonly("epoch", &Reformed::epoch)
      .def_readonly("rank", &Reformed::rank)
      .def_readonly("world_size", &Reformed::world_size)
      .def_readonly("lost", &Reformed::lost)
      .def_readonly("joined", &Reformed::joined)
      .def_readonly("total_us", &Reformed::total_us)
      .def("__str__", [](const Reformed& self) {
        return "epoch " + std::to_string(self.epoch) + ": rank " + std::to_string(self.rank) + " of " +
               std::to_string(self.world_size) + ", " + std::to_string(self.lost.size()) + " lost, " +
               std::to_string(self.joined.size()) + " joined, " + std::to_string(self.total_us) + " us";
      });
}

void add_link_speeds(py::module_& m) {
  py::class_<LinkSpeeds> speeds(m, "LinkSpeeds", "Speed of the links between members, as schedules use it.");
  py::class_<LinkSpeeds::Kind>(speeds, "Kind")
      .def_readonly("measured", &LinkSpeeds::Kind::measured)
      .def_readonly("latency_us", &LinkSpeeds::Kind::latency_us)
      .def_readonly("bytes_per_us", &LinkSpeeds::Kind::bytes_per_us);
  py::class_<LinkSpeeds::HostPair>(speeds, "HostPair")
      .def_readonly("host_a", &LinkSpeeds::HostPair::host_a)
      .def_readonly("host_b", &LinkSpeeds::HostPair::host_b)
      .def_readonly("speed", &LinkSpeeds::HostPair::speed);
  speeds.def_readonly("inside_hosts", &LinkSpeeds::inside_hosts);
  speeds.def_readonly("between_hosts", &LinkSpeeds::between_hosts);
  speeds.def_readonly("host_pairs", &LinkSpeeds::host_pairs);
  add_text(speeds);
}

void add_counters(py::module_& m) {
  py::class_<Counters> counters(m, "Counters",
                                "Counters of a group on this rank. They start when the group is joined, split or re-formed.");
  py::class_<LinkCounters>(counters, "Link", "Traffic with one rank.")
      .def_readonly("rank", &LinkCounters::rank)
      .def_readonly("transport", &LinkCounters::transport)
      .def_readonly("place", &LinkCounters::place)
      .def_readonly("sent_bytes", &LinkCounters::sent_bytes)
      .def_readonly("sent_messages", &LinkCounters::sent_messages)
      .def_readonly("received_bytes", &LinkCounters::received_bytes)
      .def_readonly("received_messages", &LinkCounters::received_messages)
      .def_readonly("waited_us", &LinkCounters::waited_us)
      .def_readonly("waited_for", &LinkCounters::waited_for)
      .def_readonly("stalls", &LinkCounters::stalls)
      .def_readonly("lost", &LinkCounters::lost);
  py::class_<CollectiveCounters>(counters, "Collective", "Operations of one collective.")
      .def_property_readonly("collective", [](const CollectiveCounters& self) { return std::string(self.collective); })
      .def_readonly("operations", &CollectiveCounters::operations)
      .def_readonly("bytes", &CollectiveCounters::bytes)
      .def_readonly("total_us", &CollectiveCounters::total_us)
      .def_readonly("late", &CollectiveCounters::late)
      .def_readonly("failed", &CollectiveCounters::failed);
  counters.def_readonly("begun", &Counters::begun);
  counters.def_readonly("ended", &Counters::ended);
  counters.def_readonly("collectives", &Counters::collectives);
  counters.def_readonly("links", &Counters::links);
  counters.def_readonly("note", &Counters::note);
}

void add_shard_layout(py::module_& m) {
  py::class_<ShardLayout>(m, "ShardLayout",
                          "How a tensor is cut: one shard per rank, and each shard into ranges, one per datagram.")
      .def_readonly("elements", &ShardLayout::elements)
      .def_readonly("world", &ShardLayout::world)
      .def_readonly("shard_elements", &ShardLayout::shard_elements)
      .def_readonly("range_elements", &ShardLayout::range_elements)
      .def("begin", &ShardLayout::begin, py::arg("rank"))
      .def("end", &ShardLayout::end, py::arg("rank"))
      .def("count", &ShardLayout::count, py::arg("rank"))
      .def("ranges", &ShardLayout::ranges, py::arg("rank"))
      .def(
          "__eq__", [](const ShardLayout& self, const ShardLayout& other) { return self == other; }, py::is_operator())
      .attr("__hash__") = py::none();
}

}  // namespace

std::string fields_text(const py::object& self) {
  const auto type = py::type::of(self);
  const auto property = py::module_::import("builtins").attr("property");
  std::string text = "<unisono." + std::string(py::str(type.attr("__name__"))) + ":";
  for (const auto item : type.attr("__dict__").attr("items")()) {
    const auto pair = py::cast<py::tuple>(item);
    if (py::isinstance(pair[1], property))
      text += " " + std::string(py::str(pair[0])) + "=" + std::string(py::str(py::getattr(self, pair[0])));
  }
  return text + ">";
}

void add_reports(py::module_& m) {
  add_delivery_report(m);
  add_report(m);
  add_members(m);
  add_link_speeds(m);
  add_counters(m);
  add_shard_layout(m);
}

}  // namespace unisono_python

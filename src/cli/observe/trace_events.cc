#include "cli/observe/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/observe/diagnosis.h"

namespace unisono::cli {
namespace {

using Json = nlohmann::ordered_json;

// Converts a time to microseconds, the unit of the trace format.
double microseconds(Nanos time) { return static_cast<double>(time) / microsecond; }

class Trace {
 public:
  explicit Trace(Nanos zero) : zero_(zero) {}

  void add(const ScanEntry& scan_entry) {
    const auto& record = scan_entry.record;
    ++process_;
    const auto group = record.group == 1 ? std::string() : fmt::format(", sub-group {:08x}", record.group);
    metadata("process_name", 0,
             fmt::format("rank {} (host {}, pid {}){}{}", record.rank, record.host, record.pid, group,
                         record.epoch > 1 ? fmt::format(", epoch {}", record.epoch) : ""));
    events_.push_back(
        {{"name", "process_sort_index"}, {"ph", "M"}, {"pid", process_}, {"tid", 0}, {"args", {{"sort_index", record.rank}}}});
    track_ends_.clear();
    // Adds the operations in the order in which they started. If two operations started at the same time, the longer one comes
    // first. In this order, track_for() needs only few tracks.
    auto operations = record.operations;
    std::sort(operations.begin(), operations.end(),
              [](const auto& a, const auto& b) { return std::pair(a.started, -a.ended) < std::pair(b.started, -b.ended); });
    for (const auto& operation : operations) add(record, operation);
    for (const auto& running : record.running) add(scan_entry, running);
  }

  std::string text() const { return Json{{"displayTimeUnit", "ns"}, {"traceEvents", events_}}.dump() + "\n"; }

 private:
  void add(const record::Snapshot& record, const record::EndedOperation& o) {
    const auto track = track_for(o.started, o.ended);
    Json arguments{{"call", o.name.call()}, {"schedule", name(o.name.kind.schedule)}, {"outcome", name(o.code)}};
    if (o.pending >= 0) arguments["waited for rank"] = o.pending;
    slice(record, o.name.to_string(), track, o.started, o.ended, std::move(arguments));
    if (o.last_receive == 0) return;
    const auto sent = o.first_send == 0 ? o.started : o.first_send;
    const auto first = std::min(sent, o.last_receive), last = std::max(sent, o.last_receive);
    if (first > o.started) slice(record, "before the first message", track, o.started, first, {});
    slice(record, "messages", track, first, last, {});
    if (o.ended > last) slice(record, "after the last message", track, last, o.ended, {});
  }

  // Draws a running operation. If its process still exists, the operation is drawn up to the time at which the record was read.
  // Otherwise it is drawn up to the time of its last progress.
  void add(const ScanEntry& scan_entry, const record::RunningOperation& running) {
    const auto& record = scan_entry.record;
    const bool lives = scan_entry.life == Life::runs || scan_entry.life == Life::stopped;
    const auto end =
        lives ? std::max(running.progress, scan_entry.seen - record.wall_start + record.monotonic_start) : running.progress;
    const auto track = track_for(running.started, end);
    Json arguments{{"call", running.name.call()},
                   {"outcome", "in flight"},
                   {"waits for ranks", running.pending},
                   {"round", running.round}};
    slice(record, running.name.to_string(), track, running.started, end, std::move(arguments));
  }

  // Returns the first track that is free at the time `started`, and marks it as occupied until `ended`.
  int track_for(Nanos started, Nanos ended) {
    size_t track = 0;
    while (track < track_ends_.size() && track_ends_[track] > started) ++track;
    if (track == track_ends_.size()) {
      track_ends_.push_back(0);
      metadata("thread_name", static_cast<int>(track),
               track == 0 ? "operations" : fmt::format("operations at the same time ({})", track + 1));
    }
    track_ends_[track] = ended;
    return static_cast<int>(track);
  }

  void metadata(const char* what, int track, const std::string& name) {
    events_.push_back({{"name", what}, {"ph", "M"}, {"pid", process_}, {"tid", track}, {"args", {{"name", name}}}});
  }

  void slice(const record::Snapshot& record, const std::string& name, int track, Nanos started, Nanos ended, Json arguments) {
    Json event{{"name", name},
               {"ph", "X"},
               {"pid", process_},
               {"tid", track},
               {"ts", microseconds(record.wall(started) - zero_)},
               {"dur", microseconds(ended - started)}};
    if (!arguments.empty()) event["args"] = std::move(arguments);
    events_.push_back(std::move(event));
  }

  const Nanos zero_;
  int process_ = 0;
  std::vector<Nanos> track_ends_;
  Json events_ = Json::array();
};

}  // namespace

std::string trace_json(const std::vector<ScanEntry>& scan_entries) {
  // Times are measured from the first event, because doubles can then hold them exactly to the nanosecond.
  Nanos zero = never;
  for (const auto& scan_entry : scan_entries) {
    const auto& record = scan_entry.record;
    for (const auto& operation : record.operations) zero = std::min(zero, record.wall(operation.started));
    for (const auto& running : record.running) zero = std::min(zero, record.wall(running.started));
  }
  Trace trace(zero);
  for (const auto& scan_entry : scan_entries) trace.add(scan_entry);
  return trace.text();
}

}  // namespace unisono::cli

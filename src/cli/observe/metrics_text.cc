#include "cli/observe/metrics_text.h"

#include <fmt/format.h>

#include <functional>

#include "cli/observe/diagnosis.h"

namespace unisono::cli {
namespace {

// Puts the value of a label in quotes. Backslashes, quotes and line ends in it are escaped.
std::string label_value(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out + "\"";
}

double seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / static_cast<double>(second); }

// Writes metric families. The format demands that a family consists of its head, and then of the samples from all records
// together.
class Metrics {
 public:
  explicit Metrics(const std::vector<ScanEntry>& scan_entries) : scan_entries_(scan_entries) {}

  void family(const std::string& name, const char* type, const char* unit, const char* help,
              const std::function<void(const ScanEntry&, const std::string&)>& samples) {
    name_ = "unisono_" + name;
    text_ += fmt::format("# TYPE {} {}\n", name_, type);
    if (*unit != '\0') text_ += fmt::format("# UNIT {} {}\n", name_, unit);
    text_ += fmt::format("# HELP {} {}\n", name_, help);
    for (const auto& scan_entry : scan_entries_) samples(scan_entry, labels_of(scan_entry.record));
  }
  template <typename Value>
  void sample(const char* suffix, const std::string& labels, Value value) {
    text_ += fmt::format("{}{}{{{}}} {}\n", name_, suffix, labels, value);
  }
  std::string finish() && { return std::move(text_) + "# EOF\n"; }

 private:
  static std::string labels_of(const record::Snapshot& record) {
    return fmt::format("run=\"{:016x}\",group=\"{:x}\",epoch=\"{}\",rank=\"{}\",host={},pid=\"{}\"", record.run, record.group,
                       record.epoch, record.rank, label_value(record.host), record.pid);
  }

  const std::vector<ScanEntry>& scan_entries_;
  std::string name_, text_;
};

using CollectiveValue = uint64_t (*)(const record::CollectiveCount&);
using LinkValue = uint64_t (*)(const record::LinkCount&);

void collective_counter(Metrics& metrics, const char* name, const char* unit, const char* help, CollectiveValue value) {
  metrics.family(name, "counter", unit, help, [&](const ScanEntry& scan_entry, const std::string& labels) {
    for (const auto& c : scan_entry.record.collectives)
      metrics.sample("_total", fmt::format("{},collective=\"{}\"", labels, unisono::name(c.collective)), value(c));
  });
}

template <typename Value>
void link_counter(Metrics& metrics, const char* name, const char* unit, const char* help, Value value) {
  metrics.family(name, "counter", unit, help, [&](const ScanEntry& scan_entry, const std::string& labels) {
    const auto& record = scan_entry.record;
    for (uint32_t peer = 0; peer < record.world; ++peer) {
      const auto& link = record.links[peer];
      if (peer != record.rank)
        metrics.sample("_total", fmt::format("{},peer=\"{}\",transport={}", labels, peer, label_value(link.transport)),
                       value(link));
    }
  });
}

void collectives(Metrics& metrics) {
  collective_counter(metrics, "operations", "", "Operations that have ended.",
                     [](const record::CollectiveCount& c) { return c.ended; });
  collective_counter(metrics, "operations_failed", "", "Operations that did not end with ok.",
                     [](const record::CollectiveCount& c) { return c.failed; });
  collective_counter(metrics, "operations_late", "", "Operations that ended at their deadline.",
                     [](const record::CollectiveCount& c) { return c.late; });
  collective_counter(metrics, "tensor_bytes", "bytes", "Bytes of the tensors of operations that have ended.",
                     [](const record::CollectiveCount& c) { return c.bytes; });
  metrics.family("operation_seconds", "histogram", "seconds", "How long operations took.",
                 [&](const ScanEntry& scan_entry, const std::string& labels) {
                   for (const auto& c : scan_entry.record.collectives) {
                     const auto own = fmt::format("{},collective=\"{}\"", labels, unisono::name(c.collective));
                     uint64_t below = 0;
                     for (uint32_t i = 0; i + 1 < record::bucket_count; ++i) {
                       below += c.buckets[i];
                       metrics.sample("_bucket",
                                      fmt::format("{},le=\"{}\"", own, seconds(uint64_t{1} << (record::bucket_shift + i))),
                                      below);
                     }
                     below += c.buckets[record::bucket_count - 1];
                     metrics.sample("_bucket", own + ",le=\"+Inf\"", below);
                     metrics.sample("_count", own, below);
                     metrics.sample("_sum", own, seconds(c.total_ns));
                   }
                 });
}

void links(Metrics& metrics) {
  link_counter(metrics, "link_sent_bytes", "bytes", "Bytes sent to a rank, headers included.",
               [](const record::LinkCount& l) { return l.sent_bytes; });
  link_counter(metrics, "link_received_bytes", "bytes", "Bytes received from a rank, headers included.",
               [](const record::LinkCount& l) { return l.received_bytes; });
  link_counter(metrics, "link_sent_messages", "", "Messages sent to a rank.",
               [](const record::LinkCount& l) { return l.sent_messages; });
  link_counter(metrics, "link_received_messages", "", "Messages received from a rank.",
               [](const record::LinkCount& l) { return l.received_messages; });
  link_counter(metrics, "link_waited_seconds", "seconds", "Time waited for a rank that was the last one to send anything.",
               [](const record::LinkCount& l) { return seconds(l.waited_ns); });
  link_counter(metrics, "link_stalls", "", "Messages for which the transport had no send credit.",
               [](const record::LinkCount& l) { return l.stalls; });
}

}  // namespace

std::string metrics_text(const std::vector<ScanEntry>& scan_entries) {
  Metrics metrics(scan_entries);
  collectives(metrics);
  links(metrics);
  metrics.family("operations_in_flight", "gauge", "", "Operations that have begun and not ended.",
                 [&](const ScanEntry& scan_entry, const std::string& labels) {
                   const auto& record = scan_entry.record;
                   metrics.sample("", labels, record.begun > record.ended ? record.begun - record.ended : 0);
                 });
  metrics.family("operation_age_seconds", "gauge", "seconds", "Age of the oldest operation in flight; 0: there is none.",
                 [&](const ScanEntry& scan_entry, const std::string& labels) {
                   const auto* running = current(scan_entry);
                   metrics.sample("", labels,
                                  running == nullptr ? 0.0 : seconds(static_cast<uint64_t>(scan_entry.ago(running->started))));
                 });
  return std::move(metrics).finish();
}

}  // namespace unisono::cli

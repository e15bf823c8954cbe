// Makes the reports of lossy operations that have ended.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "engine/lossy/lossy_group.h"

namespace unisono {

// For each rank, counts the successive operations in which it sent nothing. An operation that ended before data could arrive
// does not count. Ranks that have nothing to send to this rank are left out.
void LossyGroup::count_silence(const Status& status) {
  const auto& operation = current();
  if (!status.ok() && (status.code() != Code::late || operation.behind() > 0)) return;
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank == setup_.datagrams.self) continue;
    bool heard = present(rank), pending = false;
    for (uint32_t number = 0; number < lossy_phases; ++number) {
      const auto& stream = operation.phase(number).streams[rank];
      if (!operation.phase(number).runs || stream.arrivals.ranges() == 0) continue;
      pending = true;
      heard |= stream.clock.heard() || stream.arrivals.arrived_count() > 0;
    }
    if (pending) silent_[rank] = heard ? 0 : silent_[rank] + 1;
  }
}

// Counts the bytes on the links, including headers. Each range counts once, and once more each time it is sent again.
void LossyGroup::count_bytes(Report& report) {
  const auto& operation = current();
  const auto& geometry = *operation.setup().geometry;
  const auto self = setup_.datagrams.self;
  const uint64_t header_bytes = service_.header_bytes();
  for (Rank rank = 0; rank < world(); ++rank) {
    if (rank == self) continue;
    uint64_t sent_ranges = 0, sent_payload = 0, received_ranges = 0;
    if (operation.phase(0).runs) sent_ranges += geometry.ranges(rank), sent_payload += geometry.shard_bytes(rank);
    // Results are sent only after phase 0 has closed.
    if (operation.phase(1).runs && operation.phase(1).open)
      sent_ranges += geometry.ranges(self), sent_payload += geometry.shard_bytes(self);
    const auto repaired = service_.datagram_counters(setup_.number, rank).repaired;
    const auto again = repaired - std::exchange(repaired_before_[rank], repaired);
    for (const auto number : {0u, 1u}) {
      if (operation.phase(number).runs) received_ranges += operation.phase(number).streams[rank].arrivals.arrived_count();
    }
    const uint64_t datagram = geometry.range_bytes() + header_bytes;
    report.sent_payload += sent_payload + again * geometry.range_bytes();
    report.sent_bytes += sent_payload + sent_ranges * header_bytes + again * datagram;
    report.sent_messages += sent_ranges + again;
    report.sent_elements += again * geometry.range_elements();
    if (operation.phase(0).runs) report.sent_elements += geometry.shard(rank).count();
    if (operation.phase(1).runs && operation.phase(1).open) report.sent_elements += geometry.shard(self).count();
    report.received_bytes += received_ranges * datagram;
    report.received_messages += received_ranges;
  }
}

// Returns ok, or Code::late if a deadline cut streams short. The message then names the ranks that sent these streams, and how
// much of each stream is missing.
Status LossyGroup::outcome() const {
  std::string text;
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = current().phase(number);
    if (!phase.runs) continue;
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      const bool whole = stream.arrivals.ranges() > 0 && stream.missing == stream.arrivals.ranges();
      if (stream.missing == 0 || (stream.clock.end() != StreamEnd::hard && stream.clock.end() != StreamEnd::silent && !whole))
        continue;
      if (!text.empty()) text += "; ";
      text += concat(number == 0 ? "contributions" : "results", " of rank ", from, " (", location(from), "): ", stream.missing,
                     " of ", stream.arrivals.ranges(), " ranges missing after ", (phase.close - phase.start) / microsecond,
                     " us (", name(stream.clock.end()), ")");
    }
  }
  if (text.empty()) return {};
  return {Code::late, text};
}

// Returns why this delivery was chosen, and which paths carry less than they did.
std::string LossyGroup::note() const {
  auto note = choice_.note(call_.request.delivery);
  for (Rank rank = 0; rank < world() && setup_.link_state; ++rank) {
    if (rank == setup_.datagrams.self) continue;
    const auto state = setup_.link_state(rank);
    if (!state.empty()) note += concat(note.empty() ? "" : "; ", "rank ", rank, " (", location(rank), "): ", state);
  }
  return note;
}

std::shared_ptr<const DeliveryReport> LossyGroup::delivery_report() const {
  const auto& operation = current();
  auto report = std::make_shared<DeliveryReport>();
  report->used = used_;
  report->note = note();
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = operation.phase(number);
    auto& out = number == 0 ? report->contribute : report->result;
    out.ran = phase.runs;
    if (!phase.runs) continue;
    const auto& setup = operation.setup().phases[number];
    out.learning = learned_->deadlines[number].learning();
    out.duration_us = (std::max(phase.close, phase.start) - phase.start) / microsecond;
    out.soft_us = setup.limits.soft / microsecond;
    out.hard_us = setup.limits.hard / microsecond;
    out.streams.resize(world());
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      out.streams[from] = {
          .expected = stream.arrivals.ranges(),
          .missing = stream.missing,
          .repaired = stream.repaired,
          .duplicate = stream.duplicate,
          .late = stream.late,
          .end = stream.lost ? DeliveryReport::End::lost : static_cast<DeliveryReport::End>(stream.clock.end()),
          .present = present(from)};
      auto& missing = out.streams[from].missing_ranges;
      missing.reserve(stream.missing);
      for (auto at = stream.arrivals.next_missing(0); at < stream.arrivals.ranges(); at = stream.arrivals.next_missing(at + 1))
        missing.push_back(at);
      if (number == 1) report->stale_ranges += stream.missing;
    }
  }
  const auto& counts = operation.range_counts();
  if (operation.phase(0).runs) report->contributors.assign(operation.contributors().begin(), operation.contributors().end());
  report->full_ranges = counts.full;
  report->short_ranges = counts.reduced;
  report->empty_ranges = counts.empty;
  report->effective_contributors = operation.effective_contributors();
  report->behind = operation.behind();
  report->outcome = outcome();
  return report;
}

}  // namespace unisono

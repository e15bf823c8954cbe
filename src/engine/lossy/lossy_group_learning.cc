// How a group learns from its lossy operations. Every rank learns deadlines, and rank 0 chooses the delivery.
#include <algorithm>

#include "engine/lossy/lossy_group.h"

namespace unisono {

void LossyGroup::learn_deadlines() {
  const auto& operation = current();
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = operation.phase(number);
    if (!phase.runs) continue;
    auto& deadline = learned_->deadlines[number];
    const auto& limits = operation.setup().phases[number].limits;
    PhaseOutcome outcome{.duration = phase.close - phase.start, .hard = limits.hard};
    uint64_t expected = 0, missing = 0;
    for (Rank from = 0; from < world(); ++from) {
      if (from == setup_.datagrams.self) continue;
      const auto& stream = phase.streams[from];
      expected += stream.arrivals.ranges();
      missing += stream.missing + stream.repaired;
      const auto end = stream.clock.end();
      outcome.silent_peer |= end == StreamEnd::silent;
      outcome.cut_by_hard |= end == StreamEnd::hard;
      if (!stream.clock.heard() || stream.arrivals.ranges() == 0) continue;
      if (end == StreamEnd::hard) outcome.cut_missing = std::max(outcome.cut_missing, stream.arrivals.missing_fraction());
      if (const auto cut = stream.clock.cut_by(); cut > 0) deadline.stream_cut(cut);
      else deadline.stream_ended(stream.clock.last() - stream.clock.first());
    }
    outcome.missing_fraction = expected == 0 ? 0 : static_cast<double>(missing) / static_cast<double>(expected);
    deadline.phase_ended(outcome);
  }
}

// Rank 0 decides whether the group's next calls of this kind get another delivery. Ranges that were missing or were requested
// again count as lost. Some of them may only be late, or their sender may be absent, but the receiver cannot tell.
void LossyGroup::update_delivery() {
  if (setup_.datagrams.self != 0 || current().behind() > 0) return;
  const auto& operation = current();
  const auto& cut = operation.setup().geometry->cut();
  DeliveryOutcome outcome{.size_class = size_class_of(cut.codec.message_bytes(cut.elements))};
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const auto& phase = operation.phase(number);
    if (!phase.runs) continue;
    outcome.phase_duration = std::max(outcome.phase_duration, phase.close - phase.start);
    for (Rank from = 1; from < world(); ++from) {
      outcome.expected += phase.streams[from].arrivals.ranges();
      outcome.missing += phase.streams[from].missing + phase.streams[from].repaired;
    }
  }
  const auto& request = call_.request;
  const auto decision = choice_.ended(op_, request.delivery, request.lossy, outcome);
  if (!decision) return;
  for (Rank to = 1; to < world(); ++to) {
    if (lost_[to].ok()) setup_.send_message(to, decision->encode());
  }
}

}  // namespace unisono

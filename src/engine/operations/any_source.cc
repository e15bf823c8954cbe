#include "engine/operations/any_source.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/concat.h"
#include "executor/absence.h"

namespace unisono {

void AnySourceReceives::fail(AnySourceReceive& receive, const Status& why) {
  auto completion = std::move(receive.completion);
  completion->report.operation = name(receive.request.collective);
  completion->status =
      Status(why.code(), concat(name(receive.request.collective), " from any rank, tag ", receive.tag, ": ", why.message()));
  completion->done = true;
}

Nanos AnySourceReceives::next_deadline() const {
  Nanos next = never;
  for (const auto& receive : waiting_) next = std::min(next, receive.deadline);
  return next;
}

bool AnySourceReceives::end_late(const FailureProtocol& failures, Nanos now) {
  return end([&](const AnySourceReceive& receive) -> Status {
    std::string gone;
    bool alone = true, lost = receive.group->world() == 1;
    const auto& group = *receive.group;
    for (Rank rank = 0; rank < group.world(); ++rank) {
      if (rank == group.self) continue;
      const auto& why = failures.absence(group, rank);
      alone &= !why.ok();
      lost |= !why.ok() && !is_abort(why);
      if (!why.ok()) gone += (gone.empty() ? "" : "; ") + describe_absence(rank, why);
    }
    if (alone) return {lost ? Code::peer_lost : Code::unavailable, gone};
    if (now < receive.deadline) return {};
    return {Code::late, concat("no rank has sent anything in ", (now - receive.started) / millisecond, " ms",
                               gone.empty() ? "" : "; " + gone)};
  });
}

std::optional<Rank> AnySourceReceives::sender_of_first(const EarlyFrames& early, const GroupCore& group, uint32_t tag) {
  for (const auto& frame : early.frames()) {
    if (frame.header.kind != FrameKind::data || frame.header.group != group.number || frame.header.epoch != group.epoch)
      continue;
    const auto rank = group.rank_of(frame.from);
    if (rank < 0 || static_cast<Rank>(rank) != frame.header.sender) continue;
    const auto from = static_cast<Rank>(rank);
    if (frame.header.operation == group.numbers.next_message(from, group.self, tag)) return from;
  }
  return std::nullopt;
}

}  // namespace unisono

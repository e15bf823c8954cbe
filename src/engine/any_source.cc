#include "engine/any_source.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine_active.h"
#include "executor/absence.h"

namespace unisono {

void AnySourceReceives::fail(AnySourceReceive& receive, const Status& why) {
  auto completion = std::move(receive.completion);
  completion->report.operation = name(receive.request.collective);
  completion->status = Status(why.code(), std::string(name(receive.request.collective)) + " from any rank, tag " +
                                              std::to_string(receive.tag) + ": " + why.message());
  completion->done = true;
}

Nanos AnySourceReceives::next_deadline() const {
  Nanos next = never;
  for (const auto& receive : waiting_) next = std::min(next, receive.deadline);
  return next;
}

std::shared_ptr<Completion> Engine::start_any_source(GroupCore& group, OperationRequest&& request, uint32_t tag, Nanos now) {
  if (any_source_.size() >= AnySourceReceives::waiting_max)
    return refuse(request,
                  {Code::unavailable, std::to_string(any_source_.size()) + " receives from any rank wait already, the limit"});
  auto completion = take_completion();
  const auto deadline = now + request.timeout;
  any_source_.add({&group, std::move(request), tag, completion, now, deadline});
  match_any_source(now);
  end_any_source(now);
  return completion;
}

// Late ones, and those that nobody is left for.
bool Engine::end_any_source(Nanos now) {
  return any_source_.end([&](const AnySourceReceive& receive) -> Status {
    std::string gone;
    bool alone = true, lost = receive.group->world() == 1;
    const auto& group = *receive.group;
    for (Rank rank = 0; rank < group.world(); ++rank) {
      if (rank == group.self) continue;
      const auto& why = absence(group, rank);
      alone &= !why.ok();
      lost |= !why.ok() && !gave_up(why);
      if (!why.ok()) gone += (gone.empty() ? "" : "; ") + describe_absence(rank, why);
    }
    if (alone) return {lost ? Code::peer_lost : Code::unavailable, gone};
    if (now < receive.deadline) return {};
    return {Code::late, "no rank has sent anything in " + std::to_string((now - receive.started) / millisecond) + " ms" +
                            (gone.empty() ? "" : "; " + gone)};
  });
}

// The rank whose message with this tag arrived first among those that no receive has asked for.
std::optional<Rank> Engine::sender_of_first(const GroupCore& group, uint32_t tag) const {
  for (const auto& u : unexpected_) {
    if (u.header.kind != FrameKind::data || u.header.group != group.number || u.header.epoch != group.epoch) continue;
    const auto rank = group.rank_of(u.from);
    if (rank < 0 || static_cast<Rank>(rank) != u.header.sender) continue;
    const auto from = static_cast<Rank>(rank);
    const auto next = group.next_message.find(message_key(from, group.self, tag));
    if (u.header.operation == message_id(from, tag, next == group.next_message.end() ? 0 : next->second)) return from;
  }
  return std::nullopt;
}

bool Engine::match_any_source(Nanos now) {
  bool progress = false;
  while (!any_source_.empty() && !unexpected_.empty()) {
    auto found =
        any_source_.take_first([&](const AnySourceReceive& receive) { return sender_of_first(*receive.group, receive.tag); });
    if (!found) break;
    progress = true;
    auto& group = *found->group;
    found->request.timeout = std::max<Nanos>(1, found->deadline - now);
    const auto chosen = plan_for(group, found->request);
    if (!chosen) {
      AnySourceReceives::fail(*found, chosen.status());
      continue;
    }
    const auto number = number_operation(group, found->request, found->tag);
    launch(group, std::move(found->request), {.chosen = *chosen, .number = number, .completion = std::move(found->completion)},
           found->started, now);
  }
  return progress;
}

}  // namespace unisono

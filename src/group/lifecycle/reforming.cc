#include "group/lifecycle/reforming.h"

#include <algorithm>

#include "group/lifecycle/agreement.h"
#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/group_state.h"
#include "group/lifecycle/joining.h"

namespace unisono {
namespace {

constexpr Nanos reform_bound = 10 * second;  // on agreeing, at least; it ends within a few reform timeouts
constexpr int reform_timeouts_max = 10;
constexpr Nanos settle_time_min = second;  // for links to members that joined, and for all members to say that they are ready
constexpr int attempts_max = 4;            // each loses a member, or one that joined

Member member_of(const MemberRecord& record) {
  return {.rank = record.rank, .host = record.host, .pid = record.pid, .link = {}};
}

Status begin(Runtime& runtime, const internal::GroupState& state) {
  return runtime.locked([&](GuardedState& guarded) -> Status {
    if (!guarded.members.removed().ok()) return guarded.members.removed();
    if (state.epoch != guarded.members.roster().epoch)
      return {Code::peer_lost,
              "this group ended when the roster changed to epoch " + std::to_string(guarded.members.roster().epoch)};
    const auto now = monotonic_now();
    guarded.engine.end_all_groups({Code::peer_lost, "the group is being re-formed"}, now);
    guarded.members.begin_formation();
    const auto& options = guarded.options;
    ReformRequest request{.dead = {},
                          .joiners = {},
                          .timeout = options.reform_timeout.count() * millisecond,
                          .min_world = options.min_world,
                          .require_majority = options.require_majority};
    for (size_t rank = 0; rank < guarded.members.peers().size(); ++rank) {
      const auto peer = guarded.members.peers()[rank];
      if (peer != self_peer && !guarded.engine.peer_status(peer).ok())
        request.dead.push_back(guarded.members.roster().members[rank].id);
    }
    if (guarded.members.session()->attending()) request.joiners = guarded.members.session()->poll_joiners();
    auto status = guarded.members.reform()->start(request, now);
    flush_reform_sends(guarded);
    return status;
  });
}

// Runs the state machine until it has an outcome.
Result<ReformResult> agree(Runtime& runtime) {
  std::optional<Result<ReformResult>> result;
  const auto until = after(monotonic_now(), std::max<int64_t>(reform_bound / millisecond,
                                                              reform_timeouts_max * runtime.options().reform_timeout.count()));
  while (monotonic_now() < until) {
    Nanos wake = never;
    runtime.locked([&](GuardedState& guarded) {
      guarded.engine.poll(monotonic_now());  // a process that was stopped reads what has arrived before it judges others
      guarded.members.reform()->woke(monotonic_now());
      flush_reform_sends(guarded);
      result = guarded.members.reform()->take_result();
      wake = guarded.members.reform()->next_deadline();
    });
    if (result) return std::move(*result);
    runtime.wait(
        [&](GuardedState& guarded) {
          flush_reform_sends(guarded);
          if (!result) result = guarded.members.reform()->take_result();
          return result.has_value() || !guarded.members.removed().ok() || guarded.members.reform()->next_deadline() < wake;
        },
        std::min(wake, until));
    if (result) {
      runtime.locked([&](GuardedState& guarded) { flush_reform_sends(guarded); });
      return std::move(*result);
    }
    if (const auto removed = runtime.locked([&](GuardedState& guarded) { return guarded.members.removed(); }); !removed.ok())
      return removed;
  }
  return Status(Code::internal, "re-forming found no end");
}

// Notifies members that were dropped and closes the links to them; the new roster takes effect.
void adopt(Runtime& runtime, const ReformResult& result) {
  runtime.locked([&](GuardedState& guarded) {
    for (const auto& lost : result.lost) {
      const auto peer = guarded.members.index_of(lost.id);
      if (peer == self_peer || !guarded.engine.peer_status(peer).ok()) continue;
      guarded.engine.send_removed(peer);
      for (auto& link : guarded.members.links()) {
        if (link.connector->state(peer) != LinkState::unknown) link.transport->close(peer);
      }
      guarded.engine.remove_peer(peer);
    }
    guarded.members.set_roster(result.roster);
    guarded.set_local_world(ranks_beside(result.roster, result.self));
    if (guarded.members.session()->attending()) {
      for (const auto& joined : result.joined) guarded.members.session()->answer_joiner(joined.id, result.roster);
    }
    if (result.self == 0) guarded.members.session()->attend(result.roster);
  });
}

}  // namespace

void flush_reform_sends(GuardedState& guarded) {
  for (auto& send : guarded.members.reform()->take_sends()) {
    const auto peer = guarded.members.index_of(send.to);
    if (peer == self_peer || !guarded.engine.peer_status(peer).ok()) continue;
    Bytes message{static_cast<std::byte>(ControlKind::reform)};
    message.insert(message.end(), send.bytes.begin(), send.bytes.end());
    guarded.engine.send_control(peer, std::move(message));
  }
}

// One re-forming, up to the new group being made; how it went after that is in `settled`: a member, or one that joined, may be
// lost again before all are linked up.
static Status reform_once(Runtime& runtime, internal::GroupState& state, Measuring& measuring, Status& settled) {
  auto status = begin(runtime, state);
  if (!status.ok()) return status;
  auto result = agree(runtime);
  if (!result) {
    runtime.locked([&](GuardedState& guarded) {
      if (guarded.members.removed().ok()) guarded.members.set_removed(result.status());
    });
    return result.status();
  }
  adopt(runtime, *result);
  const auto patience = std::max<Nanos>(settle_time_min, runtime.options().reform_timeout.count() * millisecond * 5);
  const auto deadline = monotonic_now() + patience;
  settled = link_up(runtime, deadline);
  if (settled.ok() && !result->joined.empty()) settled = wait_for_links(runtime, deadline);
  if (!result->joined.empty()) measuring = Measuring::always;
  if (settled.ok()) settled = agree_on_topology(runtime, deadline, measuring);
  return runtime.locked([&](GuardedState& guarded) {
    form_world_group(guarded, state);
    return guarded.members.removed();
  });
}

// The members of one roster that are not in the other.
static std::vector<Member> only_in(const Roster& roster, const Roster& other) {
  std::vector<Member> members;
  for (const auto& member : roster.members) {
    if (!other.rank_of(member.id)) members.push_back(member_of(member));
  }
  return members;
}

Result<Reformed> reform_world(Runtime& runtime, internal::GroupState& state) {
  const auto started = monotonic_now();
  const auto before = runtime.locked([&](GuardedState& guarded) { return guarded.members.roster(); });
  Status settled;
  auto measuring = Measuring::not_again;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    if (auto status = reform_once(runtime, state, measuring, settled); !status.ok()) return status;
    if (!settled.ok()) continue;
    const auto after = runtime.locked([&](GuardedState& guarded) { return guarded.members.roster(); });
    return Reformed{.epoch = state.epoch,
                    .rank = state.self,
                    .world_size = state.world,
                    .lost = only_in(before, after),
                    .joined = only_in(after, before),
                    .total_us = (monotonic_now() - started) / microsecond};
  }
  return Status(Code::peer_lost, "the group was re-formed " + std::to_string(attempts_max) +
                                     " times, and each time a member was lost at once: " + settled.message());
}

}  // namespace unisono

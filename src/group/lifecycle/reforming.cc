#include "group/lifecycle/reforming.h"

#include <algorithm>

#include "base/concat.h"
#include "group/lifecycle/agreement.h"
#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/group_state.h"
#include "group/lifecycle/joining.h"
#include "group/lifecycle/relinking.h"
#include "group/lifecycle/reporting.h"
#include "transports/tcp/tcp_link.h"

namespace unisono {
namespace {

// The time limit of agree() is at least this long, beside link_timeout. agree() normally takes a few reform timeouts.
constexpr Nanos agree_time_min = 10 * second;
constexpr int reform_timeouts_max = 10;
constexpr Nanos link_timeout = TcpLinkOptions().link_timeout;
// There is a time limit until the links to new members are up and all members are ready. It is at least this long.
constexpr Nanos settle_time_min = second;
constexpr int attempts_max = 4;  // Each attempt that fails has lost an old or a new member.

Member member_of(const MemberRecord& record) {
  return {.rank = record.rank, .host = record.host, .pid = record.pid, .link = {}};
}

Status begin(Runtime& runtime, const internal::GroupState& state) {
  return runtime.locked([&](GuardedState& guarded) -> Status {
    if (!guarded.members.removed().ok()) return guarded.members.removed();
    if (state.epoch != guarded.members.roster().epoch)
      return {Code::peer_lost, concat("this group ended when the roster changed to epoch ", guarded.members.roster().epoch)};
    const auto now = monotonic_now();
    guarded.engine.end_all_groups({Code::peer_lost, "the group is being re-formed"}, now);
    guarded.members.begin_formation();
    const auto& options = guarded.options;
    ReformRequest request{.dead = {},
                          .joiners = {},
                          .timeout = options.reform_timeout.count() * millisecond,
                          .link_timeout = link_timeout,
                          .min_world = options.min_world,
                          .require_majority = options.require_majority};
    begin_relinking(guarded, request, now);
    if (guarded.members.session()->attending()) request.joiners = guarded.members.session()->poll_joiners();
    auto status = guarded.members.reform()->start(request, now);
    flush_reform_sends(guarded);
    return status;
  });
}

// Runs the state machine until it has a result.
Result<ReformResult> agree(Runtime& runtime) {
  std::optional<Result<ReformResult>> result;
  const auto timeouts_ms =
      std::max<int64_t>(agree_time_min / millisecond, reform_timeouts_max * runtime.options().reform_timeout.count());
  const auto until = after(monotonic_now(), link_timeout / millisecond + timeouts_ms);
  while (monotonic_now() < until) {
    Nanos wake = never;
    runtime.locked([&](GuardedState& guarded) {
      guarded.engine.poll(monotonic_now());  // A process that was stopped must read its messages before it judges others.
      step_relinking(guarded, monotonic_now());
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
        std::min({wake, until, monotonic_now() + relink_interval}));
    if (result) {
      runtime.locked([&](GuardedState& guarded) { flush_reform_sends(guarded); });
      return std::move(*result);
    }
    if (const auto removed = runtime.locked([&](GuardedState& guarded) { return guarded.members.removed(); }); !removed.ok())
      return removed;
  }
  return Status(Code::internal, "re-forming did not end in time; this process cannot continue in the group");
}

// Tells the members that were dropped that they are out, and closes the links to them. Then the new roster becomes valid.
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

// Re-forms once and makes the new group. `setup_status` receives the status of what comes after the new roster: connecting the
// links, and agreeing on the topology. This can fail, because a member may be lost meanwhile.
static Status reform_once(Runtime& runtime, internal::GroupState& state, Measuring& measuring, Status& setup_status) {
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
  const auto settle_time = std::max<Nanos>(settle_time_min, runtime.options().reform_timeout.count() * millisecond * 5);
  const auto deadline = monotonic_now() + settle_time;
  setup_status = link_up(runtime, deadline);
  if (setup_status.ok() && !result->joined.empty()) setup_status = wait_for_links(runtime, deadline);
  if (!result->joined.empty()) measuring = Measuring::always;
  if (setup_status.ok()) setup_status = agree_on_topology(runtime, deadline, measuring);
  return runtime.locked([&](GuardedState& guarded) {
    form_world_group(guarded, state);
    return guarded.members.removed();
  });
}

// Returns the members of `roster` that are not in `other`.
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
  Status setup_status;
  auto measuring = Measuring::not_again;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    if (auto status = reform_once(runtime, state, measuring, setup_status); !status.ok()) return status;
    if (!setup_status.ok()) continue;
    const auto after = runtime.locked([&](GuardedState& guarded) { return guarded.members.roster(); });
    Reformed reformed{.epoch = state.epoch,
                      .rank = state.self,
                      .world_size = state.world,
                      .lost = only_in(before, after),
                      .joined = only_in(after, before),
                      .total_us = (monotonic_now() - started) / microsecond};
    runtime.locked([&](GuardedState& guarded) { report_reformed(guarded, reformed); });
    return reformed;
  }
  return Status(Code::peer_lost, concat("the group was re-formed ", attempts_max,
                                        " times, and each time a member was lost at once: ", setup_status.message()));
}

}  // namespace unisono

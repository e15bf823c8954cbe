// How the engine starts and ends operations.
#include <algorithm>
#include <string>
#include <utility>

#include "base/concat.h"
#include "engine/engine_attempt.h"
#include "engine/planner.h"
#include "schedules/collective_facts.h"

namespace unisono {

// Returns the completion of an operation that cannot be started. It is done already, with the error `why`.
static std::shared_ptr<Completion> refuse(const OperationRequest& request, const Status& why) {
  auto completion = std::make_shared<Completion>();
  completion->done = true;
  completion->report.operation = name(request.collective);
  completion->status = Status(why.code(), std::string(name(request.collective)) + ": " + why.message());
  return completion;
}

Report Engine::report(const Completion& completion, Nanos now) const {
  const auto* active = operations_.of(completion);
  return active != nullptr ? active->report(now) : completion.report;
}

std::shared_ptr<Completion> Engine::submit(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now) {
  return guarded([&] { return start(group, std::move(request), id, now); });
}

std::shared_ptr<Completion> Engine::start(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now) {
  // Poll first if the last poll was long ago, because the group may have ended since then.
  if (now - polled_ > poll_age_max) poll(now);
  now_ = now;
  if (!group.ended.ok()) return refuse(request, group.ended);
  std::shared_ptr<const DeliveryReport> delivery;
  if (request.delivery != Delivery::reliable && group.world() > 1) {
    delivery = group.reliable_because(request);
    if (delivery == nullptr) return start_lossy(group, std::move(request), now);
  }
  if (operations_.size() >= limits_.operations_max) {
    return refuse(
        request, {Code::unavailable, concat(operations_.size(), " operations are in flight, the limit; wait for one of them")});
  }
  const bool message = is_message(request);
  if (message && request.root == any_source) return start_any_source(group, std::move(request), static_cast<uint32_t>(id), now);
  const auto chosen = group.plans.choose(request, group.plan_context(topology_));
  if (!chosen) return refuse(request, chosen.status());
  const auto number = group.numbers.assign(request, id, group.self);
  if (id != 0 && !message && operations_.find(group.number, number, self_peer) != nullptr) {
    return refuse(request, {Code::invalid, concat("an operation with id ", id, " is already in flight")});
  }
  auto completion =
      launch(group, std::move(request), {.chosen = *chosen, .number = number, .delivery = std::move(delivery)}, now, now);
  if (group.lossy != nullptr && !completion->done) {
    group.lossy->on_reliable_call_begun(now);
    settle_all();
    lossy_.step(now);
  }
  return completion;
}

std::shared_ptr<Completion> Engine::start_lossy(GroupCore& group, OperationRequest&& request, Nanos now) {
  if (group.lossy == nullptr)
    return refuse(request, {Code::unsupported,
                            "delivery=lossy needs links of the transport \"udp\" between all ranks: " + group.no_datagrams});
  auto completion = operations_.take_completion();
  group.lossy->submit(std::move(request), completion, now);
  for (const auto& frame : early_.frames()) group.on_call_begun_elsewhere(frame.from, frame.header);
  settle_all();
  lossy_.step(now);
  return completion;
}

std::shared_ptr<Completion> Engine::start_any_source(GroupCore& group, OperationRequest&& request, uint32_t tag, Nanos now) {
  if (any_source_.size() >= AnySourceReceives::waiting_max)
    return refuse(request, {Code::unavailable, concat(any_source_.size(),
                                                      " receives from any rank are waiting, the limit; wait for one of them")});
  auto completion = operations_.take_completion();
  const auto deadline = now + request.timeout;
  any_source_.add({&group, std::move(request), tag, completion, now, deadline});
  match_any_source(now);
  any_source_.end_late(failures_, now);
  return completion;
}

bool Engine::match_any_source(Nanos now) {
  bool progress = false;
  while (!any_source_.empty() && !early_.empty()) {
    auto found = any_source_.take_first([&](const AnySourceReceive& receive) {
      return AnySourceReceives::sender_of_first(early_, *receive.group, receive.tag);
    });
    if (!found) break;
    progress = true;
    auto& group = *found->group;
    found->request.timeout = std::max<Nanos>(1, found->deadline - now);
    const auto chosen = group.plans.choose(found->request, group.plan_context(topology_));
    if (!chosen) {
      AnySourceReceives::fail(*found, chosen.status());
      continue;
    }
    const auto number = group.numbers.assign(found->request, found->tag, group.self);
    launch(group, std::move(found->request), {.chosen = *chosen, .number = number, .completion = std::move(found->completion)},
           found->started, now);
  }
  return progress;
}

bool Engine::begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now) {
  // The fast path is used only if the engine has nothing else to do or to report. The executor handles all other cases.
  const bool quiet = id == 0 && request.delivery == Delivery::reliable && operations_.empty() && early_.empty() &&
                     memory_ != Memory::ended && group.ended.ok() && group.violation.ok() && now - polled_ <= poll_age_max;
  if (!quiet || !fast_path_.begin(fast_path, group, request, topology_, now)) return false;
  now_ = now;
  return true;
}

std::shared_ptr<Completion> Engine::take_over(FastPath& e, Nanos now) {
  return guarded([&] {
    return launch(*e.group, std::move(*e.request),
                  {.chosen = {.plan = e.plan->plan, .slice_bytes = e.plan->slice_bytes},
                   .number = e.header.operation,
                   .already_sent = e.plan->sends > 0,
                   .already_confirmed = e.plan->confirms > 0,
                   .taken = FastPathRunner::taken_frame(e)},
                  e.started, now);
  });
}

std::shared_ptr<Completion> Engine::launch(GroupCore& group, OperationRequest&& request, const Launch& what, Nanos started,
                                           Nanos now) {
  const bool message = (what.number & message_id_bit) != 0;
  auto& active = operations_.take();
  active.group = &group;
  active.number = what.number;
  active.compute = active.encoding = active.summing = active.decoding = 0;
  active.completion = what.completion != nullptr ? what.completion : operations_.take_completion();
  active.delivery = what.delivery;
  auto completion = active.completion;
  auto& setup = active.operation.new_setup();
  setup.plan = what.chosen.plan;
  setup.self = group.self;
  setup.world = group.world();
  setup.slice_bytes = what.chosen.slice_bytes;
  setup.codec = what.chosen.codec;
  setup.codec_note = what.chosen.codec_note;
  setup.limits = limits_.flow;
  setup.frame.epoch = group.epoch;
  setup.frame.group = group.number;
  setup.frame.operation = what.number;
  setup.frame.sender = frame_sender(group.self);
  setup.number = message ? message_sequence(what.number) : (what.number & ~user_id_bit);
  setup.already_sent = what.already_sent;
  setup.already_confirmed = what.already_confirmed;
  const bool in_order = is_in_order(what.number);
  setup.is_next = !in_order || operations_.next_in_order(group) == nullptr;
  setup.hold_views = in_order || operations_.empty();
  setup.request = std::move(request);
  setup.request.codec = &setup.codec;
  active.memory_bytes = memory_bytes(setup.request, setup.world, setup.self);
  operations_.begin(active);
  recorder_.begun(active, what.already_sent && !is_rooted(setup.request.collective), started);
  attempt(active.operation, [&] { active.operation.start(active.port, started); });
  if (!group.violation.ok()) active.operation.fail_and_notify(std::exchange(group.violation, {}), now);
  if (what.taken) {
    const auto& [header, payload] = *what.taken;
    active.operation.received(header.sender, header, {.data = payload, .bytes = header.payload_bytes}, now);
  }
  if (!active.operation.done() && !early_.empty()) replay_early(active);
  if (active.operation.take_description()) attempt(active.operation, [&] { failures_.describe(active); });
  // If the operation needs a rank that has left, it ends. That rank may have sent everything before; peer_lost() checks this.
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (const auto& why = failures_.absence(group, rank); !why.ok())
      active.operation.peer_lost(rank, why, message ? Status() : group.first_abort, now);
  }
  settle(active);
  settle_all();
  return completion;
}

void Engine::replay_early(ActiveOperation& active) {
  early_.take(
      [&](const EarlyFrame& frame) {
        return frame.header.group == active.group->number && active.concerns(frame.header.operation, frame.from);
      },
      [&](const EarlyFrame& frame) {
        const auto& header = frame.header;
        const auto rank = active.group->rank_of(frame.from);
        const bool ours = rank >= 0 && static_cast<Rank>(rank) == header.sender && header.epoch == active.group->epoch &&
                          !active.operation.done();
        if (ours && header.kind == FrameKind::data) {
          active.operation.received(header.sender, header, {.data = frame.data, .bytes = header.payload_bytes, .staged = true},
                                    now_);
          return true;  // the operation now owns the piece
        }
        attempt(active.operation, [&] {
          if (ours && header.kind == FrameKind::credit) active.operation.granted(header.sender, header.amount, now_);
          if (ours && header.kind == FrameKind::failed) failures_.on_failed(active, header.sender, frame.payload(), now_);
        });
        return false;
      });
}

// Moves the outcome of a finished operation to its completion, and frees the operation's slot.
void Engine::settle(ActiveOperation& active) {
  if (active.completion == nullptr || !active.operation.done()) return;
  auto& op = active.operation;
  const bool ok = op.status().ok();
  if (!ok) {
    for (auto* transport : transports_) active.cancel_in(*transport);
    op.cancelled();
    if (op.failure_is_ours()) failures_.notify_failed(active);
  }
  const auto& group = *active.group;
  const auto number = active.number;
  active.group->numbers.ended(number, ok);
  recorder_.ended(active);
  ++(ok ? counters_.operations_ok : counters_.operations_failed);
  auto completion = std::move(active.completion);
  completion->report = active.report(now_);
  completion->status = op.status();
  completion->done = true;
  operations_.end(active);
  if (!operations_.empty()) operations_.running().front()->operation.may_hold_views();
  if (auto* next = is_in_order(number) ? operations_.next_in_order(group) : nullptr; next != nullptr && next->number > number) {
    attempt(next->operation, [&] { next->operation.becomes_next(now_); });
    settle_needed_ = true;
  }
}

void Engine::settle_all() {
  if (!settle_needed_) return;
  settle_needed_ = false;
  const auto& running = operations_.running();
  for (size_t i = 0; i < running.size();) {
    auto* active = running[i];
    settle(*active);
    if (i < running.size() && running[i] == active) ++i;
  }
}

}  // namespace unisono

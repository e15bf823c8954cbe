// Groups, starting and ending operations, the poll loop.
#include "engine/engine.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "engine/engine_active.h"
#include "engine/planner.h"

namespace unisono {

namespace {

constexpr size_t completions_kept = 16;

// Short enough to need no memory itself.
Status no_memory_left() { return {Code::unavailable, "out of memory"}; }

// What cannot be done then is left: the transports are not polled again.
template <typename F>
void without_memory(F&& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {}
}

}  // namespace

Engine::Engine(const EngineLimits& limits, Compute& compute)
    : limits_(limits), compute_(compute), pool_(limits.pool_keep_bytes), no_memory_(std::make_shared<Completion>()) {
  no_memory_->done = true;
  no_memory_->status = no_memory_left();
}

Engine::~Engine() {
  for (auto& u : unexpected_) pool_.give(u.data, u.header.payload_bytes);
}

void Engine::add_peer(PeerIndex peer, Transport& route, std::string label) {
  if (peers_.size() <= peer) peers_.resize(peer + 1);
  peers_[peer] = Peer{.route = &route, .label = std::move(label), .lost = {}, .waiting = {}};
}

void Engine::remove_peer(PeerIndex peer) {
  if (peer >= peers_.size() || peers_[peer].route == nullptr) return;
  if (peers_[peer].lost.ok()) peers_[peer].lost = Status(Code::peer_lost, peers_[peer].label + " was removed from the group");
}

GroupCore& Engine::make_group(uint32_t number, uint32_t epoch, std::vector<PeerIndex> members,
                              std::vector<uint32_t> host_groups) {
  auto& group = groups_[number];
  group = std::make_unique<GroupCore>();
  group->number = number;
  group->epoch = epoch;
  group->host_groups = std::move(host_groups);
  group->uneven = UnevenLinks::find(group->host_groups, topology_.links);
  group->members = std::move(members);
  pending_.reserve(pending_told_max);
  moved_.reserve(group->world());
  for (Rank rank = 0; rank < group->world(); ++rank) {
    const auto peer = group->members[rank];
    if (peer == self_peer) {
      group->self = rank;
      continue;
    }
    if (group->rank_of_peer.size() <= peer) group->rank_of_peer.resize(peer + 1, -1);
    group->rank_of_peer[peer] = static_cast<int32_t>(rank);
  }
  open_lossy(*group);
  // Members may have aborted it before it is known here.
  for (size_t i = 0; i < unexpected_.size();) {
    const auto u = unexpected_[i];
    if (u.header.group != number || u.header.operation != all_operations) {
      ++i;
      continue;
    }
    unexpected_.erase(unexpected_.begin() + static_cast<std::ptrdiff_t>(i));
    received_abort(*group, u.from, u.header, {u.data, u.header.payload_bytes});
    unexpected_bytes_ -= u.header.payload_bytes;
    pool_.give(u.data, u.header.payload_bytes);
  }
  return *group;
}

void Engine::end_group(uint32_t number, const Status& why, Nanos now) {
  now_ = now;
  const auto it = groups_.find(number);
  if (it == groups_.end()) return;
  for (auto* active : active_) {
    if (active->group == it->second.get()) active->operation.fail(why, now);
  }
  any_source_.end([&](const AnySourceReceive& receive) { return receive.group == it->second.get() ? why : Status(); });
  settle_needed_ = true;
  settle_all();
  if (it->second->lossy != nullptr) it->second->lossy->fail_all(why, now);
  if (it->second->record != nullptr) it->second->record->left(why.code(), now);
  std::erase_if(unexpected_, [&](Unexpected& u) {
    if (u.header.group != number) return false;
    unexpected_bytes_ -= u.header.payload_bytes;
    pool_.give(u.data, u.header.payload_bytes);
    return true;
  });
  groups_.erase(it);
}

void Engine::end_all_groups(const Status& why, Nanos now) {
  epoch_ = 0;
  wind_down_by_ = never;
  while (!groups_.empty()) end_group(groups_.begin()->first, why, now);
}

void Engine::stop_all_groups(const Status& why, Nanos now) {
  now_ = now;
  for (auto& [number, group] : groups_) {
    group->ended = why;
    if (group->lossy != nullptr) group->lossy->fail_all(why, now);
  }
  for (auto* active : active_) active->operation.fail(why, now);
  any_source_.end([&](const AnySourceReceive&) { return why; });
  settle_needed_ = true;
}

Status Engine::reason_to_wind_down(const GroupCore& group, const Status& news) const {
  if (group.ended.code() == news.code()) return group.ended;  // it was told before
  // What a member gave up was the last thing to end here: there lies the reason.
  const auto* next = next_of(group);
  const bool latest = group.given_up + 1 == (next == nullptr ? group.next_operation : next->number);
  return latest && !group.given_up_why.empty() ? Status(news.code(), group.given_up_why + "; " + news.message()) : news;
}

void Engine::wind_down(PeerIndex from, const Status& news, Nanos by, Nanos now) {
  now_ = now;
  for (auto& [number, group] : groups_) {
    group->ended = reason_to_wind_down(*group, news);
    if (group->lossy != nullptr) group->lossy->fail_all(group->ended, now);
  }
  for (auto* active : active_) {
    const auto rank = active->group->rank_of(from);
    if (rank >= 0 && active->operation.needs(static_cast<Rank>(rank))) active->operation.fail(active->group->ended, now);
  }
  any_source_.end([](const AnySourceReceive& receive) { return receive.group->ended; });
  wind_down_by_ = std::min(wind_down_by_, by);
  wind_down_why_ = news;
  settle_needed_ = true;
}

void Engine::set_epoch(uint32_t epoch) {
  epoch_ = epoch;
  std::erase_if(unexpected_, [&](Unexpected& u) {
    if (u.header.epoch == epoch) return false;
    unexpected_bytes_ -= u.header.payload_bytes;
    pool_.give(u.data, u.header.payload_bytes);
    return true;
  });
}

// Messages to different ranks may have one number: it is the sender's count for each of them.
bool Engine::Active::concerns(uint64_t wanted, PeerIndex from) const {
  return number == wanted && ((wanted & message_id_bit) == 0 || group->members[operation.setup().request.root] == from);
}

Engine::Active* Engine::find(uint32_t group, uint64_t operation, PeerIndex from) {
  for (auto* active : active_) {
    if (active->group->number == group && active->concerns(operation, from)) return active;
  }
  return nullptr;
}

Engine::Active& Engine::take_active() {
  if (free_slots_.empty()) {
    slots_.push_back(std::make_unique<Active>(*this, static_cast<uint32_t>(slots_.size())));
    return *slots_.back();
  }
  const auto slot = free_slots_.back();
  free_slots_.pop_back();
  return *slots_[slot];
}

std::shared_ptr<Completion> Engine::take_completion() {
  if (completions_.empty()) return std::make_shared<Completion>();
  auto completion = std::move(completions_.back());
  completions_.pop_back();
  *completion = {};
  return completion;
}

Report Engine::report_of(const Active& active, Nanos now) const {
  auto report = active.operation.report(now);
  report.compute_us = active.compute / microsecond;
  report.encode_us = active.encoding / microsecond;
  report.sum_us = active.summing / microsecond;
  report.decode_us = active.decoding / microsecond;
  report.delivery = active.delivery;
  // Work that was done in one go is not in the times of its events.
  report.total_us = std::max<int64_t>(report.total_us, report.compute_us);
  report.transfer_us = std::max<int64_t>(0, report.total_us - report.wait_us - report.compute_us);
  return report;
}

Report Engine::report(const Completion& completion, Nanos now) const {
  for (const auto* active : active_) {
    if (active->completion.get() == &completion) return report_of(*active, now);
  }
  return completion.report;
}

void Engine::reuse(std::shared_ptr<Completion> completion) {
  if (completion.use_count() == 1 && completions_.size() < completions_kept) completions_.push_back(std::move(completion));
}

uint64_t Engine::number_operation(GroupCore& group, const OperationRequest& request, uint64_t id) {
  if (request.collective == Collective::send || request.collective == Collective::recv) {
    const bool sends = request.collective == Collective::send;
    const auto source = sends ? group.self : request.root, destination = sends ? request.root : group.self;
    const auto tag = static_cast<uint32_t>(id);
    return message_id(source, tag, group.next_message[message_key(source, destination, tag)]++);
  }
  return id != 0 ? (id | user_id_bit) : group.next_operation++;
}

// An operation that cannot be started is done at once.
std::shared_ptr<Completion> Engine::refuse(const OperationRequest& request, Status why) const {
  auto completion = std::make_shared<Completion>();
  completion->done = true;
  completion->report.operation = name(request.collective);
  completion->status = Status(why.code(), std::string(name(request.collective)) + ": " + why.message());
  return completion;
}

Result<Engine::Chosen> Engine::plan_for(GroupCore& group, const OperationRequest& q) {
  const auto bytes = schedule_bytes(q, group.world());
  for (const auto& c : group.chosen) {
    if (c.plan == nullptr || c.collective != q.collective || c.dtype != q.dtype || c.order != q.order ||
        c.schedule != q.schedule || c.root != q.root || c.bytes != bytes || c.slice_bytes != q.slice_bytes || c.op != q.op ||
        c.codec != *q.codec) {
      continue;
    }
    return Chosen{c.plan, c.chosen_slice_bytes, c.chosen_codec, c.codec_note};
  }
  const PlanContext context{.self = group.self,
                            .world = group.world(),
                            .host_groups = group.host_groups,
                            .topology = topology_,
                            .uneven = group.uneven.get()};
  auto choice = choose_plan(q, context);
  if (!choice) return choice.status();
  auto& plan = group.plans[choice->key];
  if (plan == nullptr) {
    auto made = make_plan(q, *choice, context);
    if (!made) return made.status();
    plan = std::make_unique<Plan>(std::move(*made));
  }
  group.chosen[group.chosen_at++ % group.chosen.size()] = {.collective = q.collective,
                                                           .dtype = q.dtype,
                                                           .op = q.op,
                                                           .order = q.order,
                                                           .schedule = q.schedule,
                                                           .root = q.root,
                                                           .bytes = bytes,
                                                           .slice_bytes = q.slice_bytes,
                                                           .chosen_slice_bytes = choice->slice_bytes,
                                                           .codec = *q.codec,
                                                           .chosen_codec = choice->codec,
                                                           .codec_note = choice->codec_note,
                                                           .plan = plan.get()};
  return Chosen{plan.get(), choice->slice_bytes, choice->codec, choice->codec_note};
}

std::shared_ptr<Completion> Engine::submit(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now) {
  return guarded([&] { return start(group, std::move(request), id, now); });
}

std::shared_ptr<Completion> Engine::start(GroupCore& group, OperationRequest&& request, uint64_t id, Nanos now) {
  // After a pause the news come first: the group may have ended meanwhile.
  if (now - polled_ > news_age_max) poll(now);
  now_ = now;
  if (!group.ended.ok()) return refuse(request, group.ended);
  std::shared_ptr<const DeliveryReport> delivery;
  if (request.delivery != Delivery::reliable && group.world() > 1) {
    delivery = group.reliable_because(request);
    if (delivery == nullptr) return start_lossy(group, std::move(request), now);
  }
  if (active_.size() >= limits_.operations_max) {
    return refuse(request,
                  {Code::unavailable, std::to_string(active_.size()) + " operations are in flight already, the limit"});
  }
  const bool message = request.collective == Collective::send || request.collective == Collective::recv;
  if (message && request.root == any_source) return start_any_source(group, std::move(request), static_cast<uint32_t>(id), now);
  const auto chosen = plan_for(group, request);
  if (!chosen) return refuse(request, chosen.status());
  const auto number = number_operation(group, request, id);
  if (id != 0 && !message && find(group.number, number, self_peer) != nullptr) {
    return refuse(request, {Code::invalid, "id " + std::to_string(id) + " is in flight already"});
  }
  auto completion =
      launch(group, std::move(request), {.chosen = *chosen, .number = number, .delivery = std::move(delivery)}, now, now);
  if (group.lossy != nullptr && !completion->done) {
    group.lossy->reliable_began(now);
    settle_all();
    step_lossy(now);
  }
  return completion;
}

std::shared_ptr<Completion> Engine::launch(GroupCore& group, OperationRequest&& request, const Launch& what, Nanos started,
                                           Nanos now) {
  const bool message = (what.number & message_id_bit) != 0;
  auto& active = take_active();
  active.group = &group;
  active.number = what.number;
  active.compute = active.encoding = active.summing = active.decoding = 0;
  active.completion = what.completion != nullptr ? what.completion : take_completion();
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
  setup.frame.sender = group.self;
  setup.number = message ? (what.number & 0xFFFFFFFF) : (what.number & ~user_id_bit);
  setup.is_sent = what.is_sent;
  const bool in_order = is_in_order(what.number);
  setup.is_next = !in_order || next_of(group) == nullptr;
  setup.hold_lent = in_order || active_.empty();
  setup.request = std::move(request);
  setup.request.codec = &setup.codec;
  active.memory_bytes = memory_bytes(setup.request, setup.world, setup.self);
  active_.push_back(&active);
  compute_.in_flight(in_flight_bytes_ += active.memory_bytes);
  if (group.record != nullptr) record_begin(active, what.is_sent, started);
  attempt(active.operation, [&] { active.operation.start(active.port, started); });
  if (!group.violation.ok()) active.operation.fail_and_tell(std::exchange(group.violation, {}), now);
  if (!active.operation.done() && !unexpected_.empty()) replay_unexpected(active);
  // Who has gone may have sent all it had to before: that is enough.
  for (Rank rank = 0; rank < group.world(); ++rank) {
    if (const auto& why = absence(group, rank); !why.ok())
      active.operation.peer_lost(rank, why, message ? Status() : group.first_abort, now);
  }
  settle(active);
  settle_all();
  return completion;
}

// There is no memory to go on with: everything ends, and the others find the links closed. Needs no memory, and is for good:
// what an event left undone in the transports cannot be known. The process has to leave and to join again.
void Engine::give_up() {
  gave_up_ = true;
  for (auto& [number, group] : groups_) {
    group->ended = no_memory_left();
    if (auto* lossy = group->lossy.get()) without_memory([&] { lossy->fail_all(no_memory_left(), now_, true); });
  }
  for (auto* active : active_) {
    active->operation.fail(no_memory_left(), now_);
    for (auto* transport : transports_)
      without_memory([&] {
        transport->cancel(event_id(active->slot, active->generation, 0), 0xFFFFFFFF00000000ull, active->group->number,
                          active->number);
      });
    active->operation.cancelled();
    const auto completion = std::move(active->completion);
    if (completion == nullptr) continue;
    completion->report = report_of(*active, now_);
    completion->status = active->operation.finished_ok() ? Status() : no_memory_left();
    completion->done = true;
  }
  active_.clear();
  in_flight_bytes_ = 0;
  any_source_.end([](const AnySourceReceive&) { return no_memory_left(); });
  for (PeerIndex peer = 0; peer < peers_.size(); ++peer) {
    auto& p = peers_[peer];
    if (p.route == nullptr || !p.lost.ok()) continue;
    p.lost = no_memory_left();
    without_memory([&] { p.route->close(peer); });
  }
}

// The first of the operations of the group that all ranks begin in the same order.
Engine::Active* Engine::next_of(const GroupCore& group) const {
  const auto next = std::ranges::find_if(
      active_, [&](const Active* active) { return active->group == &group && is_in_order(active->number); });
  return next == active_.end() ? nullptr : *next;
}

bool Engine::has_ended(const GroupCore& group, uint64_t operation, PeerIndex from) const {
  if (operation & message_id_bit) {
    const auto source = static_cast<Rank>(operation >> 47 & 0x7FFF);
    const auto tag = static_cast<uint32_t>(operation >> 32 & 0x7FFF);
    const auto destination = source == group.self ? static_cast<Rank>(group.rank_of(from)) : group.self;
    const auto it = group.next_message.find(message_key(source, destination, tag));
    return it != group.next_message.end() && static_cast<int32_t>(static_cast<uint32_t>(operation) - it->second) < 0;
  }
  if (operation & user_id_bit) {
    return std::find(group.recent_ids.begin(), group.recent_ids.end(), operation) != group.recent_ids.end();
  }
  return operation < group.next_operation;
}

// Moves a finished operation's outcome to its completion and frees the slot.
void Engine::settle(Active& active) {
  if (active.completion == nullptr || !active.operation.done()) return;
  auto& op = active.operation;
  if (!op.status().ok()) {
    for (auto* transport : transports_) {
      transport->cancel(event_id(active.slot, active.generation, 0), 0xFFFFFFFF00000000ull, active.group->number,
                        active.number);
    }
    op.cancelled();
    if (op.failure_is_ours()) tell_members(active, failure_payload(op.status()));
  }
  auto& group = *active.group;
  if (active.number & user_id_bit) GroupCore::remember(group.recent_ids, group.recent_at, active.number);
  if (!op.status().ok()) GroupCore::remember(group.failed, group.failed_at, active.number);
  if (group.record != nullptr) record_end(active);
  ++(op.status().ok() ? counters_.operations_ok : counters_.operations_failed);
  auto completion = std::move(active.completion);
  completion->report = report_of(active, now_);
  completion->status = op.status();
  completion->done = true;
  std::erase(active_, &active);
  compute_.in_flight(in_flight_bytes_ -= active.memory_bytes);
  if (!active_.empty()) active_.front()->operation.may_hold_lent();
  if (auto* next = is_in_order(active.number) ? next_of(group) : nullptr; next != nullptr && next->number > active.number) {
    attempt(next->operation, [&] { next->operation.becomes_next(now_); });
    settle_needed_ = true;
  }
  ++active.generation;
  free_slots_.push_back(active.slot);
}

void Engine::settle_all() {
  if (!settle_needed_) return;
  settle_needed_ = false;
  for (size_t i = 0; i < active_.size();) {
    auto* active = active_[i];
    settle(*active);
    if (i < active_.size() && active_[i] == active) ++i;
  }
}

bool Engine::poll(Nanos now) {
  if (gave_up_) return false;
  try {
    const bool progress = poll_all(now);
    if (!must_give_up_) return progress;
  } catch (const std::bad_alloc&) {}
  give_up();
  return true;
}

bool Engine::poll_all(Nanos now) {
  now_ = polled_ = now;
  bool progress = false;
  for (auto* transport : transports_) progress |= transport->poll(now, *this);
  for (auto* active : active_) {
    if (now >= active->operation.becomes_next_at()) {
      attempt(active->operation, [&] { active->operation.becomes_next(now); });
      settle_needed_ = progress = true;
    }
    if (now >= active->operation.deadline_at()) {
      attempt(active->operation, [&] { active->operation.deadline(now); });
      if (active->operation.take_inquiry()) inquire(*active);
      settle_needed_ = progress = true;
    }
  }
  if (now >= wind_down_by_) {
    wind_down_by_ = never;
    for (auto* active : active_) {
      const auto& ended = active->group->ended;  // ok: the group was made since
      active->operation.fail(ended.ok() ? wind_down_why_ : ended, now);
    }
    settle_needed_ = progress = true;
  }
  if (!any_source_.empty()) settle_needed_ |= progress |= match_any_source(now) || end_any_source(now);
  settle_all();
  progress |= step_lossy(now);
  if (now >= observe_at_) observe(now);
  return progress;
}

Nanos Engine::next_deadline() const {
  if (gave_up_) return never;
  Nanos next = active_.empty() ? never : wind_down_by_;
  next = std::min(next, any_source_.next_deadline());
  for (const auto* active : active_)
    next = std::min({next, active->operation.deadline_at(), active->operation.becomes_next_at()});
  for (const auto* transport : transports_) next = std::min(next, transport->next_deadline());
  for (const auto& [number, group] : groups_) {
    if (group->lossy != nullptr) next = std::min(next, group->lossy->next_deadline());
  }
  return next;
}

}  // namespace unisono

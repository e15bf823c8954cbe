// The public Group and Work classes, implemented on the runtime.
#include "unisono/group.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "codecs/codec.h"
#include "engine/lossy/lossy_group.h"
#include "engine/operations/any_source.h"
#include "group/api/calls.h"
#include "group/lifecycle/group_state.h"
#include "group/lifecycle/joining.h"
#include "group/lifecycle/recording.h"
#include "group/lifecycle/reforming.h"
#include "group/lifecycle/reporting.h"
#include "group/lifecycle/runtime.h"
#include "rendezvous/store_exchange.h"

namespace unisono {

using internal::GroupState;
using internal::WorkState;

static std::string decibels(const Report& report) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f dB", report.snr_db());
  return text;
}

static std::string text_of_codec(const Report& report) {
  if (report.codec.is_plain())
    return report.codec_note.empty() ? std::string() : ", no codec: " + std::string(report.codec_note);
  char bits[32];
  std::snprintf(bits, sizeof(bits), "%.3g", report.bits_per_element());
  return concat(", ", report.codec.to_string(), " ", bits, " bits per element, encoded ", report.passes,
                report.passes == 1 ? " time" : " times",
                report.saturated > 0 ? concat(", ", report.saturated, " saturated") : "",
                report.measured_error >= 0 ? ", " + decibels(report) : "",
                report.nonfinite_groups > 0 ? concat(", ", report.nonfinite_groups, " groups not finite") : "");
}

static std::string text_of_delivery(const Report& report) {
  if (report.delivery == nullptr || report.delivery->note.empty()) return {};
  return std::string(report.delivery->used == Delivery::reliable ? ", reliable: " : ", lossy: ") + report.delivery->note;
}

double Report::snr_db() const {
  if (measured_error < 0) return std::numeric_limits<double>::quiet_NaN();
  return -10 * std::log10(measured_error);
}

std::string Report::to_string() const {
  return concat(operation, " ", number, " ", schedule, ": ", contributors, " of ", world_size, " ranks, ", total_us,
                " us (waited ", wait_us, ", computed ", compute_us, "), sent ", sent_bytes, " bytes in ", sent_messages,
                " messages", last_rank >= 0 ? concat(", last rank ", last_rank) : "", text_of_codec(*this),
                text_of_delivery(*this), link_note.empty() ? "" : ", " + link_note);
}

std::string LinkSpeeds::to_string() const {
  const auto text = [](const std::string& name, const Kind& kind) {
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), " %.3g us, %.3g GB/s%s", kind.latency_us, kind.bytes_per_us / 1000,
                  kind.measured ? "" : " (not measured)");
    return name + numbers;
  };
  auto all = text("inside hosts", inside_hosts) + "; " + text("between hosts", between_hosts);
  const auto slower = [](const HostPair& a, const HostPair& b) { return a.speed.bytes_per_us < b.speed.bytes_per_us; };
  const auto slowest = std::min_element(host_pairs.begin(), host_pairs.end(), slower);
  constexpr double significant_ratio = 1.5;
  if (slowest != host_pairs.end() && slowest->speed.bytes_per_us * significant_ratio < between_hosts.bytes_per_us) {
    all += "; " + text("slowest " + slowest->host_a + "-" + slowest->host_b, slowest->speed);
  }
  return all;
}

namespace {

// Returns true if the group has begun to re-form since this object was made, even if the re-forming failed. The core of this
// object no longer exists then. Call it only while holding the mutex.
bool ended(const GroupState& group, const GuardedState& guarded) {
  return group.core == nullptr || group.formation != guarded.members.formation();
}

Status why_ended(const GroupState& group, const GuardedState& guarded, const char* what) {
  const auto says = [&](Code code, const std::string& why) { return Status(code, std::string(what) + ": " + why); };
  if (!guarded.members.removed().ok()) return says(guarded.members.removed().code(), guarded.members.removed().message());
  if (group.epoch == guarded.members.roster().epoch) return says(Code::peer_lost, "the group is being re-formed");
  return says(Code::peer_lost, concat("this group ended when the roster changed to epoch ", guarded.members.roster().epoch));
}

std::shared_ptr<WorkState> failed_work(Status why) {
  return std::make_shared<WorkState>(WorkState{.runtime = nullptr, .begun = {.completion = nullptr, .ended = std::move(why)}});
}

// A call of the user, with the request that was made from it.
struct Call {
  Result<OperationRequest> request;
  uint64_t id;
  const char* what;
};

Status refusal(const Call& call) {
  return {call.request.status().code(), std::string(call.what) + ": " + call.request.status().message()};
}

// In a child made by fork(), returns the error of the call `what`. Otherwise returns ok.
Status check_process(const GroupState& group, const char* what) {
  const auto status = group.runtime->process().check();
  return status.ok() ? status : Status(status.code(), concat(what, ": ", status.message()));
}

// Starts an operation for a caller that waits for it next (Group::polling).
std::shared_ptr<WorkState> start_polling(GroupState& group, Call call) {
  const auto overdue_after = call.request->timeout + Runtime::overdue_by;
  auto work = std::make_shared<WorkState>();
  const auto admit = [&](GuardedState& guarded) {
    return ended(group, guarded) ? why_ended(group, guarded, call.what) : Status();
  };
  group.runtime->begin(group.core, std::move(*call.request), call.id, admit, work->begun);
  if (work->begun.ended) return work;
  work->runtime = group.runtime;
  work->overdue = monotonic_now() + overdue_after;
  return work;
}

std::shared_ptr<WorkState> start(GroupState& group, bool polls, Call call) {
  if (auto status = check_process(group, call.what); !status.ok()) return failed_work(std::move(status));
  if (!call.request) return failed_work(refusal(call));
  if (polls) return start_polling(group, std::move(call));
  return group.runtime->locked([&](GuardedState& guarded) {
    if (ended(group, guarded)) return failed_work(why_ended(group, guarded, call.what));
    const auto now = monotonic_now();
    const auto overdue = now + call.request->timeout + Runtime::overdue_by;
    // Allocate everything before submit(). If an allocation failed after submit(), an operation would run that nobody could
    // wait for.
    auto work = std::make_shared<WorkState>(WorkState{.runtime = group.runtime, .begun = {}, .overdue = overdue});
    work->begun.completion = guarded.engine.submit(*group.core, std::move(*call.request), call.id, now);
    return work;
  });
}

Result<Report> run(GroupState& group, Call call) {
  if (auto status = check_process(group, call.what); !status.ok()) return status;
  if (!call.request) return refusal(call);
  return group.runtime->run(group.core, std::move(*call.request), call.id, [&](GuardedState& guarded) {
    return ended(group, guarded) ? why_ended(group, guarded, call.what) : Status();
  });
}

Caller caller_of(const GroupState& group) { return {group.self, group.world, group.timeout, &group.codec}; }

double relative_error(ConstTensor result, std::span<const float> exact) {
  double noise = 0, signal = 0;
  std::array<float, 1024> values;
  for (size_t first = 0; first < exact.size(); first += values.size()) {
    const size_t count = std::min(values.size(), exact.size() - first);
    widened(result.dtype, static_cast<const std::byte*>(result.data) + first * element_bytes(result.dtype), count,
            values.data());
    for (size_t i = 0; i < count; ++i) {
      const double wanted = exact[first + i], difference = values[i] - wanted;
      noise += difference * difference;
      signal += wanted * wanted;
    }
  }
  return noise == 0 ? 0 : noise / signal;
}

// Runs the call, and then computes the same sum in fp32 without a codec. The report says how much the two results differ (the
// relative error).
Result<Report> run_measured(GroupState& group, ConstTensor in, Tensor out, const CallOptions& o) try {
  Call call{all_reduce_call(caller_of(group), in, out, o), o.id, "all_reduce"};
  if (!call.request) return refusal(call);
  std::vector<float> exact(in.count);
  if (in.count > 0) widened(in.dtype, in.data, in.count, exact.data());
  auto report = run(group, std::move(call));
  if (!report) return report;
  const Tensor sum(exact.data(), exact.size(), DType::f32);
  const auto plain =
      run(group,
          {all_reduce_call({group.self, group.world, group.timeout}, ConstTensor(sum), sum, {.op = o.op, .timeout = o.timeout}),
           0, "all_reduce"});
  if (!plain) return Status(plain.status().code(), "measuring the error: " + plain.status().message());
  report->measured_error = relative_error(ConstTensor(out), exact);
  return report;
} catch (const std::bad_alloc&) {
  return Status(Code::unavailable, concat("all_reduce: out of memory for an exact sum of ", in.count, " elements"));
}

}  // namespace

Result<Report> Work::wait() {
  if (state_ == nullptr) return Status(Code::invalid, "this Work is empty: it belongs to no operation");
  auto& s = *state_;
  if (s.runtime == nullptr) return *s.begun.ended;
  if (auto status = s.runtime->process().check(); !status.ok()) return status;
  return s.runtime->outcome(s.begun.completion, s.overdue);
}

Result<Report> Work::wait_for(Milliseconds time) {
  if (state_ == nullptr) return Status(Code::invalid, "this Work is empty: it belongs to no operation");
  auto& s = *state_;
  if (s.runtime == nullptr) return *s.begun.ended;
  if (s.runtime->process().forked()) return s.runtime->process().check();
  const auto until = std::min(s.overdue, after(monotonic_now(), time.count()));
  if (!s.runtime->wait(*s.begun.completion, until))
    return Status(Code::late, concat("still running after waiting ", time.count(), " ms"));
  return s.begun.completion->outcome();
}

bool Work::done() const {
  if (state_ == nullptr) return true;
  if (state_->runtime == nullptr) return true;
  if (state_->runtime->process().forked()) return true;  // wait() then returns the error at once
  return state_->runtime->locked([&](GuardedState&) { return state_->begun.completion->done; });
}

void Work::notify(std::function<void()> notice) const {
  if (state_ == nullptr || state_->runtime == nullptr || state_->runtime->process().forked()) return notice();
  state_->runtime->watch(state_->begun.completion, std::move(notice));
}

Report Work::report() const {
  if (state_ == nullptr) return {};
  if (state_->runtime == nullptr) return state_->begun.ended->ok() ? **state_->begun.ended : Report();
  if (state_->runtime->process().forked()) return {};
  return state_->runtime->locked(
      [&](GuardedState& guarded) { return guarded.engine.report(*state_->begun.completion, monotonic_now()); });
}

static std::shared_ptr<GroupState> world_group(const std::shared_ptr<Runtime>& runtime) {
  return runtime->locked([&](GuardedState& guarded) {
    auto state = std::make_shared<GroupState>();
    state->runtime = runtime;
    form_world_group(guarded, *state);
    report_joined(guarded);
    return state;
  });
}

void form_world_group(GuardedState& guarded, GroupState& state) {
  const auto& roster = guarded.members.roster();
  set_event_source(guarded);
  state.number = world_group_number;
  state.core = &guarded.engine.make_group(state.number, wire_epoch(roster), guarded.members.peers(), host_numbers(roster));
  keep_record(guarded, *state.core);
  state.self = state.core->self;
  state.world = state.core->world();
  state.epoch = roster.epoch;
  state.formation = guarded.members.formation();
  state.subgroups.clear();
  state.timeout = guarded.options.timeout.count() * millisecond;
  state.codec = guarded.options.codec;
  guarded.engine.set_epoch(state.core->epoch);
}

Result<Group> Group::join(const Options& options) {
  auto resolved = resolve_options(options, process_environment());
  if (!resolved) return resolved.status();
  std::optional<Listening> listening;
  if (options.store != nullptr) {
    auto met = meet_by_store(*resolved, *options.store);
    if (!met) return met.status();
    listening = std::move(*met);
  }
  auto runtime = join_runtime(*resolved);
  if (!runtime) return runtime.status();
  return Group(world_group(*runtime));
}

uint32_t Group::rank() const { return state_->self; }
uint32_t Group::world_size() const { return state_->world; }
uint32_t Group::epoch() const { return state_->epoch; }

std::vector<Member> Group::members() const {
  if (state_->runtime->process().forked()) return {};
  return state_->runtime->locked([&](GuardedState& guarded) {
    std::vector<Member> members;
    if (ended(*state_, guarded)) return members;
    for (Rank rank = 0; rank < state_->world; ++rank) {
      const auto peer = state_->core->members[rank];
      const auto at = std::find(guarded.members.peers().begin(), guarded.members.peers().end(), peer);
      if (at == guarded.members.peers().end()) continue;
      const auto& record = guarded.members.roster().members[static_cast<size_t>(at - guarded.members.peers().begin())];
      members.push_back({rank, record.host, record.pid, peer == self_peer ? "self" : guarded.engine.describe_link(peer)});
    }
    return members;
  });
}

LinkSpeeds Group::link_speeds() const {
  if (state_->runtime->process().forked()) return {};
  // `known` is false while the group re-forms, and after a re-forming that failed. The topology then has the host numbers of
  // the old roster, so they may not fit `hosts`.
  const auto [topology, hosts, known] = state_->runtime->locked([&](GuardedState& guarded) {
    const auto& roster = guarded.members.roster();
    std::vector<std::string> names;
    for (const auto rank : hosts_of(roster)) names.push_back(roster.members[rank].host);
    return std::tuple(guarded.engine.topology(), std::move(names), guarded.members.topology_known());
  });
  const auto kind = [](const LinkProfile& link, bool measured) {
    const auto speed = speed_of(link);
    return LinkSpeeds::Kind{.measured = measured, .latency_us = speed.latency_us, .bytes_per_us = speed.bytes_per_us};
  };
  LinkSpeeds speeds{.inside_hosts = kind(topology.inside, topology.inside_measured),
                    .between_hosts = kind(topology.between, topology.between_measured)};
  if (!known) return speeds;
  for (uint32_t b = 1; b < topology.links.hosts; ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const auto& link = topology.links.between(a, b);
      if (link.bytes_per_us == 0) continue;
      speeds.host_pairs.push_back(
          {.host_a = hosts[a],
           .host_b = hosts[b],
           .speed = {.measured = true, .latency_us = link.latency_us, .bytes_per_us = link.bytes_per_us}});
    }
  }
  return speeds;
}

// Each collective has two functions: an asynchronous one and a blocking one.
Work Group::all_reduce_async(Tensor t, const CallOptions& o) { return all_reduce_async(ConstTensor(t), t, o); }
Result<Report> Group::all_reduce(Tensor t, const CallOptions& o) { return all_reduce(ConstTensor(t), t, o); }
Work Group::all_reduce_async(ConstTensor in, Tensor out, const CallOptions& o) {
  if (o.measure_error) return Work(failed_work({Code::invalid, "all_reduce: measure_error is for the blocking call"}));
  return Work(start(*state_, polls_, {all_reduce_call(caller_of(*state_), in, out, o), o.id, "all_reduce"}));
}
Result<Report> Group::all_reduce(ConstTensor in, Tensor out, const CallOptions& o) {
  if (o.measure_error) return run_measured(*state_, in, out, o);
  return run(*state_, {all_reduce_call(caller_of(*state_), in, out, o), o.id, "all_reduce"});
}
Work Group::reduce_scatter_async(ConstTensor in, Tensor out, Counts counts, const CallOptions& o) {
  return Work(
      start(*state_, polls_, {reduce_scatter_call(caller_of(*state_), in, out, counts, false, o), o.id, "reduce_scatter"}));
}
Result<Report> Group::reduce_scatter(ConstTensor in, Tensor out, Counts counts, const CallOptions& o) {
  return run(*state_, {reduce_scatter_call(caller_of(*state_), in, out, counts, false, o), o.id, "reduce_scatter"});
}
Work Group::reduce_scatter_async(Tensor t, Counts counts, const CallOptions& o) {
  return Work(start(*state_, polls_, {reduce_scatter_call(caller_of(*state_), t, t, counts, true, o), o.id, "reduce_scatter"}));
}
Result<Report> Group::reduce_scatter(Tensor t, Counts counts, const CallOptions& o) {
  return run(*state_, {reduce_scatter_call(caller_of(*state_), t, t, counts, true, o), o.id, "reduce_scatter"});
}
Work Group::all_gather_async(ConstTensor in, Tensor out, Counts counts, const CallOptions& o) {
  return Work(start(*state_, polls_, {all_gather_call(caller_of(*state_), in, out, counts, false, o), o.id, "all_gather"}));
}
Result<Report> Group::all_gather(ConstTensor in, Tensor out, Counts counts, const CallOptions& o) {
  return run(*state_, {all_gather_call(caller_of(*state_), in, out, counts, false, o), o.id, "all_gather"});
}
Work Group::all_gather_async(Tensor t, Counts counts, const CallOptions& o) {
  return Work(start(*state_, polls_, {all_gather_call(caller_of(*state_), t, t, counts, true, o), o.id, "all_gather"}));
}
Result<Report> Group::all_gather(Tensor t, Counts counts, const CallOptions& o) {
  return run(*state_, {all_gather_call(caller_of(*state_), t, t, counts, true, o), o.id, "all_gather"});
}
Work Group::reduce_shards_async(ConstTensor in, Tensor shard, const CallOptions& o) {
  return Work(start(*state_, polls_, {reduce_shards_call(caller_of(*state_), in, shard, o), o.id, "reduce_shards"}));
}
Result<Report> Group::reduce_shards(ConstTensor in, Tensor shard, const CallOptions& o) {
  return run(*state_, {reduce_shards_call(caller_of(*state_), in, shard, o), o.id, "reduce_shards"});
}
Work Group::gather_shards_async(ConstTensor shard, Tensor out, const CallOptions& o) {
  return Work(start(*state_, polls_, {gather_shards_call(caller_of(*state_), shard, out, o), o.id, "gather_shards"}));
}
Result<Report> Group::gather_shards(ConstTensor shard, Tensor out, const CallOptions& o) {
  return run(*state_, {gather_shards_call(caller_of(*state_), shard, out, o), o.id, "gather_shards"});
}
Result<ShardLayout> Group::shard_layout(ConstTensor tensor, const StepCodec& codec, uint32_t unit) const {
  return shard_layout_of(state_->world, tensor, codec, unit, datagram_bytes());
}
uint32_t Group::datagram_bytes() const {
  if (state_->runtime->process().forked()) return 0;
  return state_->runtime->locked([&](GuardedState& guarded) {
    return ended(*state_, guarded) || state_->core->lossy == nullptr ? 0u : state_->core->lossy->datagram_bytes();
  });
}
Work Group::broadcast_async(Tensor t, uint32_t root, const CallOptions& o) {
  return Work(start(*state_, polls_, {broadcast_call(caller_of(*state_), t, root, o), o.id, "broadcast"}));
}
Result<Report> Group::broadcast(Tensor t, uint32_t root, const CallOptions& o) {
  return run(*state_, {broadcast_call(caller_of(*state_), t, root, o), o.id, "broadcast"});
}
Work Group::reduce_async(ConstTensor in, Tensor out, uint32_t root, const CallOptions& o) {
  return Work(start(*state_, polls_, {reduce_call(caller_of(*state_), in, out, root, o), o.id, "reduce"}));
}
Result<Report> Group::reduce(ConstTensor in, Tensor out, uint32_t root, const CallOptions& o) {
  return run(*state_, {reduce_call(caller_of(*state_), in, out, root, o), o.id, "reduce"});
}
Work Group::gather_async(ConstTensor in, Tensor out, uint32_t root, Counts counts, const CallOptions& o) {
  return Work(start(*state_, polls_, {gather_call(caller_of(*state_), in, out, root, counts, o), o.id, "gather"}));
}
Result<Report> Group::gather(ConstTensor in, Tensor out, uint32_t root, Counts counts, const CallOptions& o) {
  return run(*state_, {gather_call(caller_of(*state_), in, out, root, counts, o), o.id, "gather"});
}
Work Group::scatter_async(ConstTensor in, Tensor out, uint32_t root, Counts counts, const CallOptions& o) {
  return Work(start(*state_, polls_, {scatter_call(caller_of(*state_), in, out, root, counts, o), o.id, "scatter"}));
}
Result<Report> Group::scatter(ConstTensor in, Tensor out, uint32_t root, Counts counts, const CallOptions& o) {
  return run(*state_, {scatter_call(caller_of(*state_), in, out, root, counts, o), o.id, "scatter"});
}
Work Group::all_to_all_async(ConstTensor in, Tensor out, Counts send, Counts recv, const CallOptions& o) {
  return Work(start(*state_, polls_, {all_to_all_call(caller_of(*state_), in, out, send, recv, o), o.id, "all_to_all"}));
}
Result<Report> Group::all_to_all(ConstTensor in, Tensor out, Counts send, Counts recv, const CallOptions& o) {
  return run(*state_, {all_to_all_call(caller_of(*state_), in, out, send, recv, o), o.id, "all_to_all"});
}
Work Group::barrier_async(const CallOptions& o) {
  return Work(start(*state_, polls_, {barrier_call(caller_of(*state_), o), o.id, "barrier"}));
}
Result<Report> Group::barrier(const CallOptions& o) {
  return run(*state_, {barrier_call(caller_of(*state_), o), o.id, "barrier"});
}
Work Group::send_async(ConstTensor in, uint32_t to, uint32_t tag, const CallOptions& o) {
  return Work(start(*state_, polls_, {message_call(caller_of(*state_), Collective::send, in, {}, to, o), tag, "send"}));
}
Result<Report> Group::send(ConstTensor in, uint32_t to, uint32_t tag, const CallOptions& o) {
  return run(*state_, {message_call(caller_of(*state_), Collective::send, in, {}, to, o), tag, "send"});
}
Work Group::recv_async(Tensor out, uint32_t from, uint32_t tag, const CallOptions& o) {
  return Work(start(*state_, polls_, {message_call(caller_of(*state_), Collective::recv, {}, out, from, o), tag, "recv"}));
}
Result<Report> Group::recv(Tensor out, uint32_t from, uint32_t tag, const CallOptions& o) {
  return run(*state_, {message_call(caller_of(*state_), Collective::recv, {}, out, from, o), tag, "recv"});
}
Work Group::recv_any_async(Tensor out, uint32_t tag, const CallOptions& o) { return recv_async(out, any_source, tag, o); }
Result<Report> Group::recv_any(Tensor out, uint32_t tag, const CallOptions& o) { return recv(out, any_source, tag, o); }

void Group::abort(const std::string& reason) {
  if (state_->runtime->process().forked()) return;
  state_->runtime->locked([&](GuardedState& guarded) {
    if (ended(*state_, guarded)) return;
    guarded.engine.abort_group(*state_->core, {Code::unavailable, "aborted" + (reason.empty() ? "" : ": " + reason)},
                               monotonic_now());
  });
}

Group Group::polling() const {
  Group same = *this;
  same.polls_ = true;
  return same;
}

Result<Group> Group::split(std::span<const uint32_t> ranks) {
  if (auto status = check_process(*state_, "split"); !status.ok()) return status;
  const auto fail = [](const std::string& what) { return Status(Code::invalid, "split: " + what); };
  if (ranks.empty()) return fail("no ranks");
  uint64_t hash = mix64(state_->number);
  std::vector<bool> seen(state_->world);
  for (const auto rank : ranks) {
    if (rank >= state_->world) return fail(concat("rank ", rank, " is not in this group of ", state_->world));
    if (seen[rank]) return fail(concat("rank ", rank, " is listed twice"));
    seen[rank] = true;
    hash = mix64(hash ^ rank);
  }
  if (!seen[state_->self]) return fail(concat("this rank (", state_->self, ") is not in the list; only members call split"));
  return state_->runtime->locked([&](GuardedState& guarded) -> Result<Group> {
    if (ended(*state_, guarded)) return why_ended(*state_, guarded, "split");
    auto state = std::make_shared<GroupState>(*state_);
    std::vector<PeerIndex> members;
    std::vector<uint32_t> host_groups;
    for (const auto rank : ranks) {
      members.push_back(state_->core->members[rank]);
      host_groups.push_back(state_->core->host_groups[rank]);
    }
    // Bit 1 is set, so the number differs from that of the world group. The counter makes a new number even if the same ranks
    // are split off again.
    state->number = static_cast<uint32_t>(mix64(hash ^ state_->subgroups[hash]++)) | 2;
    state->core = &guarded.engine.make_group(state->number, state_->core->epoch, std::move(members), std::move(host_groups));
    keep_record(guarded, *state->core);
    state->self = state->core->self;
    state->world = state->core->world();
    state->subgroups.clear();
    return Group(std::move(state));
  });
}

Result<Reformed> Group::reform() {
  if (auto status = check_process(*state_, "reform"); !status.ok()) return status;
  if (state_->number != world_group_number)
    return Status(Code::invalid, "reform: only the group that was joined can be re-formed, not a sub-group");
  return reform_world(*state_->runtime, *state_);
}

}  // namespace unisono

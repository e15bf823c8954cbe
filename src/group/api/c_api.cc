// The C API. It translates arguments to C++, and keeps the last error message of each thread.
#include "unisono/unisono_c.h"

#include <chrono>
#include <numeric>
#include <optional>
#include <string>

#include "base/concat.h"
#include "unisono/unisono.h"

struct unisono_group {
  unisono::Group group;
  std::optional<unisono::Codec> codec;  // nullopt: use the codec that the group got when it was joined
};
struct unisono_work {
  unisono::Work work;
};

namespace {

using unisono::CallOptions;
using unisono::ConstTensor;
using unisono::Counts;
using unisono::Milliseconds;
using unisono::Result;
using unisono::Status;
using unisono::Tensor;

thread_local std::string last_error;

int set_last_error(const Status& status) {
  last_error = status.message();
  return static_cast<int>(status.code());
}

CallOptions options_of(const unisono_call* call, unisono_op op = UNISONO_SUM) {
  CallOptions o;
  o.op = static_cast<unisono::ReduceOp>(op);
  if (call == nullptr) return o;
  o.order = static_cast<unisono::Order>(call->order);
  o.schedule = static_cast<unisono::ScheduleKind>(call->schedule);
  o.timeout = Milliseconds(call->timeout_ms);
  o.id = call->id;
  o.slice_bytes = call->slice_bytes;
  return o;
}

// Returns the options for a collective that can use a codec.
CallOptions options_with_codec(const unisono_group* group, const unisono_call* call, unisono_op op = UNISONO_SUM) {
  auto o = options_of(call, op);
  o.codec = group->codec;
  return o;
}

ConstTensor in(const void* data, size_t count, unisono_dtype dtype) {
  return {data, count, static_cast<unisono::DType>(dtype)};
}
Tensor out(void* data, size_t count, unisono_dtype dtype) { return {data, count, static_cast<unisono::DType>(dtype)}; }

Counts counts_of(const unisono_group* group, const size_t* counts) {
  return counts == nullptr ? Counts() : Counts(counts, group->group.world_size());
}

// Returns the number of elements in all blocks together. If the sum overflows, it is wrong, but then the call fails later when
// sizes are checked.
size_t total_of(const unisono_group* group, size_t count, const size_t* counts) {
  const auto world = group->group.world_size();
  return counts == nullptr ? count * world : std::accumulate(counts, counts + world, size_t{0});
}

// Gives `work` to the caller. If the call was refused, the error is reported at once. If a call fails later, unisono_work_wait
// reports it.
int hand_over(unisono::Work work, unisono_work** handle) {
  if (work.done()) {
    auto result = work.wait();
    if (!result) return set_last_error(result.status());
  }
  *handle = new unisono_work{std::move(work)};
  return UNISONO_OK;
}

int report_of(const Result<unisono::Report>& result, unisono_report* report) {
  if (!result) return set_last_error(result.status());
  if (report != nullptr) {
    const auto& r = *result;
    *report = {r.world_size, r.contributors, r.sent_bytes, r.received_bytes, r.sent_messages, r.received_messages,
               r.total_us,   r.wait_us,      r.compute_us, r.transfer_us,    r.last_rank};
  }
  return UNISONO_OK;
}

void pass_on(const unisono::Event& event, unisono_event_handler handler, void* data) {
  const auto time = std::chrono::duration_cast<std::chrono::microseconds>(event.time.time_since_epoch());
  const unisono_event passed{.kind = unisono::facts(event.kind).name.data(),
                             .text = event.text.c_str(),
                             .source = event.source.c_str(),
                             .is_warning = event.level() == unisono::EventLevel::warning,
                             .rank = event.rank,
                             .time_us = time.count()};
  handler(&passed, data);
}

std::string text(const char* s) { return s == nullptr ? std::string() : std::string(s); }

}  // namespace

extern "C" {

const char* unisono_version(void) { return UNISONO_VERSION; }
const char* unisono_last_error(void) { return last_error.c_str(); }

int unisono_join(const unisono_options* o, unisono_group** group) {
  return unisono_join_with_events(o, nullptr, nullptr, group);
}

int unisono_join_with_events(const unisono_options* o, unisono_event_handler handler, void* data, unisono_group** group) {
  return unisono_join_with_key(o, nullptr, UNISONO_SECURITY_AUTOMATIC, handler, data, group);
}

int unisono_join_with_key(const unisono_options* o, const char* key, unisono_security security, unisono_event_handler handler,
                          void* data, unisono_group** group) {
  unisono::Options options;
  if (security < UNISONO_SECURITY_AUTOMATIC || security > UNISONO_SECURITY_OFF)
    return set_last_error(
        {unisono::Code::invalid, unisono::concat("security is ", static_cast<int>(security), "; needed: 0 to 2")});
  options.key = text(key);
  options.security = static_cast<unisono::Security>(security);
  if (handler != nullptr) options.on_event = [=](const unisono::Event& event) { pass_on(event, handler, data); };
  if (o != nullptr) {
    if (o->world_size > 0) options.rank = o->rank, options.world_size = o->world_size;
    options.rendezvous = text(o->rendezvous);
    options.job = text(o->job);
    options.interface = text(o->interface);
    options.transport = text(o->transport);
    options.join_running = o->join_running != 0;
    if (o->join_timeout_ms > 0) options.join_timeout = Milliseconds(o->join_timeout_ms);
    if (o->timeout_ms > 0) options.timeout = Milliseconds(o->timeout_ms);
    if (o->reform_timeout_ms > 0) options.reform_timeout = Milliseconds(o->reform_timeout_ms);
    if (o->min_world > 0) options.min_world = static_cast<uint32_t>(o->min_world);
    options.require_majority = o->require_majority >= 0;
  }
  auto joined = unisono::Group::join(options);
  if (!joined) return set_last_error(joined.status());
  *group = new unisono_group{std::move(*joined), {}};
  return UNISONO_OK;
}

int unisono_set_codec(unisono_group* group, const char* codec) {
  auto parsed = unisono::Codec::parse(text(codec));
  if (!parsed) return set_last_error(parsed.status());
  group->codec = *parsed;
  return UNISONO_OK;
}

void unisono_leave(unisono_group* group) { delete group; }
uint32_t unisono_rank(const unisono_group* group) { return group->group.rank(); }
uint32_t unisono_world_size(const unisono_group* group) { return group->group.world_size(); }

void unisono_get_counters(const unisono_group* group, unisono_counters* counters) {
  const auto all = group->group.counters();
  *counters = {all.begun, all.ended, 0, 0};
  for (const auto& c : all.collectives) counters->late += c.late, counters->failed += c.failed;
}

int unisono_get_link_counters(const unisono_group* group, uint32_t rank, unisono_link_counters* counters) {
  const auto world = group->group.world_size();
  if (rank >= world)
    return set_last_error({unisono::Code::invalid, unisono::concat("rank ", rank, " is not in this group of ", world)});
  const auto all = group->group.counters();
  if (rank >= all.links.size()) return set_last_error({unisono::Code::unavailable, "this group keeps no record"});
  const auto& l = all.links[rank];
  *counters = {l.sent_bytes, l.sent_messages, l.received_bytes, l.received_messages,
               l.waited_us,  l.waited_for,    l.stalls,         l.lost ? 1 : 0};
  return UNISONO_OK;
}

int unisono_dump_record(const unisono_group* group, const char* path) {
  return set_last_error(group->group.dump_record(text(path)));
}

uint32_t unisono_epoch(const unisono_group* group) { return group->group.epoch(); }

int unisono_split(unisono_group* group, const uint32_t* ranks, size_t count, unisono_group** subgroup) {
  auto split = group->group.split({ranks, count});
  if (!split) return set_last_error(split.status());
  *subgroup = new unisono_group{std::move(*split), group->codec};
  return UNISONO_OK;
}

int unisono_reform(unisono_group* group) {
  auto reformed = group->group.reform();
  return reformed ? static_cast<int>(UNISONO_OK) : set_last_error(reformed.status());
}

int unisono_all_reduce(unisono_group* g, const void* input, void* output, size_t count, unisono_dtype dtype, unisono_op op,
                       const unisono_call* call, unisono_work** work) {
  return hand_over(
      g->group.all_reduce_async(in(input, count, dtype), out(output, count, dtype), options_with_codec(g, call, op)), work);
}

int unisono_reduce_scatter(unisono_group* g, const void* input, void* output, size_t count, const size_t* counts,
                           unisono_dtype dtype, unisono_op op, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.reduce_scatter_async(in(input, total_of(g, count, counts), dtype), out(output, count, dtype),
                                                 counts_of(g, counts), options_with_codec(g, call, op)),
                   work);
}

int unisono_all_gather(unisono_group* g, const void* input, void* output, size_t count, const size_t* counts,
                       unisono_dtype dtype, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.all_gather_async(in(input, count, dtype), out(output, total_of(g, count, counts), dtype),
                                             counts_of(g, counts), options_with_codec(g, call)),
                   work);
}

int unisono_broadcast(unisono_group* g, void* data, size_t count, unisono_dtype dtype, uint32_t root, const unisono_call* call,
                      unisono_work** work) {
  return hand_over(g->group.broadcast_async(out(data, count, dtype), root, options_of(call)), work);
}

int unisono_reduce(unisono_group* g, const void* input, void* output, size_t count, unisono_dtype dtype, unisono_op op,
                   uint32_t root, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.reduce_async(in(input, count, dtype), out(output, count, dtype), root, options_of(call, op)), work);
}

int unisono_gather(unisono_group* g, const void* input, void* output, size_t count, const size_t* counts, unisono_dtype dtype,
                   uint32_t root, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.gather_async(in(input, count, dtype), out(output, total_of(g, count, counts), dtype), root,
                                         counts_of(g, counts), options_of(call)),
                   work);
}

int unisono_scatter(unisono_group* g, const void* input, void* output, size_t count, const size_t* counts, unisono_dtype dtype,
                    uint32_t root, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.scatter_async(in(input, total_of(g, count, counts), dtype), out(output, count, dtype), root,
                                          counts_of(g, counts), options_of(call)),
                   work);
}

int unisono_all_to_all(unisono_group* g, const void* input, void* output, size_t count, const size_t* send_counts,
                       const size_t* recv_counts, unisono_dtype dtype, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.all_to_all_async(in(input, total_of(g, count, send_counts), dtype),
                                             out(output, total_of(g, count, recv_counts), dtype), counts_of(g, send_counts),
                                             counts_of(g, recv_counts), options_with_codec(g, call)),
                   work);
}

int unisono_barrier(unisono_group* g, const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.barrier_async(options_of(call)), work);
}

int unisono_send(unisono_group* g, const void* data, size_t count, unisono_dtype dtype, uint32_t to, uint32_t tag,
                 const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.send_async(in(data, count, dtype), to, tag, options_of(call)), work);
}

int unisono_recv(unisono_group* g, void* data, size_t count, unisono_dtype dtype, uint32_t from, uint32_t tag,
                 const unisono_call* call, unisono_work** work) {
  return hand_over(g->group.recv_async(out(data, count, dtype), from, tag, options_of(call)), work);
}

int unisono_wait(unisono_work* work, unisono_report* report) { return report_of(work->work.wait(), report); }
int unisono_wait_for(unisono_work* work, int64_t timeout_ms, unisono_report* report) {
  return report_of(work->work.wait_for(Milliseconds(timeout_ms)), report);
}
void unisono_get_codec_use(const unisono_work* work, unisono_codec_use* use) {
  const auto report = work->work.report();
  *use = {report.codec.is_plain() ? 0 : 1, report.passes,    report.sent_payload, report.sent_elements, report.saturated,
          report.nonfinite_groups,         report.encode_us, report.sum_us,       report.decode_us};
}
int unisono_done(const unisono_work* work) { return work->work.done() ? 1 : 0; }

void unisono_work_free(unisono_work* work) {
  if (work == nullptr) return;
  if (!work->work.done()) (void)work->work.wait();
  delete work;
}

}  // extern "C"

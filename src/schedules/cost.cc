#include "schedules/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "schedules/double_tree.h"
#include "schedules/hierarchical.h"
#include "schedules/team.h"
#include "schedules/two_step.h"

namespace unisono {
namespace {

using enum ScheduleKind;

enum class Half : uint8_t { reduce_scatter, all_gather };

// Returns the traffic of a reduce-scatter or an all-gather. Every rank sends and receives all chunks except one. However, in an
// all-gather with a single round, a rank sends only its own chunk, to all other ranks.
Traffic half(Half which, ScheduleKind kind, uint32_t size) {
  const double n = size;
  const double rounds = half_rounds(kind, size);
  const bool gathers = which == Half::all_gather;
  const bool at_once = kind != halving_doubling && kind != ring;
  return {.rounds = rounds,
          .batches = kind == halving_doubling ? rounds : n - 1,
          .messages = n - 1,
          .bytes = (n - 1) / n,
          .written = gathers && at_once ? 1 / n : (n - 1) / n,
          .read = (n - 1) / n,
          .shared = gathers && at_once && size > 2 ? (n - 1) / n : 0,
          .reduced = gathers ? 0 : (n - 1) / n,
          .summed = gathers   ? 0
                    : at_once ? 1 / n
                              : (n - 1) / n,
          .total = n - 1};
}

// Returns the traffic of two phases that follow each other.
Traffic sum(const Traffic& a, const Traffic& b) {
  return {.rounds = a.rounds + b.rounds,
          .batches = a.batches + b.batches,
          .messages = a.messages + b.messages,
          .bytes = a.bytes + b.bytes,
          .written = a.written + b.written,
          .read = a.read + b.read,
          .shared = a.shared + b.shared,
          .reduced = a.reduced + b.reduced,
          .summed = a.summed + b.summed,
          .total = a.total + b.total,
          .passed_on = std::max(a.passed_on, b.passed_on)};
}

Traffic both_halves(ScheduleKind kind, uint32_t size) {
  return sum(half(Half::reduce_scatter, kind, size), half(Half::all_gather, kind, size));
}

Traffic one_round(uint32_t size, double bytes) {
  const double n = size;
  return {
      .rounds = 1, .batches = n - 1, .messages = n - 1, .bytes = bytes, .written = bytes, .read = bytes, .total = n * bytes};
}

// Returns the traffic of one round in which every rank sends the same payload to all others.
Traffic exchange(uint32_t size, double tensors) {
  const double n = size, bytes = (n - 1) * tensors;
  auto result = one_round(size, bytes);
  result.written = result.summed = tensors;
  result.shared = size > 2 ? bytes : 0;
  result.reduced = bytes;
  return result;
}

// Returns the traffic of a broadcast or reduce. The root is the busiest rank.
Traffic rooted(Collective collective, ScheduleKind kind, uint32_t world) {
  const double n = world;
  const bool reduces = collective == Collective::reduce;
  const double height = log2_ceil(world);
  if (kind == direct) {
    return {.rounds = 1,
            .batches = n - 1,
            .messages = n - 1,
            .bytes = n - 1,
            .written = 1,
            .read = reduces ? n - 1 : 1,
            .shared = !reduces && world > 2 ? 1.0 : 0,
            .reduced = reduces ? n - 1 : 0,
            .summed = reduces ? 1.0 : 0,
            .total = n - 1};
  }
  if (kind == tree)
    return {.rounds = height,
            .batches = height,
            .messages = height,
            .bytes = height,
            .written = reduces ? 1 : height,
            .read = reduces ? height : 1,
            .reduced = reduces ? height : 0,
            .summed = reduces ? height : 0,
            .total = n - 1};
  if (!reduces)
    return {.rounds = 1.0 + half_rounds(kind, world - 1),
            .batches = n - 1,
            .messages = n - 1,
            .bytes = 1,
            .written = 1,
            .read = 1,
            .shared = world > 3 ? half(Half::all_gather, kind, world - 1).shared : 0,
            .total = n - 1};
  return sum(half(Half::reduce_scatter, kind, world), {.rounds = 1,
                                                       .batches = n - 1,
                                                       .messages = n - 1,
                                                       .bytes = (n - 1) / n,
                                                       .written = 1 / n,
                                                       .read = (n - 1) / n,
                                                       .total = (n - 1) / n});
}

// Returns the traffic of a gather or scatter. In a tree, the block of a rank that is far from the root travels several times,
// but only once over the links of the root.
Traffic blocks(Collective collective, ScheduleKind kind, uint32_t world) {
  const double n = world;
  const double height = log2_ceil(world);
  const bool gathers = collective == Collective::gather;
  Traffic result{.rounds = 1,
                 .batches = n - 1,
                 .messages = n - 1,
                 .bytes = (n - 1) / n,
                 .written = gathers ? 1 / n : (n - 1) / n,
                 .read = gathers ? (n - 1) / n : 1 / n,
                 .total = (n - 1) / n};
  if (kind == direct) return result;
  result.rounds = result.batches = height;
  result.total = 0;
  for (uint32_t position = 1; position < world; ++position) {
    const double below = std::min(1u << std::countr_zero(position), world - position) / n;
    result.total += below;
    auto& far_from_root = gathers ? result.written : result.read;
    far_from_root = std::max(far_from_root, below);
  }
  return result;
}

// Returns the traffic of a double tree. Its busiest rank has two children in one tree, and a parent in both trees.
Traffic double_tree_traffic(uint32_t world) {
  const double messages = std::min(4u, world), added = world > 2 ? 1 : 0.5;
  return {.rounds = 2.0 * double_tree_height(world),
          .batches = messages,
          .messages = messages,
          .bytes = messages / 2,
          .written = world > 3 ? 1.5 : 1,
          .read = messages / 2,
          .shared = world == 2   ? 0
                    : world == 4 ? 0.5
                                 : 1.0,
          .reduced = added,
          .summed = 0.5,
          .total = 2.0 * (world - 1),
          .passed_on = 0.5};
}

uint32_t largest_of(const HostGroups& host_groups) {
  size_t size = 0;
  for (const auto& members : host_groups) size = std::max(size, members.size());
  return static_cast<uint32_t>(size);
}

uint32_t smallest_of(const HostGroups& host_groups) {
  size_t size = host_groups[0].size();
  for (const auto& members : host_groups) size = std::min(size, members.size());
  return static_cast<uint32_t>(size);
}

Traffic scaled(Traffic one, double part) {
  return {.rounds = one.rounds,
          .batches = one.batches * part,
          .messages = one.messages * part,
          .bytes = one.bytes * part,
          .written = one.written * part,
          .read = one.read * part,
          .shared = one.shared * part,
          .reduced = one.reduced * part,
          .summed = one.summed * part,
          .total = one.total * part,
          .passed_on = one.passed_on};
}

// Returns the load of a ring. In each host group, one rank sends to another host group. All other ranks send to a member of
// their own host group.
Load ring_load(const Traffic& whole, const LoadRequest& request) {
  const double borders = static_cast<double>(request.host_groups.size());
  Load result{.inside = whole, .between = whole, .side_by_side = true};
  result.between.rounds = whole.rounds * borders / request.world;
  result.inside.rounds = whole.rounds - result.between.rounds;
  result.host_group_bytes_inside = whole.bytes * largest_of(request.host_groups);
  result.host_group_bytes_between = whole.bytes;
  return result;
}

// Returns the load of a tree. Only the rounds that are nearest to the root cross between host groups.
Load tree_load(const Traffic& whole, const LoadRequest& request) {
  const double crossing = std::min<double>(log2_ceil(static_cast<uint32_t>(request.host_groups.size())), whole.rounds);
  const double part = crossing / whole.rounds;
  Load result{.inside = scaled(whole, 1 - part), .between = scaled(whole, part)};
  result.between.rounds = crossing;
  result.inside.rounds = whole.rounds - crossing;
  result.host_group_bytes_inside = whole.total * largest_of(request.host_groups) / request.world;
  result.host_group_bytes_between = result.between.bytes;
  return result;
}

// Returns the load of a schedule in which a rank's peers are spread evenly over all ranks. If a fraction x of the peers is in
// other host groups, this fraction of the messages leaves the host group. Every round waits for such a message.
Load spread_load(const Traffic& whole, const LoadRequest& request) {
  const double others = request.world - 1.0;
  const double outside = (request.world - smallest_of(request.host_groups)) / others;
  Load result{.inside = scaled(whole, 1 - outside), .between = scaled(whole, outside)};
  result.inside.rounds = 0;
  for (const auto& members : request.host_groups) {
    const auto size = static_cast<double>(members.size());
    const auto sent = whole.total * size / request.world;
    result.host_group_bytes_inside = std::max(result.host_group_bytes_inside, sent * (size - 1) / others);
    result.host_group_bytes_between = std::max(result.host_group_bytes_between, sent * (request.world - size) / others);
  }
  return result;
}

Load hierarchical_load(const LoadRequest& request) {
  const auto host_group_count = static_cast<uint32_t>(request.host_groups.size());
  const auto largest = largest_of(request.host_groups);
  const auto smallest = smallest_of(request.host_groups);
  const bool leader = request.inner == tree || request.inner == direct;
  const auto units = unit_count(request.host_groups, request.inner);
  const double parts = host_group_count == 1 || request.outer == one_shot ? 1 : host_group_count;
  Load result;
  if (largest > 1 && leader) {
    // The leader first receives the values of its host group, and later sends the result to all members.
    result.inside =
        sum(rooted(Collective::reduce, request.inner, largest), rooted(Collective::broadcast, request.inner, largest));
    result.inside.messages *= parts;
  } else if (largest > 1) {
    result.inside = both_halves(request.inner, largest);
    result.inside.messages *= parts * units / largest;
  }
  if (host_group_count > 1) {
    const double owned = leader ? 1 : (units + smallest - 1) / smallest;  // number of units that the busiest owner owns
    const auto whole = traffic(Collective::all_reduce, request.outer, host_group_count);
    result.between = scaled(whole, owned);
    for (auto bytes :
         {&Traffic::bytes, &Traffic::written, &Traffic::read, &Traffic::shared, &Traffic::reduced, &Traffic::summed})
      result.between.*bytes = whole.*bytes * owned / units;
    result.host_group_bytes_between = whole.bytes;
  }
  result.host_group_bytes_inside = result.inside.total;
  return result;
}

// Returns the time that cores spend on the bytes. On a network, cores only add. On one host, they also copy.
//
// If the kernel copies the bytes, it copies them in and out at the link's rate, which counts both copies.
//
// In shared memory, each byte is written once and read once, each at the link's rate. A rank adds incoming values straight from
// shared memory. Each sum costs extra, because the rank reads its own values and writes the result. If several ranks on one
// core read the same payload, the first of them reads it from another core. The others read it from their core's cache, if it
// still fits there.
double byte_work_us(const Traffic& part, const LinkProfile& link, double bytes, double ranks_per_core) {
  constexpr double own_part = 0.25, cached_part = 1.0 / 6,
                   cache_bytes = 1 << 20;  // these numbers were fitted to measurements, like the profiles
  const double adding = part.reduced * bytes / link.reduce_bytes_per_us;
  if (!link.copied_by_cores) return adding;
  if (!link.shares_payloads) return adding + part.bytes * bytes / link.bytes_per_us;
  const double stays = std::min(1.0, cache_bytes / std::max(1.0, part.shared * bytes));
  const double cached = part.shared * (1 - 1 / ranks_per_core) * (1 - cached_part) * stays;
  return (part.written + part.read - cached + part.summed * own_part) * bytes / link.bytes_per_us;
}

double wire_us(const Traffic& part, const LinkProfile& link, double bytes, double host_group_bytes) {
  if (link.copied_by_cores) return 0;
  const double alone = part.bytes * bytes / link.bytes_per_us;
  return link.host_bytes_per_us > 0 ? std::max(alone, host_group_bytes * bytes / link.host_bytes_per_us) : alone;
}

// Returns the time until the pipeline is full. In shared memory, a receiver can use a message only after it is completely
// written. So in each round except the first, one slice is transferred while nothing else happens. On any link, this also
// applies to a chunk that ranks pass on slice by slice.
double pipeline_fill_us(const Traffic& part, const LinkProfile& link, double bytes) {
  if (part.passed_on > 0 && part.rounds > 1)
    return (part.rounds - 1) * std::min(link.slice_bytes, part.passed_on * bytes) / link.bytes_per_us;
  if (!link.shares_payloads || part.rounds <= 1 || part.messages == 0) return 0;
  return (part.rounds - 1) * std::min(link.slice_bytes, part.bytes * bytes / part.messages) / link.bytes_per_us;
}

// Returns the time for everything except the wire. If `without_executor` is true, the messages do not go through an executor.
double link_us(const Traffic& part, const LinkProfile& link, double bytes, double ranks_per_core, bool without_executor) {
  const double latency =
      part.rounds * (link.latency_us + (ranks_per_core - 1) * link.switch_us) + pipeline_fill_us(part, link, bytes);
  const double messages = part.messages + part.bytes * bytes / link.slice_bytes;
  const double per_message = link.per_message_cpu_us + (without_executor ? 0 : link.handling_us);
  const double work =
      part.batches * link.per_batch_cpu_us + messages * per_message + byte_work_us(part, link, bytes, ranks_per_core);
  return latency + work * ranks_per_core;
}

}  // namespace

bool is_usable(const LinkProfile& link) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto not_negative = [](double value) { return std::isfinite(value) && value >= 0; };
  return positive(link.bytes_per_us) && positive(link.reduce_bytes_per_us) && positive(link.slice_bytes) &&
         link.slice_bytes < 0x1p62 && not_negative(link.host_bytes_per_us) && not_negative(link.latency_us) &&
         not_negative(link.per_message_cpu_us) && not_negative(link.per_batch_cpu_us) && not_negative(link.handling_us) &&
         not_negative(link.switch_us) && link.cores > 0 && link.host_groups_sharing > 0;
}

LinkProfile shared_memory_profile(uint32_t cores) {
  return {.latency_us = 0.4,
          .bytes_per_us = 20'000,
          .per_message_cpu_us = 0.15,
          .per_batch_cpu_us = 0.05,
          .handling_us = 0.8,
          .reduce_bytes_per_us = 20'000,
          .slice_bytes = 256 * 1024,
          .switch_us = 4,
          .cores = cores,
          .copied_by_cores = true,
          .shares_payloads = true};
}

LinkProfile loopback_tcp_profile(uint32_t cores) {
  return {.latency_us = 1,
          .bytes_per_us = 6'000,
          .per_message_cpu_us = 0.5,
          .per_batch_cpu_us = 6.5,
          .reduce_bytes_per_us = 20'000,
          .slice_bytes = 256 * 1024,
          .switch_us = 8,
          .cores = cores,
          .copied_by_cores = true};
}

LinkProfile network_tcp_profile(uint32_t cores) {
  return {.latency_us = 25,
          .bytes_per_us = 1'150,
          .host_bytes_per_us = 1'150,
          .per_message_cpu_us = 0.5,
          .per_batch_cpu_us = 2.5,
          .reduce_bytes_per_us = 20'000,
          .slice_bytes = 256 * 1024,
          .switch_us = 40,
          .cores = cores};
}

LinkProfile measured_profile(const LinkProfile& start, const LinkSpeed& speed) {
  auto link = start;
  const double work = link.per_batch_cpu_us + link.per_message_cpu_us;
  if (link.copied_by_cores) {
    const double factor = speed.latency_us / (link.latency_us + work);
    for (auto* price : {&link.latency_us, &link.per_batch_cpu_us, &link.per_message_cpu_us}) *price *= factor;
    // Handling is the core's own work. The bounds protect against a measurement with two ranks on one core, which may be
    // much too slow.
    link.handling_us *= std::clamp(factor, 0.5, 2.0);
    if (!link.shares_payloads)
      link.switch_us *= factor;  // the kernel switches between ranks, so this cost scales like the costs above
  } else {
    link.latency_us = std::max(0.0, speed.latency_us - work);
    if (link.host_bytes_per_us > 0) link.host_bytes_per_us = speed.bytes_per_us;
  }
  link.bytes_per_us = speed.bytes_per_us;
  return link;
}

LinkSpeed speed_of(const LinkProfile& link) {
  return {.latency_us = link.latency_us + link.per_batch_cpu_us + link.per_message_cpu_us, .bytes_per_us = link.bytes_per_us};
}

Traffic traffic(Collective collective, ScheduleKind kind, uint32_t world) {
  if (world <= 1 || kind == automatic || kind == hierarchical) return {};
  const double n = world;
  switch (collective) {
    case Collective::all_reduce:
      if (kind == one_shot) return exchange(world, 1);
      if (kind == double_tree) return double_tree_traffic(world);
      return kind == two_step || kind == ring || kind == halving_doubling ? both_halves(kind, world) : Traffic{};
    case Collective::reduce_scatter:
    case Collective::all_gather: {
      if (kind != direct && kind != ring && kind != halving_doubling) return {};
      return half(collective == Collective::all_gather ? Half::all_gather : Half::reduce_scatter, kind, world);
    }
    case Collective::broadcast:
    case Collective::reduce: return kind == one_shot ? Traffic{} : rooted(collective, kind, world);
    case Collective::gather:
    case Collective::scatter: return kind == direct || kind == tree ? blocks(collective, kind, world) : Traffic{};
    case Collective::all_to_all: return kind == direct ? one_round(world, (n - 1) / n) : Traffic{};
    case Collective::barrier: {
      if (kind == one_shot) return exchange(world, 0);
      const double rounds = log2_ceil(world);
      return kind == halving_doubling ? Traffic{.rounds = rounds, .batches = rounds, .messages = rounds} : Traffic{};
    }
    case Collective::send:
    case Collective::recv: return {};
  }
  return {};
}

Traffic relayed_traffic(uint32_t world) {
  if (world <= 1) return {};
  const double n = world, rounds = log2_ceil(world);
  return {.rounds = rounds,
          .batches = rounds,
          .messages = rounds,
          .bytes = n - 1,
          .written = n - 1,
          .read = n - 1,
          .reduced = n - 1,
          .summed = 1,
          .total = n * (n - 1)};
}

Load load(const LoadRequest& request) {
  if (request.kind == hierarchical) return hierarchical_load(request);
  const auto whole =
      request.relayed ? relayed_traffic(request.world) : traffic(request.collective, request.kind, request.world);
  Load result{.inside = whole, .between = {}, .host_group_bytes_inside = whole.total};
  if (request.host_groups.size() > 1 && request.world > 1) {
    result = request.kind == ring   ? ring_load(whole, request)
             : request.kind == tree ? tree_load(whole, request)
                                    : spread_load(whole, request);
  }
  result.is_exchange = !request.relayed && request.host_groups.size() <= 1 && request.world <= exchange_ranks_max &&
                       is_exchange(request.collective, request.kind);
  return result;
}

double ranks_per_core(const LinkProfile& link, uint32_t largest_host_group, uint32_t host_groups) {
  return std::max(1.0, static_cast<double>(largest_host_group) * std::min(link.host_groups_sharing, host_groups) / link.cores);
}

double predicted_us(const TimeRequest& request) {
  const auto ranks_per_core = [&](const LinkProfile& link) {
    return unisono::ranks_per_core(link, request.largest_host_group, request.host_groups);
  };
  const auto& load = request.load;
  const bool without_executor = load.is_exchange && request.bytes <= static_cast<double>(exchange_bytes_max);
  const double inside = link_us(load.inside, request.inside, request.bytes, ranks_per_core(request.inside), without_executor) +
                        wire_us(load.inside, request.inside, request.bytes, load.host_group_bytes_inside);
  const double wire_between = request.between_wire_us >= 0
                                  ? request.between_wire_us
                                  : wire_us(load.between, request.between, request.bytes, load.host_group_bytes_between);
  const double between =
      link_us(load.between, request.between, request.bytes, ranks_per_core(request.between), without_executor) + wire_between;
  return load.side_by_side ? std::max(inside, between) : inside + between;
}

}  // namespace unisono

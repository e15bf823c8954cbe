#include "schedules/cost.h"

#include <algorithm>
#include <bit>

#include "schedules/hierarchical.h"
#include "schedules/team.h"
#include "schedules/two_step.h"

namespace unisono {
namespace {

using enum ScheduleKind;

// A reduce-scatter, or (with nothing reduced) an all-gather: every rank sends and receives all chunks but one.
Traffic half(ScheduleKind kind, uint32_t size) {
  const double n = size;
  const double rounds = half_rounds(kind, size);
  return {.rounds = rounds,
          .batches = kind == halving_doubling ? rounds : n - 1,
          .messages = n - 1,
          .bytes = (n - 1) / n,
          .reduced = (n - 1) / n,
          .total = n - 1};
}

Traffic twice(Traffic one) {
  return {.rounds = 2 * one.rounds,
          .batches = 2 * one.batches,
          .messages = 2 * one.messages,
          .bytes = 2 * one.bytes,
          .reduced = one.reduced,
          .total = 2 * one.total};
}

Traffic all_to_each(uint32_t size, double bytes, double reduced) {
  const double n = size;
  return {.rounds = 1, .batches = n - 1, .messages = n - 1, .bytes = bytes, .reduced = reduced, .total = n * bytes};
}

// Broadcast and reduce. The busiest rank is the root.
Traffic rooted(Collective collective, ScheduleKind kind, uint32_t world) {
  const double n = world;
  const bool reduces = collective == Collective::reduce;
  const double height = log2_ceil(world);
  if (kind == direct)
    return {.rounds = 1, .batches = n - 1, .messages = n - 1, .bytes = n - 1, .reduced = reduces ? n - 1 : 0, .total = n - 1};
  if (kind == tree)
    return {.rounds = height,
            .batches = height,
            .messages = height,
            .bytes = height,
            .reduced = reduces ? height : 0,
            .total = n - 1};
  if (!reduces)
    return {.rounds = 1.0 + half_rounds(kind, world - 1), .batches = n - 1, .messages = n - 1, .bytes = 1, .total = n - 1};
  auto both = half(kind, world);
  both.rounds += 1;
  both.batches += n - 1;
  both.messages += n - 1;
  both.bytes += (n - 1) / n;
  both.total += (n - 1) / n;
  return both;
}

// Gather and scatter. In a tree the blocks far from the root travel several times, but not over the root's link.
Traffic blocks(ScheduleKind kind, uint32_t world) {
  const double n = world;
  const double height = log2_ceil(world);
  Traffic result{.rounds = 1, .batches = n - 1, .messages = n - 1, .bytes = (n - 1) / n, .total = (n - 1) / n};
  if (kind == direct) return result;
  result.rounds = result.batches = height;
  result.total = 0;
  for (uint32_t position = 1; position < world; ++position)
    result.total += std::min(1u << std::countr_zero(position), world - position) / n;
  return result;
}

uint32_t largest_of(const Islands& islands) {
  size_t size = 0;
  for (const auto& members : islands) size = std::max(size, members.size());
  return static_cast<uint32_t>(size);
}

uint32_t smallest_of(const Islands& islands) {
  size_t size = islands[0].size();
  for (const auto& members : islands) size = std::min(size, members.size());
  return static_cast<uint32_t>(size);
}

Traffic scaled(Traffic one, double part) {
  return {.rounds = one.rounds,
          .batches = one.batches * part,
          .messages = one.messages * part,
          .bytes = one.bytes * part,
          .reduced = one.reduced * part,
          .total = one.total * part};
}

// Around the ring, one rank per island sends over its border, all others inside.
Load ring_load(const Traffic& whole, const LoadRequest& request) {
  const double borders = static_cast<double>(request.islands.size());
  Load result{.inside = whole, .between = whole, .side_by_side = true};
  result.between.rounds = whole.rounds * borders / request.world;
  result.inside.rounds = whole.rounds - result.between.rounds;
  result.island_bytes_inside = whole.bytes * largest_of(request.islands);
  result.island_bytes_between = whole.bytes;
  return result;
}

// The tree crosses between islands in the rounds nearest to the root.
Load tree_load(const Traffic& whole, const LoadRequest& request) {
  const double crossing = std::min<double>(log2_ceil(static_cast<uint32_t>(request.islands.size())), whole.rounds);
  const double part = crossing / whole.rounds;
  Load result{.inside = scaled(whole, 1 - part), .between = scaled(whole, part)};
  result.between.rounds = crossing;
  result.inside.rounds = whole.rounds - crossing;
  result.island_bytes_inside = whole.total * largest_of(request.islands) / request.world;
  result.island_bytes_between = result.between.bytes;
  return result;
}

// Peers of all distances alike: as many messages cross as peers are on other islands, and every round waits for one of them.
Load spread_load(const Traffic& whole, const LoadRequest& request) {
  const double others = request.world - 1.0;
  const double outside = (request.world - smallest_of(request.islands)) / others;
  Load result{.inside = scaled(whole, 1 - outside), .between = scaled(whole, outside)};
  result.inside.rounds = 0;
  for (const auto& members : request.islands) {
    const auto size = static_cast<double>(members.size());
    const auto sent = whole.total * size / request.world;
    result.island_bytes_inside = std::max(result.island_bytes_inside, sent * (size - 1) / others);
    result.island_bytes_between = std::max(result.island_bytes_between, sent * (request.world - size) / others);
  }
  return result;
}

Load hierarchical_load(const LoadRequest& request) {
  const auto island_count = static_cast<uint32_t>(request.islands.size());
  const auto largest = largest_of(request.islands);
  const auto smallest = smallest_of(request.islands);
  const bool leader = request.inner == tree || request.inner == direct;
  const auto units = unit_count(request.islands, request.inner);
  const double parts = island_count == 1 || request.outer == one_shot ? 1 : island_count;
  Load result;
  if (largest > 1 && leader) {
    result.inside = twice(rooted(Collective::reduce, request.inner, largest));  // the leader receives, and later sends
    result.inside.messages *= parts;
  } else if (largest > 1) {
    result.inside = twice(half(request.inner, largest));
    result.inside.messages *= parts * units / largest;
  }
  if (island_count > 1) {
    const double owned = leader ? 1 : (units + smallest - 1) / smallest;  // units of the busiest owner
    const auto whole = traffic(Collective::all_reduce, request.outer, island_count);
    result.between = scaled(whole, owned);
    result.between.bytes = whole.bytes * owned / units;
    result.between.reduced = whole.reduced * owned / units;
    result.island_bytes_between = whole.bytes;
  }
  result.island_bytes_inside = result.inside.total;
  return result;
}

double link_us(const Traffic& part, const LinkProfile& link, double bytes, double island_bytes, double crowd) {
  const double latency = part.rounds * (link.latency_us + (crowd > 1 ? link.switch_us : 0));
  const double messages = part.messages + part.bytes * bytes / link.slice_bytes;
  const double cpu = part.batches * link.per_batch_cpu_us + messages * link.per_message_cpu_us +
                     part.reduced * bytes / link.reduce_bytes_per_us;
  double transfer = part.bytes * bytes / link.bytes_per_us;
  if (link.host_bytes_per_us > 0) transfer = std::max(transfer, island_bytes * bytes / link.host_bytes_per_us);
  return latency + cpu * crowd + transfer;
}

}  // namespace

LinkProfile shared_memory_profile(uint32_t cores) {
  return {.latency_us = 0.4,
          .bytes_per_us = 8'000,
          .host_bytes_per_us = 8'000.0 * cores,
          .per_message_cpu_us = 0.15,
          .per_batch_cpu_us = 0.05,
          .reduce_bytes_per_us = 10'000,
          .slice_bytes = 128 * 1024,
          .switch_us = 4,
          .cores = cores};
}

LinkProfile loopback_tcp_profile(uint32_t cores) {
  return {.latency_us = 6,
          .bytes_per_us = 4'000,
          .host_bytes_per_us = 4'000.0 * cores,
          .per_message_cpu_us = 0.5,
          .per_batch_cpu_us = 2.5,
          .reduce_bytes_per_us = 10'000,
          .slice_bytes = 256 * 1024,
          .switch_us = 4,
          .cores = cores};
}

LinkProfile network_tcp_profile(uint32_t cores) {
  return {.latency_us = 25,
          .bytes_per_us = 1'150,
          .host_bytes_per_us = 1'150,
          .per_message_cpu_us = 0.5,
          .per_batch_cpu_us = 2.5,
          .reduce_bytes_per_us = 10'000,
          .slice_bytes = 256 * 1024,
          .switch_us = 4,
          .cores = cores};
}

Traffic traffic(Collective collective, ScheduleKind kind, uint32_t world) {
  if (world <= 1 || kind == automatic || kind == hierarchical) return {};
  const double n = world;
  switch (collective) {
    case Collective::all_reduce:
      if (kind == one_shot) return all_to_each(world, n - 1, n - 1);
      return kind == two_step || kind == ring || kind == halving_doubling ? twice(half(kind, world)) : Traffic{};
    case Collective::reduce_scatter:
    case Collective::all_gather: {
      if (kind != direct && kind != ring && kind != halving_doubling) return {};
      auto one = half(kind, world);
      if (collective == Collective::all_gather) one.reduced = 0;
      return one;
    }
    case Collective::broadcast:
    case Collective::reduce: return kind == one_shot ? Traffic{} : rooted(collective, kind, world);
    case Collective::gather:
    case Collective::scatter: return kind == direct || kind == tree ? blocks(kind, world) : Traffic{};
    case Collective::all_to_all: return kind == direct ? all_to_each(world, (n - 1) / n, 0) : Traffic{};
    case Collective::barrier: {
      if (kind == one_shot) return all_to_each(world, 0, 0);
      const double rounds = log2_ceil(world);
      return kind == halving_doubling ? Traffic{.rounds = rounds, .batches = rounds, .messages = rounds} : Traffic{};
    }
    case Collective::send:
    case Collective::recv: return {};
  }
  return {};
}

Load load(const LoadRequest& request) {
  if (request.kind == hierarchical) return hierarchical_load(request);
  const auto whole = traffic(request.collective, request.kind, request.world);
  if (request.islands.size() <= 1 || request.world <= 1)
    return {.inside = whole, .between = {}, .island_bytes_inside = whole.total};
  if (request.kind == ring) return ring_load(whole, request);
  if (request.kind == tree) return tree_load(whole, request);
  return spread_load(whole, request);
}

double predicted_us(const TimeRequest& request) {
  const auto crowd = [&](const LinkProfile& link) {
    return std::max(1.0, static_cast<double>(request.largest_island) / link.cores);
  };
  const auto& load = request.load;
  const double inside =
      link_us(load.inside, request.inside, request.bytes, load.island_bytes_inside, crowd(request.inside));
  const double between =
      link_us(load.between, request.between, request.bytes, load.island_bytes_between, crowd(request.between));
  return load.side_by_side ? std::max(inside, between) : inside + between;
}

}  // namespace unisono

// Does the arithmetic of a lossy operation: encodes the data to send, stores the data that arrives, and sums this rank's shard.
#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "kernels/dispatch.h"
#include "lossy/lossy_operation.h"

namespace unisono {

namespace {
// A run (consecutive ranges that are summed in one call) has at most this many ranges. This limits the memory of the
// estimator's sums.
constexpr uint32_t run_max = 1024;
}  // namespace

size_t LossyOperation::element_size() const { return element_bytes(setup_.dtype); }

uint32_t LossyOperation::passes() const {
  if (setup_.geometry->cut().codec.is_plain()) return 0;
  return static_cast<uint32_t>(phases_[0].runs) + static_cast<uint32_t>(phases_[1].runs);
}

kernels::BlockCounts LossyOperation::block_counts() const {
  const auto& estimated = estimator_.counts();
  return {.saturated = blocks_.saturated + estimated.saturated - estimated_before_.saturated,
          .nonfinite_groups = blocks_.nonfinite_groups + estimated.nonfinite_groups - estimated_before_.nonfinite_groups};
}

// Encodes a shard range by range, because each range is a separate message. If `message` is null, writes the messages to
// result_.
void LossyOperation::encode_shard(Rank owner, DType dtype, const void* elements, std::byte* message) {
  const auto& geometry = *setup_.geometry;
  const auto bytes = geometry.shard_bytes(owner);
  if (bytes == 0) return;
  if (message == nullptr) {
    result_.resize(bytes);
    message = result_.data();
  }
  const auto& codec = geometry.cut().codec;
  if (codec.is_plain() && codec.dtype == dtype) return kernels::copy(message, elements, bytes);
  const auto shard = geometry.shard(owner);
  for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
    const auto span = geometry.range(owner, range);
    encode({.codec = codec,
            .dtype = dtype,
            .elements = static_cast<const std::byte*>(elements) + (span.begin - shard.begin) * element_bytes(dtype),
            .count = span.count(),
            .message = message + geometry.offset(range)},
           blocks_);
  }
}

uint32_t LossyOperation::deadline_us(uint32_t phase) const {
  return static_cast<uint32_t>(std::min<Nanos>(setup_.announced[phase] / microsecond, UINT32_MAX));
}

void LossyOperation::send_contributions() {
  const auto& geometry = *setup_.geometry;
  outgoing_at_.resize(world() + 1);
  size_t total = 0;
  for (Rank owner = 0; owner < world(); ++owner) {
    outgoing_at_[owner] = total;
    if (owner != setup_.self) total += geometry.shard_bytes(owner);
  }
  outgoing_at_[world()] = total;
  outgoing_.resize(total);
  // Each rank begins with a different owner. Otherwise all ranks would send to the same rank at once.
  for (uint32_t i = 1; i < world(); ++i) {
    const Rank owner = (setup_.self + i) % world();
    const auto bytes = geometry.shard_bytes(owner);
    if (bytes == 0) continue;
    auto* message = outgoing_.data() + outgoing_at_[owner];
    encode_shard(owner, setup_.dtype,
                 static_cast<const std::byte*>(setup_.input) + geometry.shard(owner).begin * element_size(), message);
    port_->send_stream({.to = owner,
                        .name = {setup_.op, 0},
                        .bytes = {message, bytes},
                        .range_bytes = geometry.range_bytes(),
                        .deadline_us = deadline_us(0)});
  }
}

void LossyOperation::publish(bool with_contributors) {
  const auto bytes = setup_.geometry->shard_bytes(setup_.self);
  if (bytes == 0) return;
  for (uint32_t i = 1; i < world(); ++i) {
    port_->send_stream(
        {.to = (setup_.self + i) % world(),
         .name = {setup_.op, 1},
         .bytes = {result_.data(), bytes},
         .range_bytes = setup_.geometry->range_bytes(),
         .contributors = with_contributors ? std::span<const uint16_t>(contributors_) : std::span<const uint16_t>(),
         .deadline_us = deadline_us(1)});
  }
}

std::byte* LossyOperation::own_output() const {
  auto* output = static_cast<std::byte*>(setup_.output);
  return setup_.collective == Collective::reduce_scatter ? output
                                                         : output + setup_.geometry->shard(setup_.self).begin * element_size();
}

void LossyOperation::store_range(uint32_t phase, Rank from, uint32_t range, std::span<const std::byte> payload) {
  const auto& geometry = *setup_.geometry;
  // The range that arrives next is probably the one behind this range. Prefetch its place in memory, which is not yet in the
  // cache.
  const auto store = [&](std::byte* to, size_t left) {
    std::memcpy(to, payload.data(), payload.size());
    prefetch_to_write({to + payload.size(), std::min(payload.size(), left - payload.size())});
  };
  if (phase == 0) {
    const size_t at = geometry.offset(range), bytes = geometry.shard_bytes(setup_.self);
    store(staging_.data() + from * bytes + at, bytes - at);
    return;
  }
  const auto span = geometry.range(from, range);
  auto* target = static_cast<std::byte*>(setup_.output) + span.begin * element_size();
  const auto& codec = geometry.cut().codec;
  if (codec.is_plain() && codec.dtype == setup_.dtype) {
    store(target, (geometry.shard(from).end - span.begin) * element_size());
    return;
  }
  decode({.codec = codec, .message = payload.data(), .dtype = setup_.dtype, .elements = target, .count = span.count()},
         blocks_);
}

// Returns the length of the run that begins with range `first`. A run consists of consecutive ranges that arrived from the same
// ranks, so one call can sum it. Encoded ranges are separate messages, so each of them is a run of its own.
uint32_t LossyOperation::run_of(uint32_t first) const {
  const auto ranges = setup_.geometry->ranges(setup_.self);
  if (!setup_.geometry->cut().codec.is_plain()) return 1;
  uint32_t run = 1;
  const auto same_senders = [&](uint32_t range) {
    for (Rank from = 0; from < world(); ++from) {
      if (from != setup_.self &&
          phases_[0].streams[from].arrivals.arrived(range) != phases_[0].streams[from].arrivals.arrived(first))
        return false;
    }
    return true;
  };
  while (first + run < ranges && run < run_max && same_senders(first + run)) ++run;
  return run;
}

void LossyOperation::reduce_run(uint32_t first, uint32_t count) {
  const auto& geometry = *setup_.geometry;
  const auto shard = geometry.shard(setup_.self);
  const auto begin = geometry.range(setup_.self, first).begin - shard.begin;
  const auto elements = geometry.range(setup_.self, first + count - 1).end - shard.begin - begin;
  uint32_t received = 0;
  present_.assign(world(), nullptr);
  for (Rank from = 0; from < world(); ++from) {
    if (from == setup_.self || !phases_[0].streams[from].arrivals.arrived(first)) continue;
    present_[from] = staging_.data() + from * geometry.shard_bytes(setup_.self) + geometry.offset(first);
    ++received;
  }
  const auto* own = static_cast<const std::byte*>(setup_.input) + (shard.begin + begin) * element_size();
  const auto kind = estimator_.estimate(
      {.codec = geometry.cut().codec,
       .dtype = setup_.dtype,
       .contributions = present_,
       .own = own,
       .owner = setup_.self,
       .count = elements,
       .mean = setup_.mean,
       .estimator = setup_.estimator,
       .on_empty = setup_.on_empty,
       .own_exact = setup_.own_exact,
       .fp32_output = is_wide(),
       .output = is_wide() ? static_cast<void*>(wide_.data() + begin) : own_output() + begin * element_size()});
  (kind == RangeKind::full ? counts_.full : kind == RangeKind::empty ? counts_.empty : counts_.reduced) += count;
  std::fill_n(contributors_.begin() + first, count, static_cast<uint16_t>(received + 1));
}

// Replaces this rank's results by the values that the other ranks decode, so that all ranks have equal results.
void LossyOperation::decode_own() {
  const auto& geometry = *setup_.geometry;
  const auto& codec = geometry.cut().codec;
  if (codec.is_plain()) return;
  for (uint32_t range = 0; range < geometry.ranges(setup_.self); ++range) {
    const auto span = geometry.range(setup_.self, range);
    decode({.codec = codec,
            .message = result_.data() + geometry.offset(range),
            .dtype = setup_.dtype,
            .elements = own_output() + (span.begin - geometry.shard(setup_.self).begin) * element_size(),
            .count = span.count()},
           blocks_);
  }
}

// For all_gather: writes this rank's shard into the output, with the values that the other ranks decode.
void LossyOperation::write_own() {
  const auto elements = setup_.geometry->shard(setup_.self).count();
  if (elements == 0) return;
  if (!setup_.geometry->cut().codec.is_plain()) return decode_own();
  if (setup_.input != own_output()) kernels::copy(own_output(), setup_.input, elements * element_size());
}

// Reduces this rank's shard, and encodes the result for phase 1. Returns false if a range is empty and on_empty is fail.
bool LossyOperation::reduce_shard() {
  const auto& geometry = *setup_.geometry;
  const auto ranges = geometry.ranges(setup_.self);
  if (is_wide()) wide_.resize(geometry.shard(setup_.self).count());
  EffectiveContributors effective(world());
  for (uint32_t first = 0; first < ranges;) {
    const auto run = run_of(first);
    reduce_run(first, run);
    const auto elements = geometry.range(setup_.self, first + run - 1).end - geometry.range(setup_.self, first).begin;
    effective.add(contributors_[first] - 1u, elements, setup_.on_empty);
    first += run;
  }
  effective_ = ranges == 0 ? world() : effective.value();
  if (counts_.empty > 0 && setup_.on_empty == OnEmpty::fail) return false;
  if (phases_[1].runs && ranges > 0) {
    if (is_wide()) encode_shard(setup_.self, DType::f32, wide_.data(), nullptr);
    else encode_shard(setup_.self, setup_.dtype, own_output(), nullptr);
    decode_own();
  }
  return true;
}

}  // namespace unisono

// Handles the events, timers and phases of a lossy operation. The arithmetic is in lossy_reduce.cc.
#include "lossy/lossy_operation.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/concat.h"
#include "executor/absence.h"
#include "lossy/delivery_policy.h"

namespace unisono {

namespace {

constexpr Nanos repair_interval_min = 2 * millisecond;
constexpr Nanos idle_interval_min = 5 * millisecond;
// If a rank that has sent data does not answer this many repair requests, it counts as gone.
constexpr int unanswered_requests_max = 4;

// Clears the bits of all ranges that are not in `needed`. Bit 0 of the bitmap stands for range `first`. Returns false if no bit
// is left.
bool keep_needed(std::span<const uint32_t> needed, uint32_t first, std::span<std::byte> bitmap) {
  std::array<std::byte, repair_bitmap_bytes_max> mask{};
  bool any = false;
  for (auto it = std::ranges::lower_bound(needed, first); it != needed.end() && *it < first + 8 * bitmap.size(); ++it)
    mask[(*it - first) / 8] |= std::byte{1} << ((*it - first) % 8);
  for (size_t i = 0; i < bitmap.size(); ++i) any |= (bitmap[i] &= mask[i]) != std::byte{0};
  return any;
}

}  // namespace

void LossyOperation::start(StreamPort& port, Nanos now) {
  port_ = &port;
  started_ = ended_ = now;
  done_ = false;
  status_ = {};
  counts_ = {};
  effective_ = 0;
  behind_ = 0;
  blocks_ = {};
  estimated_before_ = estimator_.counts();
  const auto& geometry = *setup_.geometry;
  contributors_.assign(geometry.ranges(setup_.self), 0);
  last_seen_.assign(world(), -1);
  other_call_.assign(world(), 0);
  answers_.assign(world(), {});
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    auto& phase = phases_[number];
    phase.runs = number == 0 ? setup_.collective != Collective::all_gather : setup_.collective != Collective::reduce_scatter;
    phase.open = phase.closed = false;
    phase.start = phase.close = now;
    phase.streams.resize(world());
    for (Rank from = 0; from < world(); ++from) {
      auto& stream = phase.streams[from];
      stream.arrivals.reset(geometry.ranges(owner_of(number, from)));
      stream.clock = {};
      stream.duplicate = stream.late = stream.repaired = 0;
      stream.missing = 0;
      stream.needed = static_cast<uint32_t>(needed_of(number, from).size());
      stream.last_request = -1;
      stream.next_request_at = never;
      stream.lost = stream.all_sent = stream.confirmed = stream.early_tail = stream.early_end = false;
      stream.early_first = stream.early_last = never;
    }
  }
  if (phases_[0].runs) {
    staging_.resize(geometry.shard_bytes(setup_.self) * world());
    send_contributions();
    open_phase(0, now);
  } else {
    encode_shard(setup_.self, setup_.dtype, setup_.input, nullptr);
    write_own();
    publish(false);
    open_phase(1, now);
  }
  step_all(now);
}

void LossyOperation::open_phase(uint32_t number, Nanos now) {
  auto& phase = phases_[number];
  phase.open = true;
  phase.start = now;
  for (Rank from = 0; from < world(); ++from) {
    if (from == setup_.self) continue;
    auto& stream = phase.streams[from];
    auto limits = setup_.phases[number].limits;
    if (stream.needed > 0) limits.hard = std::max(limits.hard, setup_.needed_hard);
    stream.clock.begin(now, limits, stream.arrivals.ranges() > 0);
    if (stream.early_first != never) stream.clock.arrived(stream.early_first, false, false);
    if (stream.early_last != never) stream.clock.arrived(stream.early_last, stream.early_tail, stream.arrivals.complete());
    if (stream.early_end) stream.clock.end_seen(now);
  }
}

DatagramFault LossyOperation::data(Rank from, const DatagramHeader& header, std::span<const std::byte> payload, Nanos now) {
  if (header.phase >= lossy_phases || !phases_[header.phase].runs) return DatagramFault::place;
  last_seen_[from] = std::max(last_seen_[from], now);
  auto& phase = phases_[header.phase];
  auto& stream = phase.streams[from];
  const auto owner = owner_of(header.phase, from);
  uint32_t range = 0;
  if (!setup_.geometry->find(owner, header.slice, header.packet_index, range)) return DatagramFault::place;
  if (payload.size() != setup_.geometry->bytes(owner, range)) return DatagramFault::size;
  const auto& codec = setup_.geometry->cut().codec;
  if (codec.quantizes() && !check_message(codec, payload, setup_.geometry->range(owner, range).count()).ok())
    return DatagramFault::size;
  if (phase.closed) {
    ++stream.late;
    return DatagramFault::late;
  }
  if (!stream.arrivals.mark(range)) {
    ++stream.duplicate;
    return DatagramFault::duplicate;
  }
  if ((header.flags & datagram_repaired) != 0) ++stream.repaired;
  if (stream.needed > 0 && std::ranges::binary_search(needed_of(header.phase, from), range)) --stream.needed;
  store_range(header.phase, from, range, payload);
  const bool tail = (header.flags & datagram_tail) != 0;
  if (phase.open) {
    stream.clock.arrived(now, tail, stream.arrivals.complete());
    step(header.phase, from, now);
  } else {
    stream.early_first = std::min(stream.early_first, now);
    stream.early_last = now;
    stream.early_tail |= tail;
  }
  return DatagramFault::none;
}

void LossyOperation::end_seen(Rank from, const DatagramHeader& header, Nanos now) {
  if (header.phase >= lossy_phases || !phases_[header.phase].runs) return;
  last_seen_[from] = std::max(last_seen_[from], now);
  auto& phase = phases_[header.phase];
  auto& stream = phase.streams[from];
  stream.all_sent = true;
  if (phase.closed || stream.confirmed) {
    // The sender repeats its `end` datagram because it does not know that this rank needs nothing more: tell it again.
    if (phase.open) port_->request_repair(from, {setup_.op, header.phase}, 0, 0, {});
    return;
  }
  if (!phase.open) {
    stream.early_end = true;
    return;
  }
  stream.clock.end_seen(now);
  step(header.phase, from, now);
}

void LossyOperation::other_call_seen(Rank from, Nanos now) {
  if (done_) return;
  last_seen_[from] = std::max(last_seen_[from], now);
  other_call_[from] = 1;
}

void LossyOperation::request_seen(Rank from, const StreamRequest& request, Nanos now) {
  if (done_) return;
  last_seen_[from] = std::max(last_seen_[from], now);
  if (request.kind == StreamRequest::Kind::pending && request.stream.op == setup_.op && request.waits_for < world())
    answers_[from] = {.at = now, .waits_for = request.waits_for};
}

bool LossyOperation::will_send(uint32_t phase) const {
  return !done_ && phase < lossy_phases && phases_[phase].runs && !phases_[phase].open;
}

Rank LossyOperation::waits_for() const {
  for (const auto& phase : phases_) {
    if (!phase.open || phase.closed) continue;
    for (Rank from = 0; from < phase.streams.size(); ++from) {
      if (waits_for_stream(phase, from)) return from;
    }
  }
  return setup_.self;
}

std::span<const uint32_t> LossyOperation::needed_of(uint32_t number, Rank from) const {
  return number == 1 && from < setup_.needed.size() ? std::span<const uint32_t>(setup_.needed[from])
                                                    : std::span<const uint32_t>();
}

bool LossyOperation::must_repair(uint32_t number, const LossyStream& stream) const {
  return stream.needed > 0 || exceeds_loss_budget(number, stream);
}

bool LossyOperation::exceeds_loss_budget(uint32_t number, const LossyStream& stream) const {
  return DeliveryPolicy::needs_repair(stream.arrivals.missing_fraction(), setup_.loss_budget, setup_.phases[number].completes);
}

// Decides whether one stream ends now, and whether to request repairs.
void LossyOperation::step(uint32_t number, Rank from, Nanos now) {
  auto& phase = phases_[number];
  auto& stream = phase.streams[from];
  if (stream.confirmed || stream.lost) return;
  stream.next_request_at = never;
  if (now >= silent_at(number, from)) stream.clock.close(now);
  if (stream.clock.update(now, must_repair(number, stream)) != StreamEnd::open) {
    stream.confirmed = true;
    if (stream.arrivals.ranges() > 0) port_->request_repair(from, {setup_.op, static_cast<uint8_t>(number)}, 0, 0, {});
    return;
  }
  const auto answer = port_->answer_time(from);
  if (stream.clock.needs_repair()) {
    stream.next_request_at = stream.last_request < 0 ? now : stream.last_request + std::max(repair_interval_min, answer);
  } else if (setup_.phases[number].completes || stream.needed > 0) {
    const auto last_arrival = stream.clock.heard() ? std::max(stream.clock.last(), phase.start) : phase.start;
    stream.next_request_at = std::max(last_arrival, stream.last_request) + std::max(idle_interval_min, answer);
    // If the sender has sent everything, the missing ranges are lost. If nothing at all was heard of it, it has only
    // LossyPhaseSetup::silent to show that it lives. In both cases, request them without a further wait.
    const bool unheard = setup_.phases[number].silent != never && last_seen_[from] < 0;
    if (stream.all_sent || unheard)
      stream.next_request_at = std::min(
          stream.next_request_at, stream.last_request < 0 ? now : stream.last_request + std::max(repair_interval_min, answer));
  }
  if (stream.next_request_at > now) return;
  request_missing(number, from, stream, now);
  stream.next_request_at = now + std::max(stream.clock.needs_repair() ? repair_interval_min : idle_interval_min, answer);
}

// Returns the time when the rank counts as gone if no datagram from it arrives before. A rank that has already sent data gets
// more time than one that has sent nothing.
Nanos LossyOperation::silent_at(uint32_t number, Rank from) const {
  const auto silent = setup_.phases[number].silent;
  if (silent == never) return never;
  const auto start = phases_[number].start, last_seen = last_seen_[from];
  return last_seen < 0 ? start + silent
                       : std::max(start, last_seen) +
                             std::max({silent, lossy_silence_min, unanswered_requests_max * port_->answer_time(from)});
}

// Requests the missing ranges, with one request for each slice. If the loss is within the budget, requests only the ranges in
// LossySetup::needed.
void LossyOperation::request_missing(uint32_t number, Rank from, LossyStream& stream, Nanos now) {
  stream.last_request = now;
  const bool only_needed = !exceeds_loss_budget(number, stream);
  const auto owner = owner_of(number, from);
  const auto ranges = setup_.geometry->ranges(owner);
  std::array<std::byte, repair_bitmap_bytes_max> bitmap;
  for (uint32_t at = stream.arrivals.next_missing(0); at < ranges; at = stream.arrivals.next_missing(at)) {
    const auto slice = at / ranges_per_slice;
    const auto end = std::min(ranges, (slice + 1) * ranges_per_slice);
    // The bitmap of a slice fits into the smallest datagram.
    const auto bytes = (end - at + 7) / 8;
    stream.arrivals.missing_bitmap(at, end, std::span(bitmap).first(bytes));
    if (only_needed && !keep_needed(needed_of(number, from), at, std::span(bitmap).first(bytes))) {
      at = end;
      continue;
    }
    port_->request_repair(from, {setup_.op, static_cast<uint8_t>(number)}, static_cast<uint16_t>(slice), at % ranges_per_slice,
                          std::span(bitmap).first(bytes));
    at = end;
  }
}

void LossyOperation::step_all(Nanos now) {
  for (uint32_t number = 0; number < lossy_phases && !done_; ++number) {
    auto& phase = phases_[number];
    if (!phase.open || phase.closed) continue;
    for (Rank from = 0; from < world(); ++from) {
      if (from != setup_.self) step(number, from, now);
    }
    if (all_ended(phase)) close_phase(number, now);
  }
}

// The stream of a rank that makes another call counts as open, because the phase must not close.
bool LossyOperation::waits_for_stream(const LossyPhase& phase, Rank from) const {
  const auto& stream = phase.streams[from];
  return from != setup_.self && !stream.lost && (stream.clock.end() == StreamEnd::open || other_call_[from] != 0);
}

bool LossyOperation::all_ended(const LossyPhase& phase) const {
  for (Rank from = 0; from < phase.streams.size(); ++from) {
    if (waits_for_stream(phase, from)) return false;
  }
  return true;
}

void LossyOperation::wake(Nanos now) {
  if (done_) return;
  step_all(now);
  if (done_ || now < setup_.deadline) return;
  finish(late_status(now), now);
}

Nanos LossyOperation::due() const {
  if (done_) return never;
  auto next = setup_.deadline;
  for (const auto& phase : phases_) {
    if (!phase.open || phase.closed) continue;
    bool open = false;
    for (Rank from = 0; from < phase.streams.size(); ++from) {
      const auto& stream = phase.streams[from];
      if (!waits_for_stream(phase, from)) continue;
      open = true;
      if (stream.clock.end() != StreamEnd::open) continue;
      next = std::min({next, stream.clock.due(), stream.next_request_at});
      next = std::min(next, silent_at(static_cast<uint32_t>(&phase - phases_.data()), from));
    }
    if (!open) return 0;  // all streams have ended, so the phase closes at the next wake()
  }
  return next;
}

void LossyOperation::close_phase(uint32_t number, Nanos now) {
  auto& phase = phases_[number];
  phase.closed = true;
  phase.close = now;
  for (Rank from = 0; from < world(); ++from) {
    if (from != setup_.self) phase.streams[from].missing = phase.streams[from].arrivals.missing_count();
  }
  if (number == 1) {
    const bool whole = std::all_of(phase.streams.begin(), phase.streams.end(), [&](const auto& s) { return s.missing == 0; });
    // A missing range is an error for all_reduce, because every rank must get the whole result. For all_gather it is an error
    // only if `reliable` is set; otherwise the output keeps its old values.
    return finish(whole || (setup_.collective != Collective::all_reduce && !setup_.reliable) ? Status() : incomplete(1, now),
                  now);
  }
  if (setup_.reliable && std::any_of(phase.streams.begin(), phase.streams.end(), [](const auto& s) { return s.missing > 0; }))
    return finish(incomplete(0, now), now);
  if (!reduce_shard()) {
    return finish({Code::late, concat("no other rank's contribution arrived for ", counts_.empty, " of ", contributors_.size(),
                                      " ranges, and on_empty is fail")},
                  now);
  }
  if (!phases_[1].runs) return finish({}, now);
  publish(true);
  open_phase(1, now);
  step_all(now);
}

// Returns the error of an operation that has not ended at its deadline.
Status LossyOperation::late_status(Nanos now) const {
  const auto other = std::ranges::find(other_call_, uint8_t{1});
  if (other == other_call_.end()) return incomplete(phases_[0].runs && !phases_[0].closed ? 0u : 1u, now);
  const auto rank = static_cast<Rank>(other - other_call_.begin());
  return {Code::invalid, concat("calls differ: rank ", rank, " (", port_->location(rank),
                                ") makes another call than this rank, and its announcement has not arrived")};
}

// Returns an error that names the incomplete streams and their missing bytes.
Status LossyOperation::incomplete(uint32_t number, Nanos now) const {
  std::string text;
  for (Rank from = 0; from < world(); ++from) {
    if (from == setup_.self) continue;
    const auto& stream = phases_[number].streams[from];
    const auto missing = stream.arrivals.missing_count();
    if (missing == 0) continue;
    const auto bytes = std::min<uint64_t>(uint64_t{missing} * setup_.geometry->range_bytes(),
                                          setup_.geometry->shard_bytes(owner_of(number, from)));
    if (!text.empty()) text += "; ";
    text += concat("rank ", from, " (", port_->location(from), "): ", missing, " of ", stream.arrivals.ranges(), " ranges, ",
                   bytes, " bytes, missing", silence_text(number, from, now));
  }
  return {Code::late, std::string(number == 0 ? "contributions" : "results") + " incomplete: " + text};
}

// Says that a stream has not begun, and what its sender has said about that.
std::string LossyOperation::silence_text(uint32_t number, Rank from, Nanos now) const {
  if (phases_[number].streams[from].clock.heard()) return {};
  const auto& answer = answers_[from];
  if (answer.at < 0) return ", no datagram received";
  const auto what = answer.waits_for == from
                        ? std::string("is sending them")
                        : concat("waits for rank ", answer.waits_for, " (", port_->location(answer.waits_for), ")");
  return concat(", no datagram received, but ", (now - answer.at) / millisecond, " ms ago it answered that it ", what);
}

void LossyOperation::peer_lost(Rank rank, const Status& why, Nanos now) {
  if (done_) return;
  for (auto& phase : phases_) {
    if (rank < phase.streams.size()) phase.streams[rank].lost = true;
  }
  // The operation fails if this rank still needs data from the lost rank in a phase that must be complete.
  for (uint32_t number = 0; number < lossy_phases; ++number) {
    const bool completes = setup_.reliable || (number == 1 && setup_.collective == Collective::all_reduce);
    if (!phases_[number].runs || !completes || phases_[number].streams[rank].arrivals.complete()) continue;
    return finish({why.code(), describe_absence(rank, why)}, now);
  }
  step_all(now);
}

void LossyOperation::fall_behind(uint32_t operations, Nanos now) {
  if (done_) return;
  behind_ = operations;
  finish({Code::late, concat("the others are ", operations, " operations ahead")}, now);
}

void LossyOperation::fail(const Status& why, Nanos now) {
  if (!done_) finish(why, now);
}

void LossyOperation::finish(Status status, Nanos now) {
  for (auto& phase : phases_) {
    if (!phase.runs || phase.closed) continue;
    phase.closed = true;
    phase.close = phase.open ? now : phase.start;
    for (Rank from = 0; from < world(); ++from) {
      if (from != setup_.self) phase.streams[from].missing = phase.streams[from].arrivals.missing_count();
    }
  }
  status_ = std::move(status);
  ended_ = now;
  done_ = true;
}

void LossyOperation::drop_streams() {
  if (port_ == nullptr || !setup_.geometry) return;
  for (Rank to = 0; to < world(); ++to) {
    if (to == setup_.self) continue;
    for (uint8_t number = 0; number < lossy_phases; ++number) port_->drop_stream(to, {setup_.op, number});
  }
  port_ = nullptr;
}

}  // namespace unisono

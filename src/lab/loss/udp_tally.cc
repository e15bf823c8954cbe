#include "lab/loss/udp_tally.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/concat.h"
#include "lab/loss/loss_run.h"
#include "lossy/lossy_operation.h"
#include "wire/checksum.h"

namespace unisono::sim {
namespace {

using End = DeliveryReport::End;

constexpr Nanos report_delay = 2 * second;  // for this time after the end of a fault, ranks may still report it
constexpr uint64_t blocks_wanted = 40;
constexpr float rounding = 1e-4f;

// Returns how long a phase with this deadline may take, in µs (check E4 of docs/design/methods/packet_loss.md).
int64_t allowed_us(int64_t hard_us) { return hard_us + std::max<int64_t>(2000, hard_us / 10); }

// Returns a number that marks the position of an element, and that fp32 represents exactly. It is added to each value, so that
// data in a wrong place can be recognised.
float position_mark(size_t element) { return static_cast<float>(element % 64) / 64; }

bool is_absence(PeerFaultKind kind) { return kind != PeerFaultKind::slow; }

// True if the message names this rank. For example, "rank 30" does not name rank 3.
bool names(const std::string& message, Rank rank) {
  const auto word = concat("rank ", rank);
  for (auto at = message.find(word); at != message.npos; at = message.find(word, at + 1)) {
    const auto after = at + word.size();
    if (after == message.size() || message[after] < '0' || message[after] > '9') return true;
  }
  return false;
}

}  // namespace

Rank UdpMembership::rank_of(PeerIndex process) const {
  return static_cast<Rank>(std::find(members.begin(), members.end(), process) - members.begin());
}

UdpTally::UdpTally(const UdpRunSettings& settings) : settings_(settings) {
  const auto steps =
      std::max<uint64_t>(1, (settings.operations - std::min(settings.operations, settings.burn_in)) / blocks_wanted);
  outcome_.deviation = outcome_.square = outcome_.away_share = BlockMeans(steps);
  for (const auto& fault : settings.model.faults) outcome_.faults.push_back({.fault = fault});
  outcome_.by_distance.resize(settings.peers);
  named_by_.assign(settings.model.faults.size(), std::vector<bool>(settings.peers));
}

void UdpTally::fill(Rank rank, std::vector<float>& values) const {
  const auto world = membership_.world();
  values.resize(membership_.geometry->cut().elements);
  for (Rank owner = 0; owner < world; ++owner) {
    const auto own = static_cast<float>(fixed_gradient((rank + world - owner) % world, world));
    const auto shard = membership_.geometry->shard(owner);
    for (auto at = shard.begin; at < shard.end; ++at) values[at] = own + position_mark(at);
  }
}

bool UdpTally::is_absent(PeerIndex process, Nanos at) const {
  return std::any_of(settings_.model.faults.begin(), settings_.model.faults.end(), [&](const PeerFault& fault) {
    return fault.process == process && is_absence(fault.kind) && at >= fault.from &&
           (fault.to == never || at <= fault.to + report_delay);
  });
}

// True if the process is slow, if it is absent, or if it came back within the last 2 s (`report_delay`).
bool UdpTally::is_away(PeerIndex process, Nanos at) const {
  return is_absent(process, at) ||
         std::any_of(settings_.model.faults.begin(), settings_.model.faults.end(),
                     [&](const PeerFault& fault) { return fault.process == process && !is_absence(fault.kind); });
}

bool UdpTally::is_any_away(Nanos now) const {
  for (PeerIndex process = 0; process < settings_.peers; ++process) {
    if (is_away(process, now)) return true;
  }
  return false;
}

std::vector<Rank> UdpTally::silent_ranks(const Completion& completion) const {
  std::vector<Rank> silent;
  if (completion.report.delivery == nullptr) return silent;
  const auto& phases = *completion.report.delivery;
  for (Rank rank = 0; rank < phases.contribute.streams.size(); ++rank) {
    const auto end = phases.contribute.streams[rank].end;
    if (end == End::silent || end == End::lost) silent.push_back(rank);
  }
  return silent;
}

void UdpTally::removed(PeerIndex process) {
  for (auto& record : outcome_.faults) record.removed |= record.fault.process == process && is_absence(record.fault.kind);
}

void UdpTally::ended(const Ended& call, const SocketNetwork& network) {
  const auto& completion = call.completion;
  ++outcome_.ended[completion.status.code()];
  const bool is_behind = completion.report.delivery != nullptr && completion.report.delivery->behind > 0;
  outcome_.behind += is_behind;
  if (!completion.status.ok()) {
    outcome_.failed_without_fault += !is_any_away(call.now);
    note_names(call);
  }
  const auto number = membership_.first_operation + completion.report.number;
  while (number >= operations_.size()) note_fates(network, operations_.emplace_back());
  if (!measuring_ && number >= settings_.burn_in) {
    measuring_ = true;
    before_ = network.fates();
    data_before_ = {network.fates_of_data(0), network.fates_of_data(1)};
  }
  auto& operation = operations_[number];
  if (number >= settings_.burn_in && completion.report.delivery != nullptr && !is_absent(call.process, call.now))
    note_delivery(call, operation);
  if (completion.status.ok()) note_result(call, operation);
}

// Records which ranks are named in the error message of a call.
void UdpTally::note_names(const Ended& call) {
  const auto& message = call.completion.status.message();
  for (Rank rank = 0; rank < membership_.world(); ++rank) {
    if (!names(message, rank)) continue;
    const auto process = membership_.members[rank];
    if (!is_away(process, call.now) && !is_away(call.process, call.now)) {
      if (outcome_.wrongly_named++ == 0)
        outcome_.first_wrong_error = concat("rank ", membership_.rank_of(call.process), ": ", message);
    }
    for (size_t i = 0; i < outcome_.faults.size(); ++i) {
      auto& record = outcome_.faults[i];
      if (record.fault.process != process || call.now < record.fault.from || named_by_[i][call.process]) continue;
      named_by_[i][call.process] = true;
      const auto after = call.now - record.fault.from;
      record.first_named = std::min(record.first_named, after);
      if (!is_away(call.process, call.now))
        record.last_named = record.last_named == never ? after : std::max(record.last_named, after);
    }
  }
}

void UdpTally::note_phase(const DeliveryReport::Phase& phase, int64_t hard_us, PhaseTally& tally) {
  for (const auto& stream : phase.streams) {
    tally.expected += stream.expected;
    tally.missing += stream.missing;
    tally.repaired += stream.repaired;
  }
  if (phase.learning || hard_us <= 0) return;
  ++tally.phases;
  tally.over += phase.duration_us > allowed_us(hard_us);
  tally.longest = std::max(tally.longest, static_cast<double>(phase.duration_us) / static_cast<double>(hard_us));
}

void UdpTally::note_delivery(const Ended& call, Operation& operation) {
  const auto& delivery = *call.completion.report.delivery;
  const auto hard_us = delivery.contribute.hard_us;
  note_phase(delivery.contribute, hard_us, outcome_.contributions);
  note_phase(delivery.result, hard_us, outcome_.results);
  for (Rank rank = 0; rank < delivery.contribute.streams.size(); ++rank) {
    const auto& stream = delivery.contribute.streams[rank];
    ++outcome_.ends[static_cast<size_t>(stream.end)];
    if (stream.end == End::silent || stream.end == End::lost) ++outcome_.silent[membership_.members[rank]];
    operation.expected += stream.expected;
    operation.missing += stream.missing;
    if (membership_.world() != settings_.peers || !call.completion.status.ok()) continue;
    auto& sender = outcome_.by_distance[(rank + membership_.world() - membership_.rank_of(call.process)) % membership_.world()];
    sender.expected += stream.expected;
    sender.missing += stream.missing;
  }
  if (!delivery.contribute.learning && hard_us > 0) note_delay(call, hard_us);
  if (!call.completion.status.ok()) return;
  outcome_.ranges_full += delivery.full_ranges;
  outcome_.ranges_short += delivery.short_ranges;
  outcome_.ranges_empty += delivery.empty_ranges;
  if (delivery.full_ranges + delivery.short_ranges + delivery.empty_ranges == 0) return;
  effective_sum_ += delivery.effective_contributors;
  ++effective_count_;
}

// Records for how long a member was absent during the call, because this may have delayed the call. The call may have succeeded
// or failed.
void UdpTally::note_delay(const Ended& call, int64_t hard_us) {
  const auto began = call.now - call.completion.report.total_us * microsecond;
  Nanos delayed = -1;
  for (const auto& fault : settings_.model.faults) {
    if (!is_absence(fault.kind) || membership_.rank_of(fault.process) == membership_.world()) continue;
    delayed = std::max(delayed, std::min(call.now, fault.to) - std::max(began, fault.from));
  }
  if (delayed <= 0) return;
  const auto delayed_us = delayed / microsecond;
  ++outcome_.delayed;
  // An absence can delay contributions by t_hard. It can also delay results until the absent rank counts as silent.
  outcome_.delayed_over += delayed_us > allowed_us(hard_us + std::max<int64_t>(hard_us, lossy_silence_min / microsecond));
  outcome_.longest_delay = std::max(outcome_.longest_delay, static_cast<double>(delayed_us) / static_cast<double>(hard_us));
}

void UdpTally::note_result(const Ended& call, Operation& operation) {
  operation.durations_us.push_back(call.completion.report.total_us);
  const auto checksum = crc32c(call.result.data(), call.result.size_bytes());
  if (operation.is_known) {
    outcome_.differing += checksum != operation.checksum;
    return;
  }
  operation.is_known = true;
  operation.checksum = checksum;
  measure(call.result);
}

// Measures the error of a result. Every element is a weighted mean of contributions. So even if data is lost, it must not be
// below the smallest or above the largest contribution.
void UdpTally::measure(std::span<const float> result) {
  const auto world = membership_.world();
  const auto values = fixed_gradients(world);
  double truth = 0;
  for (const double value : values) truth += value / world;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto low = static_cast<float>(*least) - rounding, high = static_cast<float>(*most) + rounding;
  double sum = 0, squares = 0;
  for (size_t at = 0; at < result.size(); ++at) {
    const float value = result[at] - position_mark(at);
    outcome_.out_of_range += !(value >= low && value <= high);
    const double away = static_cast<double>(value) - truth;
    sum += away;
    squares += away * away;
  }
  if (!measuring_ || world != settings_.peers) return;
  const auto count = static_cast<double>(result.size());
  outcome_.deviation.add(sum, count);
  outcome_.square.add(squares, count);
}

void UdpTally::note_fates(const SocketNetwork& network, Operation& operation) {
  for (const uint32_t phase : {0u, 1u}) {
    operation.data_sent += network.fates_of_data(phase).sent;
    operation.data_overflowed += network.fates_of_data(phase).overflowed;
  }
}

UdpOutcome UdpTally::finish(const SocketNetwork& network, Nanos now) {
  outcome_.operations = operations_.size();
  outcome_.virtual_time = now;
  outcome_.members = membership_.world();
  if (!measuring_) before_ = network.fates(), data_before_ = {network.fates_of_data(0), network.fates_of_data(1)};
  outcome_.fates = network.fates() - before_;
  for (const uint32_t phase : {0u, 1u}) outcome_.data[phase] = network.fates_of_data(phase) - data_before_[phase];
  outcome_.trace_hash = network.trace_hash();
  outcome_.effective = effective_count_ == 0 ? 0 : effective_sum_ / static_cast<double>(effective_count_);
  Operation last;
  note_fates(network, last);
  for (uint64_t number = 0; number < operations_.size(); ++number) {
    auto& operation = operations_[number];
    const auto& next = number + 1 < operations_.size() ? operations_[number + 1] : last;
    auto& times = operation.durations_us;
    if (number >= settings_.burn_in) {
      outcome_.durations_us.insert(outcome_.durations_us.end(), times.begin(), times.end());
      if (operation.expected > 0)
        outcome_.away_share.add(static_cast<double>(operation.missing), static_cast<double>(operation.expected));
    }
    if (times.empty()) continue;
    std::sort(times.begin(), times.end());
    outcome_.curve.push_back(
        {.number = number,
         .median_us = times[times.size() / 2],
         .longest_us = times.back(),
         .overflowed = next.data_sent == operation.data_sent
                           ? 0
                           : static_cast<double>(next.data_overflowed - operation.data_overflowed) /
                                 static_cast<double>(next.data_sent - operation.data_sent),
         .missing =
             operation.expected == 0 ? 0 : static_cast<double>(operation.missing) / static_cast<double>(operation.expected)});
  }
  std::sort(outcome_.durations_us.begin(), outcome_.durations_us.end());
  for (size_t i = 0; i < outcome_.faults.size(); ++i) {
    auto& record = outcome_.faults[i];
    record.happened = now >= record.fault.from;
    for (PeerIndex process = 0; process < settings_.peers; ++process) {
      if (process == record.fault.process || is_away(process, std::min(now, record.fault.from))) continue;
      ++record.to_be_named_by;
      record.named_by += named_by_[i][process];
    }
  }
  return std::move(outcome_);
}

}  // namespace unisono::sim

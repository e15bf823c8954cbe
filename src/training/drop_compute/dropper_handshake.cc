// How the ranks of DropCompute meet, and what they exchange between steps.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/hash.h"
#include "base/random.h"
#include "training/drop_compute/dropper.h"

namespace unisono::internal {
namespace {

constexpr uint32_t state_magic = 0x43504455;  // "UDPC"
constexpr uint32_t state_version = 1;

uint64_t text_hash(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

}  // namespace

// The data that each rank sends when ranks meet.
struct Dropper::RankState {
  uint64_t was_there = 0;  // 1: it was in the former group
  uint64_t next_step = 0;
  uint64_t counts = 0;       // 1: this rank may compute nothing in a step, or its shard ends
  uint64_t epoch_ended = 0;  // 1: by the previous step
};

Result<std::unique_ptr<Dropper>> Dropper::make(const Group& group, uint32_t micro_batches, const DropOptions& options,
                                               const std::optional<Group>& replica, const Now& now) {
  if (auto status = options.check(micro_batches); !status.ok()) return status;
  if (replica && options.rule == DropOptions::Rule::at)
    return Status(
        Code::invalid,
        "bad_option: the rule at lets each process stop by its own clock; a replica of several needs after or before");
  std::unique_ptr<Dropper> dropper(new Dropper(micro_batches, options, replica, now));
  if (auto status = dropper->meet(group, false); !status.ok()) return status;
  return dropper;
}

Status Dropper::resume(const Group& group, const std::optional<Group>& replica) {
  if (replica) replica_ = replica;
  return meet(group, true);
}

// Hash of the options that must be equal on all ranks.
uint64_t Dropper::digest() const {
  auto shared = options_;
  shared.shard = 0, shared.replay.clear();
  return std::max<uint64_t>(1, mix64(text_hash(shared.to_string()) ^ micro_batches_));
}

// This rank's state changes only after all ranks have met.
Status Dropper::meet(const Group& group, bool was_there) {
  std::vector<uint32_t> all(group.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto own = Group(group).split(all);
  if (!own.ok()) return own.status();
  if (const auto met = own->barrier({.agreement = digest()}); !met.ok()) {
    return met.status().code() == Code::invalid
               ? Status(Code::invalid,
                        "config_mismatch: options of DropCompute or numbers of micro-batches differ: " + met.status().message())
               : met.status();
  }
  const auto told = ask(*own, was_there);
  if (!told.ok()) return told.status();
  std::optional<uint32_t> leader;
  bool counts = false;
  for (uint32_t rank = 0; rank < told->size(); ++rank) {
    const auto& each = (*told)[rank];
    counts = counts || each.counts != 0;
    if (each.was_there != 0 && (!leader || each.next_step > (*told)[*leader].next_step)) leader = rank;
  }
  outer_ = group;
  group_ = *std::move(own);
  counts_ = counts;
  begun_ = runs_ = open_record_ = loaded_ = unsure_ = false;
  start_ = 0;
  reduced_.reset();
  settle();
  window_.clear();
  due_ = DropPolicy::Gather::nothing;
  if (!leader) {
    policy_ = DropPolicy(options_, group_->world_size(), micro_batches_);
  } else {
    // If other ranks completed a step, it includes what this rank computed in it.
    if (was_there && (*told)[*leader].next_step > policy_.next_step()) catch_up((*told)[*leader].epoch_ended != 0);
    if (auto status = take_over(*group_, *leader); !status.ok()) return status;
    policy_.regrouped(group_->world_size());
    if (!was_there) untimed_until_ = policy_.next_step() - 1 + options_.warmup_steps;
    if (auto status = foresee(); !status.ok()) return status;
  }
  uncertain_ = 0;
  window_from_ = policy_.window_from();
  if (recorded_from_ != policy_.recorded_from()) recorded_.clear();
  recorded_from_ = policy_.recorded_from();
  return {};
}

void Dropper::catch_up(bool epoch_ended) {
  const auto used = std::exchange(uncertain_, 0);
  position_ += used;
  if (options_.shard > 0) shard_left_ = epoch_ended ? options_.shard : shard_left_ - used;
  epoch_ended_ = epoch_ended;
}

// Ranks at different steps would exchange the times of different steps.
Status Dropper::agree_on_checkpoints() {
  if (const auto met = group_->barrier({.agreement = policy_.next_step()}); !met.ok()) {
    return met.status().code() == Code::invalid
               ? Status(Code::invalid,
                        "config_mismatch: ranks have loaded checkpoints of different steps; this one's of step " +
                            std::to_string(policy_.next_step() - 1) + ": " + met.status().message())
               : met.status();
  }
  loaded_ = false;
  return {};
}

Result<std::vector<Dropper::RankState>> Dropper::ask(Group& group, bool was_there) const {
  std::vector<RankState> told(group.world_size());
  const bool nothing_possible = options_.rule == DropOptions::Rule::at || options_.min_computed == 0 ||
                                std::find(options_.replay.begin(), options_.replay.end(), 0u) != options_.replay.end();
  told[group.rank()] = {
      .was_there = was_there ? 1u : 0u,
      .next_step = policy_.next_step(),
      .counts = nothing_possible || options_.normalize == DropOptions::Normalize::computed || options_.shard > 0 ? 1u : 0u,
      .epoch_ended = epoch_ended_ ? 1u : 0u};
  const std::span numbers(reinterpret_cast<uint64_t*>(told.data()), told.size() * sizeof(RankState) / sizeof(uint64_t));
  if (auto gathered = group.all_gather(numbers); !gathered.ok()) return gathered.status();
  return told;
}

// Ranks may be one step apart, and some are new: a rank with the most steps sends its state to all.
Status Dropper::take_over(Group& group, uint32_t leader) {
  ByteWriter writer;
  if (group.rank() == leader) policy_.write(writer);
  uint64_t size = writer.view().size();
  if (auto sent = group.broadcast(std::span(&size, 1), leader); !sent.ok()) return sent.status();
  std::vector<uint8_t> bytes(size);
  if (group.rank() == leader)
    std::transform(writer.view().begin(), writer.view().end(), bytes.begin(),
                   [](std::byte byte) { return static_cast<uint8_t>(byte); });
  if (auto sent = group.broadcast(std::span(bytes), leader); !sent.ok()) return sent.status();
  ByteReader reader(std::as_bytes(std::span(bytes)));
  if (!policy_.read(reader)) return {Code::internal, "rank " + std::to_string(leader) + " sent an invalid state"};
  return {};
}

Result<std::optional<ComputeTrace>> Dropper::trace_of(uint64_t from, uint64_t until, bool only_some) {
  const size_t steps = until - from, row = 1 + micro_batches_, world = group_->world_size();
  std::vector<int64_t> table(steps * row * world);
  const auto mine = std::span(table).subspan(group_->rank() * steps * row, steps * row);
  for (const auto& record : recorded_) {
    if (record.step < from || record.step >= until || record.wall_ns == 0) continue;
    const auto at = mine.subspan((record.step - from) * row, row);
    at[0] = record.wall_ns;
    std::copy(record.ends.begin(), record.ends.end(), at.begin() + 1);
  }
  // Without a codec: the values are times, and integers.
  if (auto gathered = group_->all_gather(std::span(table), {}, {.codec = Codec()}); !gathered.ok()) return gathered.status();
  const auto cell = [&](size_t rank, size_t step) { return std::span(table).subspan((rank * steps + step) * row, row); };
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < world; ++rank) {
    bool any = !only_some;
    for (size_t step = 0; step < steps && !any; ++step) any = cell(rank, step)[0] != 0;
    if (any) ranks.push_back(rank);
  }
  ComputeTrace trace{.workers = static_cast<uint32_t>(ranks.size()), .micro_batches = micro_batches_, .ends = {}, .walls = {}};
  for (size_t step = 0; step < steps; ++step) {
    if (std::any_of(ranks.begin(), ranks.end(), [&](size_t rank) { return cell(rank, step)[0] == 0; })) continue;
    for (const auto rank : ranks) {
      trace.walls.push_back(cell(rank, step)[0]);
      trace.ends.insert(trace.ends.end(), cell(rank, step).begin() + 1, cell(rank, step).end());
    }
  }
  if (trace.walls.empty()) return std::optional<ComputeTrace>();
  return std::optional(std::move(trace));
}

// The prediction depends on the ranks in the group. New ranks have recorded nothing and are left out.
Status Dropper::foresee() {
  const auto threshold = policy_.threshold_ns();
  if (!threshold || policy_.recorded_until() <= policy_.recorded_from()) return {};
  const auto trace = trace_of(policy_.recorded_from(), policy_.recorded_until(), true);
  if (!trace.ok()) return trace.status();
  if (*trace) policy_.foresee(**trace);
  return {};
}

// last: the final window of a run, shorter than others.
Status Dropper::gather_window(bool last) {
  constexpr size_t row = sizeof(StepRecord) / sizeof(uint64_t);
  static_assert(sizeof(StepRecord) == 4 * sizeof(uint64_t));
  const size_t steps = policy_.next_step() - policy_.window_from();
  if (steps == 0) return {};  // exchanged before an error
  const size_t world = group_->world_size();
  window_.resize(steps);
  std::vector<StepRecord> all(steps * world);
  std::copy(window_.begin(), window_.end(), all.begin() + static_cast<ptrdiff_t>(group_->rank() * steps));
  const std::span numbers(reinterpret_cast<uint64_t*>(all.data()), all.size() * row);
  if (auto gathered = group_->all_gather(numbers, {}, {.codec = Codec()}); !gathered.ok()) return gathered.status();
  std::vector<std::vector<StepRecord>> ranks;
  for (size_t rank = 0; rank < world; ++rank)
    ranks.emplace_back(all.begin() + static_cast<ptrdiff_t>(rank * steps),
                       all.begin() + static_cast<ptrdiff_t>((rank + 1) * steps));
  for (auto& warning : policy_.window_gathered(ranks, last)) warnings_.push_back(std::move(warning));
  return {};
}

Result<DropReport> Dropper::finish() {
  if (begun_ || unsure_)
    return Status(Code::invalid,
                  begun_ ? "finish() in the middle of a step" : "finish() after a failed step: call resume() first");
  close_last_step(now_());
  if (due_ == DropPolicy::Gather::nothing && policy_.next_step() > policy_.window_from() &&
      policy_.phase() != DropPolicy::Phase::warming_up) {
    if (window_from_ != policy_.window_from()) window_.clear(), window_from_ = policy_.window_from();
    if (auto status = gather_window(true); !status.ok()) return status;
    window_.clear(), window_from_ = policy_.window_from();
  } else if (due_ != DropPolicy::Gather::nothing) {
    if (auto status = gather(); !status.ok()) return status;
  }
  return policy_.total();
}

// All ranks search; the first rank's result counts.
Status Dropper::gather_trace() {
  const auto trace = trace_of(policy_.recorded_from(), policy_.next_step(), false);
  if (!trace.ok()) return trace.status();
  if (policy_.extend(*trace ? (*trace)->steps() : 0)) return {};
  std::string why_off;
  const auto mine = policy_.decision_of(**trace, why_off);
  auto decision = mine;
  static_assert(sizeof(decision) % sizeof(uint64_t) == 0);
  const std::span words(reinterpret_cast<uint64_t*>(&decision), sizeof(decision) / sizeof(uint64_t));
  if (auto sent = group_->broadcast(words, 0, {.codec = Codec()}); !sent.ok()) return sent.status();
  if (decision != mine) {
    warnings_.push_back("calibration_mismatch: this rank found the threshold " + std::to_string(mine.threshold_ns) +
                        " ns and rank 0 " + std::to_string(decision.threshold_ns) + " ns in " +
                        (decision.trace_hash == mine.trace_hash ? "the same table" : "another table") +
                        "; that of rank 0 is used");
    if (why_off.empty()) why_off = "rank 0 has found no threshold that pays";
  }
  policy_.adopt(decision, why_off);
  return {};
}

Bytes Dropper::save() const {
  ByteWriter writer;
  writer.write(state_magic).write(state_version).write(digest()).write(position_).write(options_.shard).write(shard_left_);
  policy_.write(writer);
  writer.write(hash_of(writer.view()));
  return std::move(writer).take();
}

Status Dropper::load(ByteView bytes) {
  if (begun_) return {Code::invalid, "load() in the middle of a step"};
  const auto corrupt = [](const char* why) { return Status(Code::corrupt, std::string("a checkpoint of DropCompute ") + why); };
  if (bytes.size() < sizeof(uint64_t)) return corrupt("that is too short");
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader reader(body), end(bytes.last(sizeof(uint64_t)));
  if (reader.read<uint32_t>() != state_magic || reader.read<uint32_t>() != state_version)
    return corrupt("does not begin as one of this version");
  if (end.read<uint64_t>() != hash_of(body)) return corrupt("was cut or damaged");
  if (reader.read<uint64_t>() != digest())
    return {Code::invalid, "config_mismatch: the checkpoint is of other options or of another number of micro-batches"};
  const auto position = reader.read<uint64_t>(), shard = reader.read<uint64_t>(), shard_left = reader.read<uint64_t>();
  if (shard != options_.shard || shard_left > shard)
    return {Code::invalid, "config_mismatch: the checkpoint is of a shard of another size"};
  auto policy = policy_;
  if (!policy.read(reader) || !reader.done()) return corrupt("makes no sense");
  policy.regrouped(group_->world_size());
  policy.begin_again();
  policy_ = std::move(policy);
  position_ = position, shard_left_ = shard_left;
  uncertain_ = 0;
  pending_.clear();  // they belong to other parameters
  open_record_ = epoch_ended_ = unsure_ = false;
  loaded_ = true;
  window_.clear(), recorded_.clear();
  start_ = 0;
  reduced_.reset();
  due_ = DropPolicy::Gather::nothing;
  window_from_ = policy_.window_from(), recorded_from_ = policy_.recorded_from();
  return {};
}

}  // namespace unisono::internal

// The handshake between the ranks of DropCompute, and the exchanges that they make between steps.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/concat.h"
#include "base/hash.h"
#include "base/random.h"
#include "training/drop_compute/dropper.h"
#include "training/settings/same_settings.h"

namespace unisono::internal {
namespace {

constexpr uint32_t state_magic = 0x43504455;  // "UDPC"
constexpr uint32_t state_version = 1;

}  // namespace

// The data that each rank sends to all others in the handshake.
struct Dropper::RankState {
  uint64_t was_member = 0;  // 1: the rank was in the former group; 0: it joins
  uint64_t next_step = 0;
  uint64_t counts = 0;       // 1: this rank needs the counts, for example because it may compute nothing in a step
  uint64_t epoch_ended = 0;  // 1: the previous step ended the epoch
};

Result<std::unique_ptr<Dropper>> Dropper::make(const Group& group, uint32_t micro_batches, const DropOptions& options,
                                               const std::optional<Group>& replica, const Now& now) {
  if (auto status = options.check(micro_batches); !status.ok()) return status;
  if (replica && options.rule == DropOptions::Rule::at)
    return Status(
        Code::invalid,
        "bad_option: the rule at lets each process stop by its own clock; a replica of several needs after or before");
  std::unique_ptr<Dropper> dropper(new Dropper(micro_batches, options, replica, now));
  if (auto status = dropper->handshake(group, false); !status.ok()) return status;
  return dropper;
}

Status Dropper::resume(const Group& group, const std::optional<Group>& replica) {
  if (replica) replica_ = replica;
  return handshake(group, true);
}

// Returns the text of those options that must be equal on all ranks.
std::string Dropper::shared_options() const {
  auto shared = options_;
  shared.shard = 0, shared.replay.clear();
  return shared.to_string();
}

// Returns a hash of what a checkpoint must have in common with this object.
uint64_t Dropper::digest() const {
  const auto text = shared_options();
  return std::max<uint64_t>(1, mix64(hash_of(std::as_bytes(std::span(text))) ^ micro_batches_));
}

// The state of this rank does not change until all ranks have taken part in the handshake.
Status Dropper::handshake(const Group& group, bool was_member) {
  std::vector<uint32_t> all(group.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto own = Group(group).split(all);
  if (!own.ok()) return own.status();
  if (auto status = check_same_options(*own); !status.ok()) return status;
  const auto states = exchange_states(*own, was_member);
  if (!states.ok()) return states.status();
  std::optional<uint32_t> leader;
  bool counts = false;
  for (uint32_t rank = 0; rank < states->size(); ++rank) {
    const auto& each = (*states)[rank];
    counts = counts || each.counts != 0;
    if (each.was_member != 0 && (!leader || each.next_step > (*states)[*leader].next_step)) leader = rank;
  }
  outer_ = group;
  group_ = *std::move(own);
  exchanges_counts_ = counts;
  begun_ = running_ = open_record_ = loaded_ = outcome_unknown_ = false;
  step_start_ = 0;
  reduced_at_.reset();
  wait_for_counts();
  window_.clear();
  due_gather_ = DropPolicy::Gather::nothing;
  if (!leader) {
    policy_ = DropPolicy(options_, group_->world_size(), micro_batches_);
  } else {
    // The last step failed on this rank, but other ranks have completed it. Their averages include the gradients of this rank.
    if (was_member && (*states)[*leader].next_step > policy_.next_step()) catch_up((*states)[*leader].epoch_ended != 0);
    if (auto status = copy_leader_state(*group_, *leader); !status.ok()) return status;
    policy_.ranks_changed(group_->world_size());
    if (!was_member) untimed_until_ = policy_.next_step() - 1 + options_.warmup_steps;
    if (auto status = update_prediction(); !status.ok()) return status;
  }
  unconfirmed_ = 0;
  window_from_ = policy_.window_from();
  if (recorded_from_ != policy_.recorded_from()) recorded_.clear();
  recorded_from_ = policy_.recorded_from();
  return {};
}

void Dropper::catch_up(bool epoch_ended) {
  const auto applied = std::exchange(unconfirmed_, 0);
  position_ += applied;
  if (options_.shard > 0) shard_left_ = epoch_ended ? options_.shard : shard_left_ - applied;
  epoch_ended_ = epoch_ended;
}

Status Dropper::check_same_options(Group& group) const {
  const auto text = shared_options();
  const Setting settings[] = {{"options of DropCompute", {text.empty() ? "the defaults" : text}},
                              {"numbers of micro-batches", {concat(micro_batches_)}}};
  return check_same_settings(group, settings);
}

// Checks that all ranks have loaded checkpoints of the same step. If the steps differed, the times that ranks exchange would
// not belong together.
Status Dropper::check_same_checkpoint() {
  const Setting settings[] = {{"loaded checkpoints", {concat("a checkpoint of step ", policy_.next_step() - 1)}}};
  if (auto status = check_same_settings(*group_, settings); !status.ok()) return status;
  loaded_ = false;
  return {};
}

Result<std::vector<Dropper::RankState>> Dropper::exchange_states(Group& group, bool was_member) const {
  std::vector<RankState> states(group.world_size());
  const bool nothing_possible = options_.rule == DropOptions::Rule::at || options_.min_computed == 0 ||
                                std::find(options_.replay.begin(), options_.replay.end(), 0u) != options_.replay.end();
  states[group.rank()] = {
      .was_member = was_member ? 1u : 0u,
      .next_step = policy_.next_step(),
      .counts = nothing_possible || options_.normalize == DropOptions::Normalize::computed || options_.shard > 0 ? 1u : 0u,
      .epoch_ended = epoch_ended_ ? 1u : 0u};
  const std::span numbers(reinterpret_cast<uint64_t*>(states.data()), states.size() * sizeof(RankState) / sizeof(uint64_t));
  if (auto gathered = group.all_gather(numbers); !gathered.ok()) return gathered.status();
  return states;
}

// Copies the state of the leader to all ranks, because a rank may be new or one step behind. The leader is the rank that has
// made the most steps.
Status Dropper::copy_leader_state(Group& group, uint32_t leader) {
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
  if (!policy_.read(reader)) return {Code::internal, concat("rank ", leader, " sent an invalid state")};
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
  // The times are integers, so they must not be sent through a lossy codec.
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

// Computes the prediction for the current ranks. Ranks that have recorded nothing are left out of it.
Status Dropper::update_prediction() {
  const auto threshold = policy_.threshold_ns();
  if (!threshold || policy_.recorded_until() <= policy_.recorded_from()) return {};
  const auto trace = trace_of(policy_.recorded_from(), policy_.recorded_until(), true);
  if (!trace.ok()) return trace.status();
  if (*trace) policy_.update_prediction(**trace);
  return {};
}

// Exchanges the records of the window. If `last` is true, this is the final window of the run, which may be shorter than the
// others.
Status Dropper::gather_window(bool last) {
  constexpr size_t row = sizeof(StepRecord) / sizeof(uint64_t);
  static_assert(sizeof(StepRecord) == 4 * sizeof(uint64_t));
  const size_t steps = policy_.next_step() - policy_.window_from();
  if (steps == 0) return {};  // The window was exchanged before. Then an error occurred.
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
  if (begun_ || outcome_unknown_)
    return Status(Code::invalid,
                  begun_ ? "finish() in the middle of a step" : "finish() after a failed step: call resume() first");
  close_last_step(now_());
  if (due_gather_ == DropPolicy::Gather::nothing && policy_.next_step() > policy_.window_from() &&
      policy_.phase() != DropPolicy::Phase::warming_up) {
    if (window_from_ != policy_.window_from()) window_.clear(), window_from_ = policy_.window_from();
    if (auto status = gather_window(true); !status.ok()) return status;
    window_.clear(), window_from_ = policy_.window_from();
  } else if (due_gather_ != DropPolicy::Gather::nothing) {
    if (auto status = gather(); !status.ok()) return status;
  }
  return policy_.total();
}

// Exchanges the trace and searches for a threshold. All ranks search, but all of them use the result of rank 0.
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
    warnings_.push_back(concat("calibration_mismatch: this rank found the threshold ", mine.threshold_ns, " ns and rank 0 ",
                               decision.threshold_ns, " ns in ",
                               decision.trace_hash == mine.trace_hash ? "the same trace" : "another trace",
                               "; the threshold of rank 0 is used"));
    if (why_off.empty()) why_off = "rank 0 found no threshold with a gain";
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
  if (bytes.size() < sizeof(uint64_t)) return corrupt("is too short");
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader reader(body), end(bytes.last(sizeof(uint64_t)));
  if (reader.read<uint32_t>() != state_magic || reader.read<uint32_t>() != state_version)
    return corrupt("has a wrong magic number or version");
  if (end.read<uint64_t>() != hash_of(body)) return corrupt("is truncated or damaged");
  if (reader.read<uint64_t>() != digest())
    return {Code::invalid, "config_mismatch: the checkpoint was written with other options or another number of micro-batches"};
  const auto position = reader.read<uint64_t>(), shard = reader.read<uint64_t>(), shard_left = reader.read<uint64_t>();
  if (shard != options_.shard || shard_left > shard)
    return {Code::invalid, "config_mismatch: the checkpoint was written with another shard size"};
  auto policy = policy_;
  if (!policy.read(reader) || !reader.done()) return corrupt("has inconsistent values");
  policy.ranks_changed(group_->world_size());
  policy.restart();
  policy_ = std::move(policy);
  position_ = position, shard_left_ = shard_left;
  unconfirmed_ = 0;
  pending_.clear();  // The pending averages belong to the parameters from before load().
  open_record_ = epoch_ended_ = outcome_unknown_ = false;
  loaded_ = true;
  window_.clear(), recorded_.clear();
  step_start_ = 0;
  reduced_at_.reset();
  due_gather_ = DropPolicy::Gather::nothing;
  window_from_ = policy_.window_from(), recorded_from_ = policy_.recorded_from();
  return {};
}

}  // namespace unisono::internal

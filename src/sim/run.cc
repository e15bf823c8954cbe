#include "sim/run.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"

namespace unisono::sim {
namespace {

constexpr std::byte reused{0x5C};

}  // namespace

Run::Run(Cluster& cluster, const Program& program, const RunSettings& settings)
    : cluster_(cluster),
      program_(program),
      settings_(settings),
      random_(mix64(settings.seed ^ 0x72756E)),
      groups_(cluster.size()),
      progress_(cluster.size()) {
  for (const auto& call : program_.calls) parts_.emplace_back(program_.groups[call.group].world());
  for (PeerIndex process = 0; process < cluster_.size(); ++process) {
    for (const auto& group : program_.groups) {
      const bool member = group.rank_of(process) != UINT32_MAX;
      groups_[process].push_back(member ? &cluster_.make_group(process, group.number, group.members, group.host_groups)
                                        : nullptr);
    }
    schedule(process, static_cast<Nanos>(random_.below(static_cast<uint64_t>(program_.think_max) + 1)));
  }
  cluster_.on_progress([this](PeerIndex process) { collect_ended(process); });
}

void Run::schedule(PeerIndex process, Nanos at) {
  if (std::exchange(progress_[process].scheduled, true)) return;
  cluster_.at(at, [this, process] {
    progress_[process].scheduled = false;
    make_next_call(process);
  });
}

// Makes the process's next call, and schedules the call after it.
void Run::make_next_call(PeerIndex process) {
  auto& progress = progress_[process];
  const auto& order = program_.order[process];
  if (!cluster_.alive(process)) return;
  const auto awake = cluster_.awake_at(process);
  if (awake > cluster_.now()) return schedule(process, awake);
  if (progress.next == order.size() || progress.in_flight >= program_.in_flight_max) return;
  submit(process, order[progress.next++]);
  if (progress.next < order.size())
    schedule(process, cluster_.now() + static_cast<Nanos>(random_.below(static_cast<uint64_t>(program_.think_max) + 1)));
}

void Run::submit(PeerIndex process, size_t index) {
  const auto& right = program_.calls[index];
  const auto& group = program_.groups[right.group];
  const auto rank = group.rank_of(process);
  auto& part = parts_[index][rank];
  part.mistake = program_.mistake_of(process, index);
  const auto call = with_mistake(right, part.mistake, group.world());
  part.memory = make_memory(call, rank, group.world(), random_);
  part.submitted = true;
  part.submitted_at = cluster_.now();
  if (!settings_.large && !part.memory.in_place)
    part.unread.assign(part.memory.input.view().begin(), part.memory.input.view().end());
  auto request = make_request(call, rank, group.world(), part.memory);
  if (!request) {
    problems_.push_back("the program itself is wrong: " + call.to_string() + ": " + request.status().to_string());
    part.done = true;
    part.completion = std::make_shared<Completion>();
    part.completion->status = request.status();
    return;
  }
  auto& progress = progress_[process];
  ++progress.in_flight;
  progress.open.emplace_back(index, rank);
  const auto id = call.is_message() ? call.tag : call.options.id;
  part.completion = cluster_.engine(process).submit(*groups_[process][right.group], std::move(*request), id, cluster_.now());
  cluster_.touched(process);
}

void Run::collect_ended(PeerIndex process) {
  auto& progress = progress_[process];
  if (progress.open.empty()) return;
  const auto before = progress.open.size();
  std::erase_if(progress.open, [&](const auto& open) {
    auto& part = parts_[open.first][open.second];
    if (part.completion == nullptr || !part.completion->done) return false;
    ended(program_.calls[open.first], part);
    return true;
  });
  progress.in_flight -= before - progress.open.size();
  if (before != progress.open.size() && progress.next < program_.order[process].size()) schedule(process, cluster_.now());
}

void Run::ended(const Call& call, Part& part) {
  part.done = true;
  part.ended_at = cluster_.now();
  if (settings_.large) return;
  auto& m = part.memory;
  const auto output = m.output.view();
  part.result.assign(output.begin(), output.end());
  if (!m.in_place && !std::equal(part.unread.begin(), part.unread.end(), m.input.view().begin(), m.input.view().end())) {
    problems_.push_back("the input of " + call.to_string() + " was written to");
  }
  if (output.size() > 0) std::memset(m.output.data(), static_cast<int>(reused), output.size());
  if (m.input.bytes() > 0) std::memset(m.input.data(), static_cast<int>(reused), m.input.bytes());
}

void Run::check_memory() {
  const auto untouched = [](const GuardedBuffer& b) {
    return std::all_of(b.view().begin(), b.view().end(), [](std::byte x) { return x == reused; });
  };
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (Rank rank = 0; rank < parts_[i].size(); ++rank) {
      const auto& part = parts_[i][rank];
      const auto where = concat("rank ", rank, ", ", program_.calls[i].to_string());
      if (!part.memory.input.guards_intact() || !part.memory.output.guards_intact())
        problems_.push_back("memory beside a tensor was written to: " + where);
      if (settings_.large || !part.done || part.mistake == Mistake::missing) continue;
      if (!untouched(part.memory.input) || !untouched(part.memory.output))
        problems_.push_back("memory was written to after the operation's end: " + where);
    }
  }
}

bool Run::all_ended() const {
  for (PeerIndex process = 0; process < cluster_.size(); ++process) {
    if (!cluster_.alive(process)) continue;
    const auto& progress = progress_[process];
    if (!progress.open.empty() || progress.next < program_.order[process].size()) return false;
  }
  return true;
}

bool Run::finish(Nanos limit) {
  cluster_.run_until(limit);
  return all_ended();
}

}  // namespace unisono::sim

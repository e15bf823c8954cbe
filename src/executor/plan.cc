#include "executor/plan.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/concat.h"
#include "schedules/relay.h"

namespace unisono {
namespace {

struct Flat {
  uint32_t chunk, round;
  Op op;
  Rank peer;
  uint32_t position;  // index of the step in the schedule, by which the sends keep the order of the schedule
};

Result<std::vector<Flat>> flatten(const Schedule& schedule, Rank self, uint32_t world) {
  std::vector<Flat> flat;
  for (const auto& step : schedule.steps) {
    if (step.peer >= world || step.peer == self || step.chunks.end > schedule.chunk_count) {
      return Status(Code::internal, concat("schedule step names rank ", step.peer, " of ", world, ", chunks up to ",
                                           step.chunks.end, " of ", schedule.chunk_count));
    }
    for (uint32_t chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk) {
      flat.push_back({chunk, step.round, step.op, step.peer, static_cast<uint32_t>(flat.size())});
    }
  }
  return flat;
}

// Sorts the chunks by their first appearance in the schedule.
void fill_order(const std::vector<Flat>& flat, Plan& plan) {
  std::vector<std::pair<uint32_t, uint32_t>> first;  // (position, chunk index)
  first.reserve(plan.chunks.size());
  std::vector<uint32_t> position(plan.chunks.size(), UINT32_MAX);
  for (const auto& item : flat) {
    auto& at = position[static_cast<size_t>(plan.find(item.chunk))];
    at = std::min(at, item.position);
  }
  for (uint32_t i = 0; i < plan.chunks.size(); ++i) first.emplace_back(position[i], i);
  std::sort(first.begin(), first.end());
  for (const auto& [at, index] : first) plan.order.push_back(index);
}

// Appends a stage. All `items` must belong to the same chunk and round. The sends keep the order of the schedule, and the
// receives are sorted by rank.
Status append_stage(std::span<const Flat> items, ChunkPlan& chunk, Plan& plan) {
  Stage stage;
  stage.round = items.front().round;
  stage.recv_before = chunk.recv_count;
  stage.send_begin = static_cast<uint32_t>(plan.peers.size());
  size_t i = 0;
  for (; i < items.size() && items[i].op == Op::send; ++i) plan.peers.push_back(items[i].peer);
  stage.send_end = stage.recv_begin = static_cast<uint32_t>(plan.peers.size());
  chunk.send_count += stage.send_end - stage.send_begin;
  const auto receives = items.subspan(i);
  for (const auto& item : receives) {
    if (item.op != receives.front().op || (item.op == Op::recv_copy && receives.size() > 1)) {
      return {Code::internal, concat("chunk ", chunk.chunk, " is added and copied in one round")};
    }
    plan.peers.push_back(item.peer);
  }
  stage.recv_end = static_cast<uint32_t>(plan.peers.size());
  std::sort(plan.peers.begin() + stage.recv_begin, plan.peers.end());
  if (!receives.empty()) {
    stage.reduces = receives.front().op == Op::recv_reduce;
    chunk.ends_with_reduce = stage.reduces;
    chunk.recv_count += stage.recv_end - stage.recv_begin;
  }
  plan.stages.push_back(stage);
  return {};
}

}  // namespace

int64_t Plan::find(uint32_t chunk) const {
  if (chunk < chunks.size() && chunks[chunk].chunk == chunk) return chunk;
  const auto it =
      std::lower_bound(chunks.begin(), chunks.end(), chunk, [](const ChunkPlan& a, uint32_t b) { return a.chunk < b; });
  return it != chunks.end() && it->chunk == chunk ? it - chunks.begin() : -1;
}

static void fill_partners(Plan& plan) {
  plan.partners = plan.peers;
  std::sort(plan.partners.begin(), plan.partners.end());
  plan.partners.erase(std::unique(plan.partners.begin(), plan.partners.end()), plan.partners.end());
}

Plan relayed_plan(Rank self, uint32_t world) {
  Plan plan{.kind = ScheduleKind::one_shot,
            .chunk_count = 1,
            .shares = {},
            .direct = true,
            .relayed = true,
            .chunks = {},
            .order = {0},
            .stages = {},
            .peers = {},
            .partners = {}};
  for (const auto& round : relay_rounds(self, world)) {
    const auto number = static_cast<uint32_t>(plan.stages.size());
    plan.peers.insert(plan.peers.end(), {round.to, round.from});
    plan.stages.push_back({.round = number,
                           .send_begin = 2 * number,
                           .send_end = 2 * number + 1,
                           .recv_begin = 2 * number + 1,
                           .recv_end = 2 * number + 2,
                           .recv_before = number,
                           .blocks = round.blocks,
                           .position = round.position});
  }
  const auto rounds = static_cast<uint32_t>(plan.stages.size());
  plan.chunks.push_back({.chunk = 0, .stage_begin = 0, .stage_end = rounds, .recv_count = rounds, .send_count = rounds});
  fill_partners(plan);
  return plan;
}

Result<Plan> compile(const Schedule& schedule, Rank self, uint32_t world) {
  auto flat = flatten(schedule, self, world);
  if (!flat) return flat.status();
  auto sorted = *flat;
  std::sort(sorted.begin(), sorted.end(), [](const Flat& a, const Flat& b) {
    const auto send_a = a.op != Op::send, send_b = b.op != Op::send;
    return std::tie(a.chunk, a.round, send_a, a.position) < std::tie(b.chunk, b.round, send_b, b.position);
  });
  Plan plan{.kind = schedule.kind,
            .chunk_count = schedule.chunk_count,
            .across_round = schedule.across_round,
            .gather_round = schedule.gather_round,
            .shares = {},
            .direct = schedule.direct,
            .chunks = {},
            .order = {},
            .stages = {},
            .peers = {},
            .partners = {}};
  for (size_t i = 0; i < sorted.size();) {
    ChunkPlan chunk{.chunk = sorted[i].chunk, .stage_begin = static_cast<uint32_t>(plan.stages.size())};
    while (i < sorted.size() && sorted[i].chunk == chunk.chunk) {
      size_t end = i;
      while (end < sorted.size() && sorted[end].chunk == chunk.chunk && sorted[end].round == sorted[i].round) ++end;
      auto status = append_stage({sorted.data() + i, end - i}, chunk, plan);
      if (!status.ok()) return status;
      i = end;
    }
    chunk.stage_end = static_cast<uint32_t>(plan.stages.size());
    plan.chunks.push_back(chunk);
  }
  fill_order(*flat, plan);
  fill_partners(plan);
  return plan;
}

}  // namespace unisono

#include "executor/confirmation.h"

#include <algorithm>

namespace unisono {
namespace {

struct Partners {
  std::vector<Rank> to, from;
};

// Returns the ranks to which this rank sends no data, and those from which it receives none.
Partners without_data(const Plan& plan, Rank self, uint32_t world) {
  std::vector<bool> sends(world), receives(world);
  for (const auto& stage : plan.stages) {
    for (const auto rank : plan.sends(stage)) sends[rank] = true;
    for (const auto rank : plan.receives(stage)) receives[rank] = true;
  }
  Partners partners;
  for (uint32_t distance = 1; distance < world; ++distance) {
    if (const Rank to = (self + distance) % world; !sends[to]) partners.to.push_back(to);
    if (const Rank from = (self + distance) % world; !receives[from]) partners.from.push_back(from);
  }
  std::sort(partners.from.begin(), partners.from.end());
  return partners;
}

void append_round(Plan& plan, ChunkPlan& chunk, uint32_t round, const Partners& partners) {
  Stage stage{.round = round, .recv_before = chunk.recv_count, .reduces = true};
  stage.send_begin = static_cast<uint32_t>(plan.peers.size());
  plan.peers.insert(plan.peers.end(), partners.to.begin(), partners.to.end());
  stage.send_end = stage.recv_begin = static_cast<uint32_t>(plan.peers.size());
  plan.peers.insert(plan.peers.end(), partners.from.begin(), partners.from.end());
  stage.recv_end = static_cast<uint32_t>(plan.peers.size());
  chunk.send_count += static_cast<uint32_t>(partners.to.size());
  chunk.recv_count += static_cast<uint32_t>(partners.from.size());
  plan.stages.push_back(stage);
}

ChunkPlan begin_chunk(const Plan& plan, uint32_t number) {
  return {.chunk = number, .stage_begin = static_cast<uint32_t>(plan.stages.size()), .ends_with_reduce = true};
}

// Returns the index of the chunk in Plan::chunks.
int32_t end_chunk(Plan& plan, ChunkPlan chunk) {
  chunk.stage_end = static_cast<uint32_t>(plan.stages.size());
  plan.chunks.push_back(chunk);
  return static_cast<int32_t>(plan.chunks.size() - 1);
}

void add_partners(Plan& plan) {
  const auto before = plan.partners.size();
  plan.partners = plan.peers;
  std::sort(plan.partners.begin(), plan.partners.end());
  plan.partners.erase(std::unique(plan.partners.begin(), plan.partners.end()), plan.partners.end());
  plan.only_confirming += static_cast<uint32_t>(plan.partners.size() - before);
}

// Appends the confirmation, and orders it before the data, so that no rank waits for it longer than necessary.
void append_first(Plan& plan, const ChunkPlan& chunk) {
  plan.confirmation = end_chunk(plan, chunk);
  plan.order.insert(plan.order.begin(), static_cast<uint32_t>(plan.confirmation));
}

}  // namespace

void append_confirmation(Plan& plan, Rank self, uint32_t world) {
  if (world < 2) return;
  auto chunk = begin_chunk(plan, plan.chunk_count);
  if (world <= confirmation_exchange_max) {
    append_round(plan, chunk, 0, without_data(plan, self, world));
  } else {
    for (uint32_t distance = 1, round = 0; distance < world; distance *= 2, ++round)
      append_round(plan, chunk, round, {.to = {(self + distance) % world}, .from = {(self + world - distance) % world}});
  }
  append_first(plan, chunk);
  add_partners(plan);
}

void append_confirmation_by_root(Plan& plan, Rank self, uint32_t world, Rank root) {
  if (world < 2) return;
  const auto all = without_data(plan, self, world);
  const auto only = [](const std::vector<Rank>& ranks, Rank rank) {
    return std::find(ranks.begin(), ranks.end(), rank) == ranks.end() ? std::vector<Rank>() : std::vector<Rank>{rank};
  };
  // A rank hears from the root at once if the root sends it data at once (scatter), or a confirmation.
  const Rank told = first_confirmed(world, root);
  Partners first{.to = only(all.to, self == root ? told : root), .from = all.from};
  if (self != root) first.from = self == told ? only(all.from, root) : std::vector<Rank>();
  if (!first.to.empty() || !first.from.empty()) {
    auto chunk = begin_chunk(plan, plan.chunk_count);
    append_round(plan, chunk, 0, first);
    append_first(plan, chunk);
  }
  if (has_last_confirmation(world)) {
    std::vector<Rank> others;
    for (uint32_t distance = 1; distance < world; ++distance) others.push_back((root + distance) % world);
    auto chunk = begin_chunk(plan, plan.chunk_count + 1);
    append_round(plan, chunk, last_confirmation_round,
                 self == root ? Partners{.to = others, .from = {}} : Partners{.to = {}, .from = {root}});
    plan.last_confirmation = end_chunk(plan, chunk);
    plan.order.push_back(static_cast<uint32_t>(plan.last_confirmation));
  }
  add_partners(plan);
}

}  // namespace unisono

#include "sim/loss_pattern.h"

#include "base/random.h"

namespace unisono::sim {
namespace {

using Kind = LossModel::Kind;

// Says what a random draw decides. One position may need several draws. Draws for different purposes are independent.
enum Draw : uint64_t { draw_state = 0, draw_loss = 1, draw_late = 2 };

double unit(uint64_t key, uint64_t index, Draw draw) {
  return static_cast<double>(mix64(mix64(key ^ index) + draw) >> 11) * 0x1.0p-53;
}

}  // namespace

LossPattern::LossPattern(const LossModel& model, uint64_t seed, const Shape& shape) : model_(model), shape_(shape) {
  const auto key = [&](uint64_t sender, uint64_t receiver) { return mix64(mix64(mix64(seed) ^ sender) ^ (receiver << 32)); };
  const auto world = shape.world;
  for (Rank sender = 0; sender < world; ++sender) {
    for (Rank receiver = 0; receiver < world; ++receiver) {
      keys_.push_back(key(sender, receiver));
      if (model.kind == Kind::links) losses_.push_back(model.link_loss(sender, receiver));
    }
  }
  for (Rank sender = 0; sender < world; ++sender) keys_.push_back(key(sender, world));
  const size_t links = size_t{world} * world;
  if (model.kind == Kind::gilbert_elliott) {
    const double fall = model.fall(), recovery = 1 / model.burst;
    chain_ = {.stationary = fall / (fall + recovery), .fall = fall, .recovery = recovery};
    walks_.resize(links);
  }
  if (model.kind == Kind::chain) {
    chain_ = {.stationary = model.loss, .fall = model.fall(), .recovery = model.recovery};
    walks_.resize(links * 2 * shape.ranges);
  }
}

bool LossPattern::walk(Walk& walk, uint64_t key, uint64_t index, const Chain& chain) {
  if (index + 1 < walk.next) walk = {};
  for (; walk.next <= index; ++walk.next) {
    const double drawn = unit(key, walk.next, draw_state);
    walk.bad = drawn < (walk.next == 0 ? chain.stationary : walk.bad ? 1 - chain.recovery : chain.fall);
  }
  return walk.bad;
}

bool LossPattern::cut_off(const DatagramPosition& at) const {
  for (const auto& outage : model_.dead) {
    if ((outage.rank == at.sender || outage.rank == at.receiver) && at.step >= outage.from && at.step <= outage.to) return true;
  }
  for (const auto& slow : model_.slow) {
    if (slow.rank == at.sender && at.sender != at.receiver &&
        unit(keys_[size_t{shape_.world} * shape_.world + at.sender], at.step * 2 + at.phase, draw_late) < slow.share)
      return true;
  }
  return false;
}

bool LossPattern::in_bad_state(const DatagramPosition& at, uint64_t key, uint64_t sequence) {
  const size_t link = size_t{at.sender} * shape_.world + at.receiver;
  if (model_.kind == Kind::gilbert_elliott) return walk(walks_[link], key, sequence, chain_);
  const size_t range = model_.granularity == LossModel::Granularity::shard ? 0 : at.range;
  // Each range of each phase has a separate chain.
  const size_t index = at.phase * shape_.ranges + range;
  return walk(walks_[link * 2 * shape_.ranges + index], mix64(key + 1 + index), at.step, chain_);
}

bool LossPattern::lost(const DatagramPosition& at) {
  if (!(model_.dead.empty() && model_.slow.empty()) && cut_off(at)) return true;
  const size_t link = size_t{at.sender} * shape_.world + at.receiver;
  const uint64_t key = keys_[link];
  const uint64_t stream = at.step * 2 + at.phase;
  const uint64_t sequence = model_.granularity == LossModel::Granularity::shard ? stream : stream * shape_.ranges + at.range;
  switch (model_.kind) {
    case Kind::none: return false;
    case Kind::iid: return unit(key, sequence, draw_loss) < model_.loss;
    case Kind::links: return unit(key, sequence, draw_loss) < losses_[link];
    case Kind::chain: return in_bad_state(at, key, sequence);
    case Kind::gilbert_elliott: {
      const double loss = in_bad_state(at, key, sequence) ? model_.bad : model_.good;
      return loss >= 1 || (loss > 0 && unit(key, sequence, draw_loss) < loss);
    }
    case Kind::joint: {
      const uint64_t common = keys_[size_t{shape_.world} * shape_.world + at.sender];
      return unit(common, sequence, draw_loss) < model_.common_loss() || unit(key, sequence, draw_loss) < model_.own_loss();
    }
  }
  return false;
}

}  // namespace unisono::sim

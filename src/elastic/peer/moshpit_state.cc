#include "elastic/peer/moshpit_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unisono {

namespace {

std::vector<size_t> chunk_bytes_of(const ChunkTable& table) {
  std::vector<size_t> bytes(table.chunks());
  for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk) bytes[chunk] = table.count(chunk) * sizeof(float);
  return bytes;
}

}  // namespace

MoshpitState::MoshpitState(const MoshpitSettings& settings, const ChunkTable& table)
    : self_(settings.self),
      role_(settings.role),
      schema_(settings.schema),
      times_(settings.times),
      table_(table),
      chunk_bytes_(chunk_bytes_of(table)),
      copy_(settings.schema, chunk_bytes_),
      donor_({.schema = settings.schema, .times = settings.times}, copy_) {}

void MoshpitState::set_blobs(std::vector<NamedBlob> blobs) {
  blobs_.emplace();
  for (auto& [name, bytes] : blobs) blobs_->push_back({std::move(name), SharedBuffer::copy(bytes)});
}

void MoshpitState::keep(int64_t step, const ChunkValues& values, RosterKeeper& keeper, Nanos now) {
  if (role_ == ElasticRole::reducer) return;
  // The status can be ignored, because ElasticRun::set_blobs has checked the blobs.
  if (blobs_) (void)copy_.set_blobs(*std::exchange(blobs_, std::nullopt));
  copy_.finished(step, values.buffers(), values.digests());
  keeper.set_finished(step, copy_.state_digest(), now);
}

Status MoshpitState::message(const PeerId& from, const SharedBuffer& message, Nanos now) {
  const auto decoded = decode_state(message.view());
  if (!decoded.ok()) return decoded.status();
  if (for_donor(*decoded)) return donor_.message(from, *decoded, now);
  return loader_ == nullptr ? Status() : loader_->message(from, *decoded, now);
}

void MoshpitState::peer_gone(const PeerId& peer, Nanos now) {
  donor_.peer_gone(peer);
  if (loader_ != nullptr) loader_->peer_gone(peer, now);
}

void MoshpitState::woke(Nanos now) {
  donor_.woke(now);
  if (loader_ != nullptr) loader_->woke(now);
}

Nanos MoshpitState::next_deadline() const {
  return std::min(donor_.next_deadline(), loader_ == nullptr ? never : loader_->next_deadline());
}

std::vector<StateSource> MoshpitState::sources(const RosterKeeper& keeper) const {
  std::vector<StateSource> found;
  for (const auto& id : keeper.roster().keepers()) {
    const auto* entry = keeper.roster().find(id);
    if (id != self_ && entry->facts.state_digest != 0)
      found.push_back({id, entry->facts.state_digest, entry->facts.finished_step});
  }
  return found;
}

void MoshpitState::begin_loading(RosterKeeper& keeper, Nanos now) {
  newcomer_ = keeper.steps_opened() > 0;
  const auto donors = sources(keeper);
  if (role_ == ElasticRole::reducer || donors.empty()) {
    loaded_ = ElasticState{};
    if (role_ != ElasticRole::reducer)
      loaded_->note = newcomer_ ? "no peer has finished an averaging step yet" : "the run begins";
    return settle(keeper, now);
  }
  stage_ = Stage::loading;
  loading_since_ = now;
  loader_ = std::make_unique<StateLoader>(
      StateLoaderOptions{.self = self_, .schema = schema_, .chunk_bytes = chunk_bytes_, .times = times_}, donors, now);
}

void MoshpitState::settle(RosterKeeper& keeper, Nanos now) {
  stage_ = Stage::settled;
  keeper.set_alive(now);
}

void MoshpitState::end_loading(Result<LoadedState> outcome, RosterKeeper& keeper, Nanos now) {
  loaded_ = ElasticState{.seconds = static_cast<double>(now - loading_since_) / 1e9};
  // newcomer_ was set before the state was loaded. Averaging steps may have begun since then, so it is computed again.
  newcomer_ = keeper.steps_opened() > 0;
  if (outcome.ok()) {
    newcomer_ |= outcome->step >= 0;
    loaded_->loaded = true;
    loaded_->step = outcome->step;
    loaded_->values.resize(outcome->values.size() / sizeof(float));
    if (!loaded_->values.empty())
      std::memcpy(loaded_->values.data(), outcome->values.data(), loaded_->values.size() * sizeof(float));
    for (auto& blob : outcome->blobs) loaded_->blobs.emplace_back(std::move(blob.name), std::move(blob.bytes));
    loaded_->mixed = outcome->mixed;
    loaded_->donors = outcome->donors;
    loaded_->bytes = outcome->bytes;
    // Now this peer can itself give the loaded state to other joiners.
    keep(outcome->step, ChunkValues(table_, SharedBuffer::copy(std::as_bytes(std::span(loaded_->values)))), keeper, now);
  } else {
    loaded_->note = outcome.status().message();
  }
  settle(keeper, now);
}

bool MoshpitState::act(RosterKeeper& keeper, ElasticPort& port, Nanos now) {
  bool acted = false;
  if (stage_ == Stage::joining && keeper.join_state() == JoinState::joined) begin_loading(keeper, now), acted = true;
  if (loader_ != nullptr) {
    if (std::exchange(sources_changed_, false)) loader_->donors_changed(sources(keeper), now);
    for (auto& one : loader_->take_sends()) port.send(one.to, std::move(one.message)), acted = true;
    if (auto outcome = loader_->take_outcome()) {
      for (auto& one : loader_->take_sends()) port.send(one.to, std::move(one.message));
      loader_.reset();
      end_loading(std::move(*outcome), keeper, now);
      acted = true;
    }
  }
  for (auto& one : donor_.take_sends()) port.send(one.to, std::move(one.message)), acted = true;
  return acted;
}

}  // namespace unisono

// Events of the transports and the compute: which operation each is for, and what becomes of frames that fit none.
#include <string>
#include <utility>

#include "engine/engine_attempt.h"

namespace unisono {

void Engine::release(PeerIndex from, const View& view) {
  if (view.handle != 0) peers_[from].route->release(view);
}

std::byte* Engine::place(PeerIndex from, const FrameHeader& header) {
  if (header.kind != FrameKind::data) return nullptr;
  auto* active = operations_.find(header.group, header.operation, from);
  if (active == nullptr || active->group->epoch != header.epoch) return nullptr;
  const auto rank = active->group->rank_of(from);
  std::byte* target = nullptr;
  if (rank >= 0) attempt(active->operation, [&] { target = active->operation.place(static_cast<Rank>(rank), header); });
  return target;
}

// Only poll() ends the engine, not an upcall: the transports are in the middle of something.
void Engine::received(PeerIndex from, const FrameHeader& header, const View& view) try {
  switch (header.kind) {
    case FrameKind::control: {
      // The handler may change anything, so the view is given back first.
      const Bytes message(view.data, view.data + view.bytes);
      release(from, view);
      if (on_control_) on_control_(from, message);
      return;
    }
    case FrameKind::data:
    case FrameKind::credit:
    case FrameKind::failed: return received_data(from, header, view);
    case FrameKind::goodbye:
      release(from, view);
      if (on_removed_) on_removed_(from);
      return;
    case FrameKind::lossy: lossy_.on_frame(from, header, {view.data, view.bytes}, now_); return release(from, view);
    default: return release(from, view);
  }
} catch (const std::bad_alloc&) {
  note_missing_memory();
}

void Engine::received_data(PeerIndex from, const FrameHeader& header, const View& view) {
  const auto group = groups_.find(header.group);
  const bool known = group != groups_.end();
  if (epoch_ != 0 && header.epoch != epoch_) {
    ++counters_.frames_other_epoch;
    return release(from, view);
  }
  if (header.kind == FrameKind::credit && header.amount == 0) {
    copy_out(from);
    return release(from, view);
  }
  if (known && header.operation == all_operations) {
    if (const auto rank = failures_.on_abort(*group->second, from, header, {view.data, view.bytes}))
      on_absent(*group->second, *rank);
    return release(from, view);
  }
  auto* active = known ? operations_.find(header.group, header.operation, from) : nullptr;
  if (active == nullptr) {
    if (known && !group->second->ended.ok()) {
      ++counters_.frames_stale;
      return release(from, view);
    }
    if (known && group->second->numbers.has_begun(header.operation, group->second->self,
                                                  static_cast<Rank>(group->second->rank_of(from)))) {
      ++counters_.frames_stale;
      FailureProtocol::on_ended(*group->second, from, header, {view.data, view.bytes});
      return release(from, view);
    }
    if (known) group->second->others_began(from, header);
    return received_early(from, header, view);
  }
  const auto rank = active->group->rank_of(from);
  if (rank < 0 || static_cast<Rank>(rank) != header.sender) {
    ++counters_.frames_refused;
    return release(from, view);
  }
  auto& operation = active->operation;
  if (header.kind == FrameKind::data) {
    const Piece piece{.data = view.data, .bytes = view.bytes, .handle = view.handle, .route = from};
    operation.received(header.sender, header, piece, now_);
  } else {
    attempt(operation, [&] {
      if (header.kind == FrameKind::credit) operation.granted(header.sender, header.amount, now_);
      else failures_.on_failed(*active, header.sender, {view.data, view.bytes}, now_);
    });
    release(from, view);
  }
  settle_needed_ |= operation.done();
}

// The peer has no slot left. Any operation may hold its slots, so all copy out what they view.
void Engine::copy_out(PeerIndex from) {
  for (auto* active : operations_.running()) {
    const auto rank = active->group->rank_of(from);
    if (rank >= 0) attempt(active->operation, [&] { active->operation.copy_out(static_cast<Rank>(rank)); });
  }
}

// A frame of an operation or a sub-group that this rank has not reached. A peer that drives what is kept over the limit is cut
// off.
void Engine::received_early(PeerIndex from, const FrameHeader& header, const View& view) {
  if (!early_.fits(view.bytes)) {
    release(from, view);
    auto& route = *peers_[from].route;
    route.close(from);
    return lost(from, {Code::peer_lost, peers_[from].label + " ran ahead: " + std::to_string(early_.bytes()) +
                                            " bytes are kept for operations not started here, the limit"});
  }
  early_.keep(from, header, {view.data, view.bytes});
  release(from, view);
  ++counters_.unexpected_frames;
}

void Engine::sent(uint64_t id) {
  if (ControlMessages::owns(id)) return control_.on_sent(id);
  if (auto* active = operations_.of_event(id))
    attempt(active->operation, [&] { active->operation.sent(static_cast<uint32_t>(id), now_); });
}

void Engine::computed(uint64_t id, Nanos now) try {
  now_ = now;
  auto* active = operations_.of_event(id);
  if (active == nullptr) return;
  attempt(active->operation, [&] { active->operation.computed(static_cast<uint32_t>(id), now); });
  settle_all();
} catch (const std::bad_alloc&) {
  end_without_memory();
}

void Engine::credit(PeerIndex peer) try {
  peers_[peer].credit_requested = false;
  control_.on_credit(peer);
  const auto& running = operations_.running();
  for (size_t i = 0; i < running.size(); ++i) {
    const auto rank = running[i]->group->rank_of(peer);
    if (rank >= 0) attempt(running[i]->operation, [&] { running[i]->operation.credit(static_cast<Rank>(rank), now_); });
  }
} catch (const std::bad_alloc&) {
  note_missing_memory();
}

}  // namespace unisono

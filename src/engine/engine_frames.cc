// Routes the events of the transports and of the compute interface to operations, and handles frames that belong to no
// operation.
#include <string>
#include <utility>

#include "base/concat.h"
#include "engine/engine_attempt.h"

namespace unisono {

void Engine::release(PeerIndex from, const View& view) {
  if (view.handle != 0) peers_[from].route->release(view);
}

std::byte* Engine::receive_buffer(PeerIndex from, const FrameHeader& header) {
  if (header.kind != FrameKind::data) return nullptr;
  auto* active = operations_.find(header.group, header.operation, from);
  if (active == nullptr || active->group->epoch != header.epoch) return nullptr;
  const auto rank = active->group->rank_of(from);
  std::byte* target = nullptr;
  if (rank >= 0)
    attempt(active->operation, [&] { target = active->operation.receive_buffer(static_cast<Rank>(rank), header); });
  return target;
}

// If memory runs out here, the transport is in the middle of its own call. The engine must therefore not end before the next
// poll().
void Engine::received(PeerIndex from, const FrameHeader& header, const View& view) try {
  switch (header.kind) {
    case FrameKind::control: {
      // The handler may change anything, even the link, so release the view before it is called.
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
      failures_.on_ended(*group->second, from, header, {view.data, view.bytes}, now_);
      return release(from, view);
    }
    if (known) group->second->on_call_begun_elsewhere(from, header);
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
    if (operation.take_description()) attempt(operation, [&] { failures_.describe(*active); });
  } else {
    attempt(operation, [&] {
      if (header.kind == FrameKind::credit) operation.granted(header.sender, header.amount, now_);
      else failures_.on_failed(*active, header.sender, {view.data, view.bytes}, now_);
    });
    release(from, view);
  }
  settle_needed_ |= operation.done();
}

// Called when the peer has no free slot left. Any running operation may hold views of the peer's slots, so all operations copy
// them out.
void Engine::copy_out(PeerIndex from) {
  for (auto* active : operations_.running()) {
    const auto rank = active->group->rank_of(from);
    if (rank >= 0) attempt(active->operation, [&] { active->operation.copy_out(static_cast<Rank>(rank)); });
  }
}

// Handles a frame of an operation or a sub-group that this rank has not begun. Such frames are kept. If they take more bytes
// than the limit allows, the link to the sender is closed.
void Engine::received_early(PeerIndex from, const FrameHeader& header, const View& view) {
  if (!early_.fits(view.bytes)) {
    release(from, view);
    auto& route = *peers_[from].route;
    route.close(from);
    return lost(from,
                {Code::peer_lost, concat(peers_[from].label, " sent too far ahead: ", early_.bytes(),
                                         " bytes of operations that its receiver has not begun are buffered, the limit")},
                PeerFate::unknown);
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

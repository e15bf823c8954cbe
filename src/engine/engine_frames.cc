// News from the transports: which operation a frame is for, and what to do with those that fit none.
#include <algorithm>

#include "base/check.h"
#include "engine/engine_active.h"

namespace unisono {

void Engine::release_lent(PeerIndex from, const View& view) {
  if (view.handle != 0) peers_[from].route->release(view);
}

std::byte* Engine::place(PeerIndex from, const FrameHeader& header) {
  if (header.kind != FrameKind::data) return nullptr;
  auto* active = find(header.group, header.operation, from);
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
      release_lent(from, view);
      if (control_) control_(from, message);
      return;
    }
    case FrameKind::data:
    case FrameKind::credit:
    case FrameKind::failed: return received_data(from, header, view);
    case FrameKind::goodbye:
      release_lent(from, view);
      if (removed_) removed_(from);
      return;
    case FrameKind::lossy: received_call(from, header, {view.data, view.bytes}); return release_lent(from, view);
    default: return release_lent(from, view);
  }
} catch (const std::bad_alloc&) {
  must_give_up_ = true;
}

void Engine::received_data(PeerIndex from, const FrameHeader& header, const View& view) {
  const auto group = groups_.find(header.group);
  const bool known = group != groups_.end();
  if (epoch_ != 0 && header.epoch != epoch_) {
    ++counters_.frames_other_epoch;
    return release_lent(from, view);
  }
  if (header.kind == FrameKind::credit && header.amount == 0) {
    copy_out(from);
    return release_lent(from, view);
  }
  if (known && header.operation == all_operations) {
    received_abort(*group->second, from, header, {view.data, view.bytes});
    return release_lent(from, view);
  }
  auto* active = known ? find(header.group, header.operation, from) : nullptr;
  if (active == nullptr) {
    if (known && !group->second->ended.ok()) {
      ++counters_.frames_stale;
      return release_lent(from, view);
    }
    if (known && has_ended(*group->second, header.operation, from)) {
      ++counters_.frames_stale;
      heard_of_ended(*group->second, from, header, {view.data, view.bytes});
      return release_lent(from, view);
    }
    if (known) group->second->others_began(from, header);
    return keep_unexpected(from, header, view);
  }
  const auto rank = active->group->rank_of(from);
  if (rank < 0 || static_cast<Rank>(rank) != header.sender) {
    ++counters_.frames_refused;
    return release_lent(from, view);
  }
  auto& operation = active->operation;
  if (header.kind == FrameKind::data) {
    const Piece piece{.data = view.data, .bytes = view.bytes, .handle = view.handle, .route = from};
    operation.received(header.sender, header, piece, now_);
  } else {
    attempt(operation, [&] {
      if (header.kind == FrameKind::credit) operation.granted(header.sender, header.amount, now_);
      else received_failure(*active, header.sender, {view.data, view.bytes});
    });
    release_lent(from, view);
  }
  settle_needed_ |= operation.done();
}

// Whatever operation the peer has no room for, any may hold the memory.
void Engine::copy_out(PeerIndex from) {
  for (auto* active : active_) {
    const auto rank = active->group->rank_of(from);
    if (rank >= 0) attempt(active->operation, [&] { active->operation.copy_out(static_cast<Rank>(rank)); });
  }
}

// For an operation or sub-group that this rank has not reached yet. Bounded by the senders' eager limit per operation; the
// total is bounded too, and a peer that drives it over the limit is cut off.
void Engine::keep_unexpected(PeerIndex from, const FrameHeader& header, const View& view) {
  if (unexpected_bytes_ + view.bytes > limits_.unexpected_bytes_max) {
    release_lent(from, view);
    auto& route = *peers_[from].route;
    route.close(from);
    return lost(from, {Code::peer_lost, peers_[from].label + " ran ahead: " + std::to_string(unexpected_bytes_) +
                                            " bytes are kept for operations not started here, the limit"});
  }
  auto* data = pool_.take(view.bytes);
  if (view.bytes > 0) kernels::copy(data, view.data, view.bytes);
  release_lent(from, view);
  unexpected_.push_back({from, header, data});
  unexpected_bytes_ += view.bytes;
  ++counters_.unexpected_frames;
}

void Engine::replay_unexpected(Active& active) {
  // In the order of arrival. Taken out first: an operation that ends meanwhile must not leave entries behind.
  auto mine = std::move(replayed_);
  mine.reserve(unexpected_.size());
  std::erase_if(unexpected_, [&](const Unexpected& u) {
    const bool match = u.header.group == active.group->number && active.concerns(u.header.operation, u.from);
    if (match) mine.push_back(u);
    return match;
  });
  for (const auto& u : mine) {
    unexpected_bytes_ -= u.header.payload_bytes;
    const auto rank = active.group->rank_of(u.from);
    const bool ours = rank >= 0 && static_cast<Rank>(rank) == u.header.sender && u.header.epoch == active.group->epoch &&
                      !active.operation.done();
    if (ours && u.header.kind == FrameKind::data) {
      active.operation.received(u.header.sender, u.header, {.data = u.data, .bytes = u.header.payload_bytes, .staged = true},
                                now_);
      continue;  // the piece is the operation's now
    }
    attempt(active.operation, [&] {
      if (ours && u.header.kind == FrameKind::credit) active.operation.granted(u.header.sender, u.header.amount, now_);
      if (ours && u.header.kind == FrameKind::failed)
        received_failure(active, u.header.sender, {u.data, u.header.payload_bytes});
    });
    pool_.give(u.data, u.header.payload_bytes);
  }
  mine.clear();
  replayed_ = std::move(mine);
}

void Engine::sent(uint64_t id) {
  const auto slot = static_cast<uint32_t>(id >> 48);
  if (slot == control_slot) {
    control_in_flight_.erase(id);
    return;
  }
  if (slot >= slots_.size()) return;
  auto& active = *slots_[slot];
  if ((active.generation & 0xFFFF) != (id >> 32 & 0xFFFF) || active.completion == nullptr) return;
  attempt(active.operation, [&] { active.operation.sent(static_cast<uint32_t>(id), now_); });
}

void Engine::computed(uint64_t id, Nanos now) try {
  now_ = now;
  const auto slot = static_cast<uint32_t>(id >> 48);
  if (slot >= slots_.size()) return;
  auto& active = *slots_[slot];
  if ((active.generation & 0xFFFF) != (id >> 32 & 0xFFFF) || active.completion == nullptr) return;
  attempt(active.operation, [&] { active.operation.computed(static_cast<uint32_t>(id), now); });
  settle_all();
} catch (const std::bad_alloc&) {
  give_up();
}

void Engine::credit(PeerIndex peer) try {
  auto& p = peers_[peer];
  p.credit_requested = false;
  while (!p.waiting.empty() && p.route->credit(peer) > 0) {
    auto [header, payload] = std::move(p.waiting.front());
    p.waiting.pop_front();
    send_owned(peer, header, std::move(payload));
  }
  for (size_t i = 0; i < active_.size(); ++i) {
    const auto rank = active_[i]->group->rank_of(peer);
    if (rank >= 0) attempt(active_[i]->operation, [&] { active_[i]->operation.credit(static_cast<Rank>(rank), now_); });
  }
} catch (const std::bad_alloc&) {
  must_give_up_ = true;
}

void Engine::send_control(PeerIndex to, std::shared_ptr<Bytes> message) {
  FrameHeader header;
  header.kind = FrameKind::control;
  header.payload_bytes = static_cast<uint32_t>(message->size());
  send_owned(to, header, std::move(message));
}

void Engine::send_removed(PeerIndex to) {
  FrameHeader header;
  header.kind = FrameKind::goodbye;
  header.epoch = epoch_;
  if (peers_[to].lost.ok()) peers_[to].route->send(to, header, {}, 0);
}

void Engine::send_owned(PeerIndex to, FrameHeader header, std::shared_ptr<Bytes> payload) {
  auto& p = peers_[to];
  if (!p.lost.ok()) return;
  if (p.route->credit(to) == 0) {
    // The peer may hold all that can be lent to it, and wait for just this: why it waits in vain. It is asked to keep copies
    // instead.
    if (header.kind != FrameKind::failed) return void(p.waiting.emplace_back(header, std::move(payload)));
    if (p.route->slot_bytes() != 0) {
      auto plea = header;
      plea.kind = FrameKind::credit;
      plea.amount = plea.payload_bytes = 0;
      p.route->send(to, plea, {}, 0);
    }
  }
  const auto id = event_id(control_slot, 0, 0) | (next_control_++ & 0xFFFFFFFFFFFFull);
  const std::span<const std::byte> bytes(*payload);
  control_in_flight_[id] = payload;
  if (p.route->send(to, header, bytes, id)) control_in_flight_.erase(id);
}

}  // namespace unisono

#include "engine/engine_active.h"

namespace unisono {

PeerIndex Engine::OperationPort::peer(Rank rank) const { return active_.group->members[rank]; }

Transport& Engine::OperationPort::route(Rank rank) const { return *engine_.peers_[peer(rank)].route; }

size_t Engine::OperationPort::credit(Rank to) {
  const auto& p = engine_.peers_[peer(to)];
  const size_t credit = p.lost.ok() ? p.route->credit(peer(to)) : 0;
  if (credit == 0 && active_.group->record != nullptr) active_.group->record->stalled(to);
  return credit;
}

bool Engine::OperationPort::send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) {
  return route(to).send(peer(to), header, payload, event_id(active_.slot, active_.generation, lane));
}

size_t Engine::OperationPort::slot_bytes(Rank to) { return route(to).slot_bytes(); }

PortSlot Engine::OperationPort::acquire(std::span<const Rank> to, size_t bytes, bool result) {
  auto& first = route(to.front());
  peers_.clear();
  for (const auto rank : to) {
    if (&route(rank) != &first || !engine_.peers_[peer(rank)].lost.ok()) return {};
    peers_.push_back(peer(rank));
  }
  const auto slot = first.acquire(peers_, bytes, result);
  if (!slot && to.size() == 1 && active_.group->record != nullptr) active_.group->record->stalled(to.front());
  return {.data = slot.data, .handle = slot.handle, .route = peers_.front()};
}

void Engine::OperationPort::fill(const PortSlot& slot, const std::byte* source, size_t bytes) {
  active_.compute += engine_.compute_.fill(slot.data, source, bytes).cost;
}

void Engine::OperationPort::commit(const PortSlot& slot, FrameHeader header) {
  engine_.peers_[slot.route].route->commit({slot.data, header.payload_bytes, slot.handle}, header);
}

void Engine::OperationPort::abandon(const PortSlot& slot) {
  engine_.peers_[slot.route].route->abandon({slot.data, 0, slot.handle});
}

void Engine::OperationPort::release(const Piece& piece) {
  if (piece.staged && piece.data != nullptr) engine_.pool_.give(piece.data, piece.bytes);
  if (piece.handle != 0) engine_.peers_[piece.route].route->release({piece.data, piece.bytes, piece.handle});
}

std::byte* Engine::OperationPort::stage(size_t bytes) { return engine_.pool_.take(bytes); }

void Engine::OperationPort::grant(Rank to, uint64_t bytes) {
  auto header = active_.operation.setup().frame;
  header.kind = FrameKind::credit;
  header.amount = bytes;
  header.descriptor = active_.operation.descriptor().bits;
  route(to).send(peer(to), header, {}, 0);
}

void Engine::OperationPort::request_credit(Rank to, bool again) {
  auto& p = engine_.peers_[peer(to)];
  if (again && p.credit_requested) return;
  p.credit_requested = true;
  grant(to, 0);
}

std::string Engine::OperationPort::place(Rank rank) const { return engine_.peers_[peer(rank)].label; }

bool Engine::OperationPort::reduce(const kernels::Reduction& task, uint32_t lane) {
  const auto computed = engine_.compute_.reduce(task, event_id(active_.slot, active_.generation, lane));
  active_.compute += computed.cost;
  return computed.done;
}

bool Engine::OperationPort::copy(void* destination, const void* source, size_t bytes, uint32_t lane) {
  const auto computed = engine_.compute_.copy(destination, source, bytes, event_id(active_.slot, active_.generation, lane));
  active_.compute += computed.cost;
  return computed.done;
}

void Engine::OperationPort::copy_now(void* destination, const void* source, size_t bytes) {
  active_.compute += engine_.compute_.copy_now(destination, source, bytes).cost;
}

void Engine::OperationPort::encode(const EncodeTask& task, kernels::BlockCounts& counts) {
  const auto cost = engine_.compute_.encode(task, counts).cost;
  active_.compute += cost;
  active_.encoding += cost;
}

bool Engine::OperationPort::decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) {
  const auto computed = engine_.compute_.decode(task, counts, event_id(active_.slot, active_.generation, lane));
  active_.compute += computed.cost;
  active_.decoding += computed.cost;
  return computed.done;
}

bool Engine::OperationPort::fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) {
  const auto computed = engine_.compute_.fold(task, counts, event_id(active_.slot, active_.generation, lane));
  active_.compute += computed.cost;
  active_.summing += computed.cost;
  return computed.done;
}

Nanos Engine::OperationPort::time_since(Nanos event) const { return engine_.compute_.time_since(event); }

}  // namespace unisono

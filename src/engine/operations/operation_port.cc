#include "engine/operations/operation_port.h"

#include "engine/operations/active_operation.h"

namespace unisono {

PeerIndex OperationPort::peer(Rank rank) const { return active_.group->members[rank]; }

Transport& OperationPort::route(Rank rank) const { return *shared_.peers[peer(rank)].route; }

uint64_t OperationPort::event(uint32_t lane) const { return active_.event(lane); }

size_t OperationPort::credit(Rank to) {
  const auto& p = shared_.peers[peer(to)];
  const size_t credit = p.lost.ok() ? p.route->credit(peer(to)) : 0;
  if (credit == 0 && active_.group->record != nullptr) active_.group->record->stalled(to);
  return credit;
}

bool OperationPort::send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) {
  return route(to).send(peer(to), header, payload, event(lane));
}

void OperationPort::release_early(uint32_t lane) {
  for (auto* transport : shared_.transports) transport->release_early(event(lane), UINT64_MAX);
}

void OperationPort::release_all_early() {
  for (auto* transport : shared_.transports) transport->release_early(event(0), active_.all_lanes);
}

size_t OperationPort::slot_bytes(Rank to) { return route(to).slot_bytes(); }

PortSlot OperationPort::acquire(std::span<const Rank> to, size_t bytes, bool result) {
  auto& first = route(to.front());
  peers_.clear();
  for (const auto rank : to) {
    if (&route(rank) != &first || !shared_.peers[peer(rank)].lost.ok()) return {};
    peers_.push_back(peer(rank));
  }
  const auto slot = first.acquire(peers_, bytes, result);
  if (!slot && to.size() == 1 && active_.group->record != nullptr) active_.group->record->stalled(to.front());
  return {.data = slot.data, .handle = slot.handle, .route = peers_.front()};
}

void OperationPort::fill(const PortSlot& slot, const std::byte* source, size_t bytes) {
  active_.compute += shared_.compute.fill(slot.data, source, bytes).cost;
}

void OperationPort::commit(const PortSlot& slot, FrameHeader header) {
  shared_.peers[slot.route].route->commit({slot.data, header.payload_bytes, slot.handle}, header);
}

void OperationPort::abandon(const PortSlot& slot) { shared_.peers[slot.route].route->abandon({slot.data, 0, slot.handle}); }

void OperationPort::release(const Piece& piece) {
  if (piece.staged && piece.data != nullptr) shared_.pool.release(piece.data, piece.bytes);
  if (piece.handle != 0) shared_.peers[piece.route].route->release({piece.data, piece.bytes, piece.handle});
}

std::byte* OperationPort::stage(size_t bytes) { return shared_.pool.take(bytes); }

void OperationPort::grant(Rank to, uint64_t bytes) {
  auto header = active_.operation.setup().frame;
  header.kind = FrameKind::credit;
  header.amount = bytes;
  header.descriptor = active_.operation.descriptor().bits;
  route(to).send(peer(to), header, {}, 0);
}

void OperationPort::request_credit(Rank to, bool again) {
  auto& p = shared_.peers[peer(to)];
  if (again && p.credit_requested) return;
  p.credit_requested = true;
  grant(to, 0);
}

std::string OperationPort::location(Rank rank) const { return shared_.peers[peer(rank)].label; }

std::string OperationPort::link_state(Rank rank) const { return route(rank).link_state(peer(rank)); }

bool OperationPort::reduce(const kernels::Reduction& task, uint32_t lane) {
  const auto computed = shared_.compute.reduce(task, event(lane));
  active_.compute += computed.cost;
  return computed.done;
}

bool OperationPort::copy(void* destination, const void* source, size_t bytes, uint32_t lane) {
  const auto computed = shared_.compute.copy(destination, source, bytes, event(lane));
  active_.compute += computed.cost;
  return computed.done;
}

void OperationPort::copy_now(void* destination, const void* source, size_t bytes) {
  active_.compute += shared_.compute.copy_now(destination, source, bytes).cost;
}

void OperationPort::encode(const EncodeTask& task, kernels::BlockCounts& counts) {
  const auto cost = shared_.compute.encode(task, counts).cost;
  active_.compute += cost;
  active_.encoding += cost;
}

bool OperationPort::decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) {
  const auto computed = shared_.compute.decode(task, counts, event(lane));
  active_.compute += computed.cost;
  active_.decoding += computed.cost;
  return computed.done;
}

bool OperationPort::fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) {
  const auto computed = shared_.compute.fold(task, counts, event(lane));
  active_.compute += computed.cost;
  active_.summing += computed.cost;
  return computed.done;
}

Nanos OperationPort::time_since(Nanos event) const { return shared_.compute.time_since(event); }

}  // namespace unisono

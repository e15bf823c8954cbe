// One slot of the engine's operation table, and the Port through which its operation reaches transports and memory.
#pragma once

#include <memory>
#include <new>
#include <vector>

#include "engine/engine.h"

namespace unisono {

// Identifies a send or a computation of an operation: slot 16 bits | generation 16 | lane 32.
constexpr uint64_t event_id(uint32_t slot, uint32_t generation, uint32_t lane) {
  return uint64_t{slot & 0xFFFF} << 48 | uint64_t{generation & 0xFFFF} << 32 | lane;
}
inline constexpr size_t failure_text_max = 4096;  // of the reason in a failed frame
Bytes failure_payload(const Status& status);      // of a failed frame
inline constexpr uint32_t control_slot = 0xFFFF;  // control messages use the same id space

class Engine::OperationPort final : public Port {
 public:
  OperationPort(Engine& engine, Active& active) : engine_(engine), active_(active) {}

  size_t credit(Rank to) override;
  bool send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) override;
  size_t slot_bytes(Rank to) override;
  PortSlot acquire(std::span<const Rank> to, size_t bytes, bool result) override;
  void fill(const PortSlot& slot, const std::byte* source, size_t bytes) override;
  void commit(const PortSlot& slot, FrameHeader header) override;
  void abandon(const PortSlot& slot) override;
  void release(const Piece& piece) override;
  std::byte* stage(size_t bytes) override;
  void grant(Rank to, uint64_t bytes) override;
  void request_credit(Rank to, bool again) override;
  std::string place(Rank rank) const override;
  bool reduce(const kernels::Reduction& task, uint32_t lane) override;
  bool copy(void* destination, const void* source, size_t bytes, uint32_t lane) override;
  void copy_now(void* destination, const void* source, size_t bytes) override;
  void encode(const EncodeTask& task, kernels::BlockCounts& counts) override;
  bool decode(const DecodeTask& task, kernels::BlockCounts& counts, uint32_t lane) override;
  bool fold(const FoldTask& task, kernels::BlockCounts& counts, uint32_t lane) override;
  Nanos time_since(Nanos event) const override;

 private:
  PeerIndex peer(Rank rank) const;
  Transport& route(Rank rank) const;

  Engine& engine_;
  Active& active_;
  std::vector<PeerIndex> peers_;
};

template <typename Event>
void Engine::attempt(Operation& operation, Event&& event) {
  try {
    event();
  } catch (const std::bad_alloc&) {
    operation.out_of_memory(now_);
  }
  settle_needed_ |= operation.done();
}

template <typename Start>
std::shared_ptr<Completion> Engine::guarded(Start&& start) {
  if (gave_up_) return no_memory_;
  try {
    auto completion = start();
    if (must_give_up_) give_up();
    return completion;
  } catch (const std::bad_alloc&) {
    give_up();
    return no_memory_;
  }
}

struct Engine::Active {
  explicit Active(Engine& engine, uint32_t index) : slot(index), port(engine, *this) {}
  // Whether a frame of this operation number, from this peer, is for it.
  bool concerns(uint64_t wanted, PeerIndex from) const;
  bool is_message() const { return (number & message_id_bit) != 0; }
  uint32_t slot = 0;
  uint32_t generation = 0;
  GroupCore* group = nullptr;
  uint64_t number = 0;
  uint64_t memory_bytes = 0;
  Nanos compute = 0, encoding = 0, summing = 0, decoding = 0;  // the last three are in the first
  OperationPort port;
  Operation operation;
  std::shared_ptr<Completion> completion;
  std::shared_ptr<const DeliveryReport> delivery;  // of a call that might have been lossy
};

}  // namespace unisono

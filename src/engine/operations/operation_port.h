// Implements the executor's Port for one operation. It uses the engine's transports, buffer pool and arithmetic.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/buffer_pool.h"
#include "engine/compute.h"
#include "engine/peer_table.h"
#include "executor/port.h"

namespace unisono {

struct ActiveOperation;

// The objects of the engine that all operations share.
struct OperationResources {
  PeerTable& peers;
  const std::vector<Transport*>& transports;
  BufferPool& pool;
  Compute& compute;
};

class OperationPort final : public Port {
 public:
  OperationPort(const OperationResources& resources, ActiveOperation& active) : shared_(resources), active_(active) {}

  size_t credit(Rank to) override;
  bool send(Rank to, FrameHeader header, std::span<const std::byte> payload, uint32_t lane) override;
  void release_early(uint32_t lane) override;
  void release_all_early() override;
  size_t slot_bytes(Rank to) override;
  PortSlot acquire(std::span<const Rank> to, size_t bytes, bool result) override;
  void fill(const PortSlot& slot, const std::byte* source, size_t bytes) override;
  void commit(const PortSlot& slot, FrameHeader header) override;
  void abandon(const PortSlot& slot) override;
  void release(const Piece& piece) override;
  std::byte* stage(size_t bytes) override;
  void grant(Rank to, uint64_t bytes) override;
  void request_credit(Rank to, bool again) override;
  std::string location(Rank rank) const override;
  std::string link_state(Rank rank) const override;
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
  uint64_t event(uint32_t lane) const;

  const OperationResources shared_;
  ActiveOperation& active_;
  std::vector<PeerIndex> peers_;  // used by acquire() only; it is a member so that its memory is used again
};

}  // namespace unisono

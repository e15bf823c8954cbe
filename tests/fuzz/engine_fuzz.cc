// Fuzzes the engine. While operations of several kinds run, a member of the group sends frames with arbitrary headers and
// payloads. Such frames may make operations fail. They must not touch memory outside the tensors, leak zero-copy views, or end
// the process.
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/api/calls.h"

namespace {

using namespace unisono;

// A transport that drops all frames that are sent, and passes payloads of the test to the engine as zero-copy views.
class SilentTransport final : public Transport {
 public:
  const char* name() const override { return "silent"; }
  size_t credit(PeerIndex) override { return 8; }
  size_t slot_bytes() const override { return 0; }
  Slot acquire(std::span<const PeerIndex>, size_t, bool) override { return {}; }
  void commit(const Slot&, const FrameHeader&) override {}
  void abandon(const Slot&) override {}
  bool send(PeerIndex, const FrameHeader&, std::span<const std::byte>, uint64_t) override { return true; }
  void release(const View&) override { --views_held; }
  void cancel(const Cancellation&) override {}
  bool poll(Nanos, Sink&) override { return false; }
  Nanos next_deadline() const override { return never; }
  void close(PeerIndex) override {}
  int wait_handle() const override { return -1; }
  bool arm() override { return true; }
  void disarm() override {}
  TransportCounters counters() const override { return {}; }
  std::string describe(PeerIndex) const override { return "silent"; }
  int views_held = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  SilentTransport transport;
  InlineCompute compute;
  std::vector<int32_t> a(1000), b(999), c(300), d(300);
  {
    Engine engine({.unexpected_bytes_max = 1 << 16}, compute);
    engine.add_transport(transport);
    engine.add_peer(1, transport, "rank 1");
    engine.add_peer(2, transport, "rank 2");
    auto& group = engine.make_group(1, 7, {self_peer, 1, 2}, {0, 0, 0});
    engine.set_epoch(7);
    const Caller caller{0, 3, second};
    const auto tensor = [](std::vector<int32_t>& v) { return Tensor(std::span<int32_t>(v)); };
    (void)engine.submit(
        group, *all_reduce_call(caller, tensor(a), tensor(a), {.schedule = ScheduleKind::two_step, .slice_bytes = 64}), 0, 0);
    (void)engine.submit(
        group,
        *all_reduce_call(caller, tensor(b), tensor(b), {.order = Order::any, .schedule = ScheduleKind::halving_doubling}), 0,
        0);
    (void)engine.submit(group, *all_to_all_call(caller, tensor(c), tensor(c), {}, {}, {}), 0, 0);
    (void)engine.submit(group, *message_call(caller, Collective::recv, {}, tensor(d), 1, {}), 3, 0);
    ByteReader reader({reinterpret_cast<const std::byte*>(data), size});
    // Keep the payloads, because engines read zero-copy views until their operations end.
    std::vector<std::unique_ptr<std::vector<std::byte>>> payloads;
    while (reader.left() >= 24) {
      FrameHeader header;
      header.kind = static_cast<FrameKind>(1 + reader.read<uint8_t>() % 6);
      const auto choice = reader.read<uint8_t>();
      header.epoch = choice & 1 ? 7 : reader.read<uint8_t>();
      header.group = choice & 2 ? 1 : reader.read<uint8_t>();
      header.operation = choice & 4 ? message_id({.source = 1, .destination = 0, .tag = 3}, 0) : reader.read<uint8_t>() % 8;
      header.sender = choice & 8 ? 1 : reader.read<uint8_t>();
      header.round = reader.read<uint8_t>();
      header.chunk = reader.read<uint8_t>();
      header.slice = reader.read<uint8_t>();
      header.amount = reader.read<uint16_t>();
      header.descriptor = reader.read<uint32_t>();
      header.payload_bytes = choice & 16 ? 64 : reader.read<uint16_t>();
      payloads.push_back(std::make_unique<std::vector<std::byte>>(header.payload_bytes, std::byte{choice}));
      auto& payload = *payloads.back();
      const PeerIndex from = choice & 32 ? 1 : 2;
      auto* buffer = choice & 64 ? engine.receive_buffer(from, header) : nullptr;
      if (buffer != nullptr) {
        if (!payload.empty()) std::memcpy(buffer, payload.data(), payload.size());
        engine.received(from, header, {buffer, payload.size(), 0});
      } else {
        ++transport.views_held;
        engine.received(from, header, {payload.data(), payload.size(), 1});
      }
    }
    engine.poll(3 * second);
    engine.end_all_groups({Code::unavailable, "end"}, 3 * second);
    engine.set_epoch(8);  // From now on, the engine must not hold any frame of the old epoch.
    UNISONO_CHECK(transport.views_held == 0);
    UNISONO_CHECK(engine.held_bytes() == 0);
  }
  return 0;
}

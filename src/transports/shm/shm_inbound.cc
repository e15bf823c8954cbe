#include "transports/shm/shm_inbound.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/checksum.h"

namespace unisono::shm {

Inbound::Inbound(Host& host, const LinkMemory& memory, PeerIndex from, int socket)
    : host_(host),
      memory_(memory),
      from_(from),
      bell_(&memory.peer->head().wake, socket),
      ring_(memory.peer->cells(memory.peer_region), memory.peer->geometry().ring_cells, &host.arena.region(memory.region).head),
      releases_(host.arena.releases(memory.region), host.arena.geometry().release_entries) {}

Inbound::~Inbound() { drop_incoming(); }

bool Inbound::receive_next(Sink& sink) {
  if (stopped_ || fault_ != nullptr || (!stalled_ && !ring_.pop(entry_))) return false;
  stalled_ = !step(sink);
  return !stalled_;
}

bool Inbound::receive(Sink& sink, uint32_t limit) {
  uint32_t taken = 0;
  while (taken < limit && receive_next(sink)) {
    ++taken;
    if (sink.has_enough()) break;
  }
  return taken > 0;
}

bool Inbound::receive_rest(Sink& sink) {
  uint32_t taken = 0;
  while (taken < host_.arena.geometry().ring_cells && receive_next(sink)) ++taken;
  return taken > 0;
}

bool Inbound::ready() const {
  if (stopped_) return false;
  return stalled_ ? host_.buffers.held_bytes(memory_.region) < stalled_bytes_ : ring_.ready();
}

// Makes the same checks as check_frame, except for the header checksum. Headers in the ring have no checksum, because memory
// needs none.
FrameFault Inbound::check(const FrameHeader& header) const {
  if (header.version != frame_version) return FrameFault::version;
  if (header.kind < FrameKind::data || header.kind > FrameKind::goodbye) return FrameFault::kind;
  if (header.payload_bytes > payload_bytes_max) return FrameFault::payload_bytes;
  return FrameFault::none;
}

bool Inbound::refuse(FrameFault fault, const char* why) {
  ++host_.counters.refused_frames[static_cast<int>(fault)];
  fault_ = why;
  return true;
}

// Handles the cell in entry_. Returns true if the cell is done, and false if it must be tried again later.
bool Inbound::step(Sink& sink) {
  const FrameFault fault = check(entry_.header);
  if (fault != FrameFault::none) return refuse(fault, name(fault));
  switch (entry_.type) {
    case CellType::whole: return take_whole(sink);
    case CellType::first:
    case CellType::next: return take_piece(sink);
    case CellType::abort:
      if (incoming_.stage == Stage::none) return refuse(FrameFault::kind, "the end of a frame that had not begun");
      drop_incoming();
      return true;
  }
  return refuse(FrameFault::kind, "cell type");
}

// Finds the payload of a frame that is not in pieces. If the frame cannot have this payload, returns false and sets `why`.
bool Inbound::find_payload(uint32_t ref, uint32_t bytes, View& view, const char*& why) const {
  view = {};
  if (ref == 0) {
    why = "a payload without a slot";
    return bytes == 0;
  }
  const Arena& peer = *memory_.peer;
  why = "slot index";
  if (!peer.has_slot(ref)) return false;
  why = "payload larger than its slot";
  if (bytes == 0 || bytes > peer.slot_bytes(ref_kind(ref))) return false;
  why = "more slots in use than the limit";
  if (views_out_ >= host_.arena.geometry().release_entries) return false;
  view = {.data = peer.slot(ref_kind(ref), ref_index(ref)), .bytes = bytes, .handle = slot_handle(memory_.region, ref)};
  return true;
}

bool Inbound::take_whole(Sink& sink) {
  View view;
  const char* why = nullptr;
  if (!find_payload(entry_.ref, entry_.header.payload_bytes, view, why)) return refuse(FrameFault::payload_bytes, why);
  if (!payload_intact(entry_.header, view.data)) return true;
  views_out_ += view.handle != 0;
  count(entry_.header.payload_bytes);
  sink.received(from_, entry_.header, view);
  return true;
}

Next Inbound::next(const FrameHeader& expected, const std::byte*& payload) {
  if (stopped_ || stalled_ || fault_ != nullptr) return Next::none;
  const auto found = ring_.compare(expected, next_ref_);
  if (found != Next::expected) return found;
  View view;
  const char* why = nullptr;
  if (!find_payload(next_ref_, expected.payload_bytes, view, why)) return Next::other;  // receive() reports the reason
  next_bytes_ = expected.payload_bytes;
  payload = view.data;
  return Next::expected;
}

void Inbound::take_next() {
  ring_.advance();
  count(next_bytes_);
  if (next_ref_ != 0) releases_.push(next_ref_, batched_publish_order);
}

bool Inbound::take_piece(Sink& sink) {
  const Arena& peer = *memory_.peer;
  const bool first = entry_.type == CellType::first;
  if (ref_kind(entry_.ref) != SlotKind::large || !peer.has_slot(entry_.ref))
    return refuse(FrameFault::payload_bytes, "slot index of a piece");
  if (incoming_.stage != Stage::placing && first != (incoming_.stage == Stage::none))
    return refuse(FrameFault::kind, "piece out of order");
  if (incoming_.stage == Stage::none) {
    if (entry_.header.payload_bytes == 0) return refuse(FrameFault::payload_bytes, "a frame in pieces without a payload");
    incoming_ = {.header = entry_.header, .target = nullptr, .block = 0, .done = 0, .stage = Stage::placing};
    incoming_.target = sink.receive_buffer(from_, incoming_.header);
    if (incoming_.target != nullptr) incoming_.stage = Stage::filling;
    if (stopped_) return true;
  }
  if (incoming_.stage == Stage::placing) {
    const auto block = host_.buffers.take(memory_.region, incoming_.header.payload_bytes);
    stalled_bytes_ = host_.buffers.held_bytes(memory_.region);
    if (!block && stalled_bytes_ == 0) return refuse(FrameFault::payload_bytes, "no memory for its payload");
    if (!block) return false;
    incoming_.target = block.data;
    incoming_.block = block.handle;
    incoming_.stage = Stage::filling;
  }
  const uint32_t bytes = std::min(peer.geometry().piece_bytes, incoming_.header.payload_bytes - incoming_.done);
  if (incoming_.stage == Stage::filling) {
    std::memcpy(incoming_.target + incoming_.done, peer.slot(SlotKind::large, ref_index(entry_.ref)), bytes);
  }
  incoming_.done += bytes;
  push_release(entry_.ref);
  if (incoming_.done == incoming_.header.payload_bytes) finish_incoming(sink);
  return true;
}

void Inbound::finish_incoming(Sink& sink) {
  const Incoming done = incoming_;
  incoming_ = {};
  if (done.stage == Stage::discarding) return;
  if (!payload_intact(done.header, done.target)) {
    host_.buffers.give(done.block);
    return;
  }
  count(done.header.payload_bytes);
  sink.received(
      from_, done.header,
      {.data = done.target, .bytes = done.header.payload_bytes, .handle = done.block == 0 ? 0 : block_handle_bit | done.block});
}

void Inbound::drop_incoming() {
  host_.buffers.give(incoming_.block);  // give() ignores block 0
  incoming_ = {};
}

bool Inbound::payload_intact(const FrameHeader& header, const std::byte* data) {
  if ((header.flags & frame_flag_payload_checksum) == 0 || crc32c(data, header.payload_bytes) == header.payload_checksum)
    return true;
  refuse(FrameFault::payload_checksum, "payload checksum");
  return false;
}

void Inbound::count(uint32_t payload_bytes) {
  ++host_.counters.received_frames;
  host_.counters.received_bytes += sizeof(FrameHeader) + payload_bytes;
  received_bytes_ += sizeof(FrameHeader) + payload_bytes;
}

void Inbound::push_release(uint32_t ref) {
  releases_.push(ref);
  wake_writer();
}

void Inbound::release(uint32_t ref) {
  UNISONO_CHECK(views_out_ > 0);
  --views_out_;
  push_release(ref);
}

void Inbound::cancel(uint32_t group, uint64_t operation) {
  const bool placed = incoming_.stage == Stage::filling && incoming_.block == 0;
  if (placed && incoming_.header.group == group && incoming_.header.operation == operation) incoming_.stage = Stage::discarding;
}

void Inbound::stop() {
  stopped_ = true;
  drop_incoming();
}

}  // namespace unisono::shm

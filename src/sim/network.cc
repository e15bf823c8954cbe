// How the network sends frames: send credit, slots, and the times at which frames arrive.
#include "sim/network.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"
#include "wire/checksum.h"

namespace unisono::sim {

Network::Network(const NetworkSettings& settings, uint32_t processes, uint64_t seed, EventQueue& event_queue, Trace& trace)
    : settings_(settings),
      count_(processes),
      event_queue_(event_queue),
      trace_(trace),
      random_(mix64(seed ^ 0x6E6574)),
      links_(size_t{processes} * processes),
      stations_(processes),
      side_(processes) {}

Network::~Network() = default;

void Network::violation(const std::string& what) {
  if (violations_.size() < 20) violations_.push_back(concat(event_queue_.now(), " ns: ", what));
}

// Frames and blocks -------------------------------------------------------------------------------------------------

Network::Frame* Network::find(uint64_t key) {
  if ((key & 0xFFFFFFFF) >= pages_.size() * page_frames) return nullptr;
  auto& frame = frame_at(key);
  return frame.state != State::free && frame.generation == key >> 32 ? &frame : nullptr;
}

uint64_t Network::take_frame() {
  if (free_frames_.empty()) {
    const auto first = static_cast<uint32_t>(pages_.size() * page_frames);
    pages_.push_back(std::make_unique<Frame[]>(page_frames));
    for (uint32_t i = page_frames; i > 0; --i) free_frames_.push_back(first + i - 1);
  }
  const auto index = free_frames_.back();
  free_frames_.pop_back();
  frame_at(index).state = State::flying;
  return key_of(index);
}

void Network::drop_frame(uint64_t key) {
  auto& frame = frame_at(key);
  const auto block = frame.block;
  const auto generation = frame.generation + 1;
  frame = Frame{};
  frame.generation = generation;
  free_frames_.push_back(static_cast<uint32_t>(key & 0xFFFFFFFF));
  drop_block(block);
}

uint32_t Network::take_block(size_t bytes) {
  if (free_blocks_.empty()) {
    blocks_.emplace_back();
    free_blocks_.push_back(static_cast<uint32_t>(blocks_.size()));
  }
  const auto number = free_blocks_.back();
  free_blocks_.pop_back();
  auto& block = blocks_[number - 1];
  // The block has exactly this size, and its memory goes back to the heap when it is dropped. So sanitizers detect an access
  // beyond the block's end, and an access after it was dropped.
  block.data = std::make_unique<std::byte[]>(std::max<size_t>(bytes, 1));
  block.bytes = bytes;
  block.uses = 1;
  block.slot_owner = no_process;
  return number;
}

void Network::drop_block(uint32_t number) {
  if (number == 0 || --blocks_[number - 1].uses > 0) return;
  auto& block = blocks_[number - 1];
  block.data.reset();
  free_blocks_.push_back(number);
  const auto owner = std::exchange(block.slot_owner, no_process);
  if (owner == no_process) return;
  --stations_[owner].slots_out;
  give_credit(owner);
}

// Copies the payload into a block of the network, so that the frame no longer uses the sender's memory.
void Network::own_payload(Frame& frame) {
  if (frame.block != 0 || frame.data == nullptr) return;
  frame.block = take_block(frame.header.payload_bytes);
  auto* data = blocks_[frame.block - 1].data.get();
  std::memcpy(data, frame.data, frame.header.payload_bytes);
  frame.data = data;
}

void Network::report_sent(Frame& frame) {
  if (frame.notify == NotifySender::never) return;
  frame.notify = NotifySender::never;
  add_event(frame.from, {NetworkEventKind::sent, frame.to, frame.send_id});
}

void Network::verify(const Frame& frame) {
  if (settings_.single_copy || frame.data == nullptr || crc32c(frame.data, frame.header.payload_bytes) == frame.checksum)
    return;
  violation(concat("rank ", frame.from, " changed a payload before sent(): chunk ", frame.header.chunk));
}

// Send credit -------------------------------------------------------------------------------------------------------

void Network::want_credit(PeerIndex self, PeerIndex peer) {
  auto& l = link(self, peer);
  if (l.wants_credit || l.lost) return;
  l.wants_credit = true;
  stations_[self].wants_credit.push_back(peer);
}

// Is called when links of process `self` may accept frames again. Notifies the process of each peer for which it had no credit
// before and has credit now.
void Network::give_credit(PeerIndex self) {
  auto& wants = stations_[self].wants_credit;
  if (wants.empty()) return;
  std::erase_if(wants, [&](PeerIndex peer) {
    auto& l = link(self, peer);
    if (!l.lost && (l.in_flight >= settings_.queue_frames_max || l.refused_until > event_queue_.now())) return false;
    l.wants_credit = false;
    if (!l.lost) add_event(self, {NetworkEventKind::credit, peer, 0});
    return true;
  });
}

// Returns whether the link refuses to accept frames now. It begins to refuse at random, and continues for some time.
bool Network::refuses(Link& l, PeerIndex self) {
  if (l.refused_until > event_queue_.now()) return true;
  if (settings_.refuse == 0 || !random_.chance(settings_.refuse)) return false;
  l.refused_until = event_queue_.now() + 1 + static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.refuse_max)));
  event_queue_.add(l.refused_until, EventKind::credit, self, 0);
  return true;
}

size_t Network::credit(PeerIndex self, PeerIndex peer) {
  auto& l = link(self, peer);
  if (l.lost) return 0;
  ++counters_.credits;
  const bool injected = counters_.credits == settings_.fail_credit;
  if (injected) {
    l.refused_until = event_queue_.now() + 1;
    event_queue_.add(l.refused_until, EventKind::credit, self, 0);
  }
  if (injected || l.in_flight >= settings_.queue_frames_max || refuses(l, self)) {
    want_credit(self, peer);
    return 0;
  }
  return settings_.queue_frames_max - l.in_flight;
}

Slot Network::acquire(PeerIndex self, std::span<const PeerIndex> peers, size_t bytes, bool result) {
  auto& station = stations_[self];
  ++counters_.acquires;
  if (bytes > payload_bytes_max) violation(concat("rank ", self, " acquires ", bytes, " bytes"));
  bool possible = settings_.views_use_queue && counters_.acquires != settings_.fail_acquire &&
                  station.slots_out < settings_.slots - (result ? 0 : settings_.result_slots);
  for (const auto peer : peers) {
    auto& l = link(self, peer);
    possible =
        possible && !l.lost && (settings_.views_take_credit || l.in_flight < settings_.queue_frames_max) && !refuses(l, self);
  }
  if (!possible) {
    for (const auto peer : peers) want_credit(self, peer);
    if (station.slots_out == 0)
      // If the process uses no slots, no other event would make it try again.
      event_queue_.add(event_queue_.now() + 1, EventKind::credit, self, 0);
    return {};
  }
  const auto number = take_block(bytes);
  ++station.slots_out;
  auto& block = blocks_[number - 1];
  block.slot_owner = self;
  block.peers.assign(peers.begin(), peers.end());
  return {block.data.get(), bytes, number};
}

void Network::abandon(PeerIndex self, const Slot& slot) {
  if (slot.handle == 0 || slot.handle > blocks_.size() || blocks_[slot.handle - 1].slot_owner != self) {
    return violation(concat("rank ", self, " returns a slot that it does not hold"));
  }
  drop_block(static_cast<uint32_t>(slot.handle));
}

// Transmission ------------------------------------------------------------------------------------------------------

Nanos Network::arrival_time(PeerIndex from, PeerIndex to, size_t bytes, bool& broken) {
  auto& sender = stations_[from];
  auto& receiver = stations_[to];
  const auto wire = [&](double slowness) {
    return static_cast<Nanos>(static_cast<double>(bytes) * 1000 * slowness / settings_.bytes_per_us);
  };
  sender.egress_free = std::max(sender.egress_free, event_queue_.now()) + wire(sender.slowness);
  // Frames occupy the receiver's ingress in the order in which they were sent, which is accurate enough. To use the order of
  // arrival, the model would need a second event for each frame.
  receiver.ingress_free = std::max(receiver.ingress_free, sender.egress_free + settings_.latency) + wire(receiver.slowness);
  auto arrival = receiver.ingress_free;
  if (settings_.jitter > 0) arrival += static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.jitter)));
  for (uint32_t lost = 0; settings_.loss > 0 && random_.chance(settings_.loss); ++lost) {
    arrival += settings_.retransmit << std::min(lost, 10u);
    broken = lost == settings_.retransmits_max;
    if (broken) break;
  }
  auto& l = link(from, to);
  if (settings_.ordered) arrival = std::max(arrival, l.last_arrival);
  l.last_arrival = std::max(l.last_arrival, arrival);
  return arrival;
}

// Sends a frame whose header and payload are set.
void Network::launch(uint64_t key) {
  auto& frame = frame_at(key);
  const auto from = frame.from, to = frame.to;
  const auto bytes = sizeof(FrameHeader) + frame.header.payload_bytes;
  // In large runs, no payload checksum is computed, because it would read gigabytes a second time.
  frame.checksum = frame.data == nullptr || settings_.single_copy ? 0 : crc32c(frame.data, frame.header.payload_bytes);
  seal_frame(frame.header);
  trace_.frame(event_queue_.now(), "send", from, to, frame.header, frame.checksum);
  ++counters_.frames;
  counters_.bytes += bytes;
  ++stations_[from].counters.sent_frames;
  stations_[from].counters.sent_bytes += bytes;
  frame.takes_credit = frame.header.payload_bytes > 0 && !(settings_.views_take_credit && frame.offered_slot);
  link(from, to).in_flight += frame.takes_credit;
  bool broken = false;
  const auto arrival = arrival_time(from, to, bytes, broken);
  event_queue_.add(arrival, EventKind::arrive, to, key);
  if (++counters_.sends == settings_.fail_send) cut(from, to, 0, 10 * microsecond, "injected: a send failed");
  if (broken)
    cut(from, to, arrival - event_queue_.now(), arrival - event_queue_.now(),
        concat("no acknowledgement after ", settings_.retransmits_max, " retransmissions"));
}

bool Network::send(PeerIndex self, PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  auto& l = link(self, peer);
  if (l.lost) return true;
  if (!payload.empty() && header.kind != FrameKind::failed &&
      (l.in_flight >= settings_.queue_frames_max || l.refused_until > event_queue_.now())) {
    violation(concat("rank ", self, " sends to rank ", peer, " without send credit"));
  }
  if (payload.size() > payload_bytes_max) violation(concat("rank ", self, " sends ", payload.size(), " bytes in one frame"));
  const auto key = take_frame();
  auto& frame = frame_at(key);
  frame.header = header;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.from = self;
  frame.to = peer;
  frame.send_id = id;
  bool free_already = true;
  if (!payload.empty()) {
    frame.data = payload.data();
    const bool copy = !settings_.single_copy && random_.chance(settings_.copy);
    if (copy) own_payload(frame);
    // Even if the payload was copied, send() may return false at random. The sender is then notified by sent().
    free_already = copy && (settings_.copy >= 1 || random_.chance(0.5));
    if (!free_already)
      frame.notify = settings_.single_copy || random_.chance(0.5) ? NotifySender::on_receipt : NotifySender::on_arrival;
  }
  launch(key);
  return free_already;
}

void Network::commit(PeerIndex self, const Slot& slot, const FrameHeader& header) {
  const auto number = static_cast<uint32_t>(slot.handle);
  if (number == 0 || number > blocks_.size() || blocks_[number - 1].slot_owner != self) {
    return violation(concat("rank ", self, " commits a slot that it does not hold"));
  }
  if (header.payload_bytes > blocks_[number - 1].bytes) violation(concat("rank ", self, " commits more than its slot holds"));
  const auto peers = blocks_[number - 1].peers;
  for (const auto peer : peers) {
    if (link(self, peer).lost) continue;
    const auto key = take_frame();
    auto& frame = frame_at(key);
    frame.header = header;
    frame.from = self;
    frame.to = peer;
    frame.offered_slot = true;
    if (header.payload_bytes > 0) {
      ++blocks_[number - 1].uses;
      frame.block = number;
      frame.data = blocks_[number - 1].data.get();
    }
    launch(key);
  }
  drop_block(number);
}

}  // namespace unisono::sim

#include "transports/testing/faulty.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"
#include "base/random.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

// This bit marks the handles of views that FaultyTransport itself lends. The inner transport must not use this bit.
// ShmTransport uses it for its pool blocks, and therefore cannot be the inner transport.
constexpr uint64_t own_handle = uint64_t{1} << 63;

void flip_bit(void* bytes, size_t count, uint64_t choice) {
  const size_t bit = choice % (count * 8);
  static_cast<std::byte*>(bytes)[bit / 8] ^= std::byte{1} << (bit % 8);
}

}  // namespace

// Sending -----------------------------------------------------------------------------------------------------------

Slot FaultyTransport::acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) {
  if (plan_.keeps_memory) return {};
  const auto slot = inner_.acquire(peers, bytes, result);
  if (slot && plan_.fail_send != 0) slot_peers_[slot.handle].assign(peers.begin(), peers.end());
  return slot;
}

void FaultyTransport::commit(const Slot& slot, const FrameHeader& header) {
  if (plan_.fail_send == 0 || ++send_count_ != plan_.fail_send) return inner_.commit(slot, header);
  inner_.abandon(slot);
  for (const auto peer : slot_peers_[slot.handle]) {
    break_link(peer, Code::peer_lost, concat("injected: send ", send_count_, " failed"));
  }
}

void FaultyTransport::abandon(const Slot& slot) { inner_.abandon(slot); }

bool FaultyTransport::send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  ++send_count_;
  if (broken(peer)) return true;
  if (send_count_ != plan_.fail_send) {
    const bool done = inner_.send(peer, header, payload, id);
    if (!plan_.keeps_memory || payload.empty()) return done;
    kept_.push_back({.to = peer, .id = id, .in_use = !done});
    return false;
  }
  break_link(peer, Code::peer_lost, concat("injected: send ", send_count_, " failed"));
  return true;
}

void FaultyTransport::release_early(uint64_t match, uint64_t mask) {
  for (auto& kept : kept_) kept.asked_for |= (kept.id & mask) == match;
  inner_.release_early(match, mask);
}

void FaultyTransport::on_sent(uint64_t id) {
  if (!plan_.keeps_memory) return outer_->sent(id);
  for (auto& kept : kept_) {
    if (kept.id == id && kept.in_use) {
      kept.in_use = false;
      return;
    }
  }
}

bool FaultyTransport::report_kept() {
  const auto due = [&](const KeptSend& kept) { return broken(kept.to) || (kept.asked_for && !kept.in_use); };
  const auto first = std::stable_partition(kept_.begin(), kept_.end(), [&](const KeptSend& kept) { return !due(kept); });
  const std::vector<KeptSend> reported(first, kept_.end());
  kept_.erase(first, kept_.end());
  for (const auto& kept : reported) outer_->sent(kept.id);
  return !reported.empty();
}

void FaultyTransport::release(const View& view) {
  if ((view.handle & own_handle) == 0) return inner_.release(view);
  const size_t index = view.handle & ~own_handle;
  copies_[index].clear();
  free_copies_.push_back(index);
}

// Frames that are held need nothing here, because they get a receive buffer only when they are delivered.
void FaultyTransport::cancel(const Cancellation& what) {
  inner_.cancel(what);
  std::erase_if(kept_, [&](const KeptSend& kept) { return what.concerns_send(kept.id); });
}

void FaultyTransport::close(PeerIndex peer) {
  inner_.close(peer);
  drop_held(peer);
  for (auto& kept : kept_) {
    if (kept.to == peer) kept.in_use = false, kept.asked_for = true;
  }
  const auto same = [&](const LostEvent& event) { return event.peer == peer; };
  std::erase_if(breaking_, same);
  std::erase_if(lost_events_, same);
  links_.erase(peer);
}

// Receiving ---------------------------------------------------------------------------------------------------------

std::byte* FaultyTransport::on_receive_buffer(PeerIndex from, const FrameHeader& header) {
  // A frame that will be held or damaged must not be written into the sink's memory yet.
  return plan_.faults_frames() || plan_.fail_receive != 0 || broken(from) ? nullptr : outer_->receive_buffer(from, header);
}

void FaultyTransport::on_frame(PeerIndex from, const FrameHeader& header, const View& view) {
  const auto drop = [&] {
    if (view.handle != 0) inner_.release(view);
  };
  auto& link = links_[from];
  if (link.broken) return drop();
  ++receive_count_;
  const auto number = ++link.frames;
  for (auto& held : held_) {
    if (held.from == from && held.passes_left > 0 && held.passes_left != UINT32_MAX) --held.passes_left;
  }
  if (receive_count_ == plan_.fail_receive) {
    drop();
    return break_link(from, Code::peer_lost, concat("injected: receive ", receive_count_, " failed"));
  }
  const auto choice = choose(from, number);
  if (choice.disconnect) {
    drop();
    return break_link(from, Code::peer_lost, concat("injected: disconnected at its frame ", number));
  }
  if (choice.corrupt_header || choice.corrupt_payload) return damage(from, header, view, choice);
  if (choice.delay || choice.reorder || choice.duplicate || choice.cut) return hold(from, header, view, choice);
  deliver_view(from, header, view);
}

FaultyTransport::Choice FaultyTransport::choose(PeerIndex from, uint64_t number) const {
  Random random(mix64(plan_.seed ^ mix64(from + 1)) ^ mix64(number));
  // Draw a random number for every fault, even if its probability is 0. In this way, a fault hits the same frames whatever the
  // probabilities of the other faults are.
  Choice choice{};
  choice.delay = random.chance(plan_.delay);
  choice.reorder = random.chance(plan_.reorder);
  choice.duplicate = random.chance(plan_.duplicate);
  choice.cut = random.chance(plan_.cut);
  choice.corrupt_header = random.chance(plan_.corrupt_header);
  choice.corrupt_payload = random.chance(plan_.corrupt_payload);
  choice.disconnect = random.chance(plan_.disconnect);
  choice.amount = random.next();
  return choice;
}

// Damages the frame as `choice` says, and then checks it as the receiver of a stream would check it. If the check fails, counts
// the frame and ends the link. Otherwise delivers the frame.
void FaultyTransport::damage(PeerIndex from, FrameHeader header, const View& view, const Choice& choice) {
  auto payload = copy_and_release(view);
  seal_frame(header);
  if (choice.corrupt_header) flip_bit(&header, sizeof header, choice.amount);
  if (choice.corrupt_payload && !payload.empty()) flip_bit(payload.data(), payload.size(), choice.amount);
  auto fault = check_frame(header);
  if (fault == FrameFault::none && (header.flags & frame_flag_payload_checksum) != 0 &&
      header.payload_checksum != crc32c(payload.data(), payload.size())) {
    fault = FrameFault::payload_checksum;
  }
  if (fault == FrameFault::none) return deliver_copy(from, header, std::move(payload));
  ++refused_[static_cast<size_t>(fault)];
  break_link(from, Code::corrupt, std::string("injected: damaged frame (") + unisono::name(fault) + ")");
}

void FaultyTransport::hold(PeerIndex from, const FrameHeader& header, const View& view, const Choice& choice) {
  Held held{.from = from, .header = header, .payload = copy_and_release(view)};
  Random random(choice.amount);
  if (choice.cut && !held.payload.empty()) {
    held.payload.resize(random.below(held.payload.size()));
    held.header.payload_bytes = static_cast<uint32_t>(held.payload.size());
    if ((held.header.flags & frame_flag_payload_checksum) != 0) {
      held.header.payload_checksum = crc32c(held.payload.data(), held.payload.size());
    }
    seal_frame(held.header);
  }
  const auto wait = static_cast<Nanos>(random.below(static_cast<uint64_t>(plan_.delay_max) + 1));
  held.due = now_ + wait;
  if (choice.duplicate) {
    held_.push_back(held);
    held_.back().due = now_;
  }
  if (choice.reorder) {
    held.passes_left = 1 + static_cast<uint32_t>(random.below(plan_.reorder_frames_max));
    held.due = now_ + plan_.delay_max;
  } else if (!choice.delay) {
    held.due = now_;
  }
  held_.push_back(std::move(held));
}

Bytes FaultyTransport::copy_and_release(const View& view) {
  Bytes payload;
  if (view.bytes > 0) payload.assign(view.data, view.data + view.bytes);
  if (view.handle != 0) inner_.release(view);
  return payload;
}

// Delivers a frame of the inner transport. While faults are injected, on_receive_buffer returns null, so the frame comes as a
// view. Therefore this function asks the sink for the receive buffer.
void FaultyTransport::deliver_view(PeerIndex from, const FrameHeader& header, const View& view) {
  if (view.handle == 0 || view.bytes == 0) return outer_->received(from, header, view);
  auto* target = plan_.faults_frames() || plan_.fail_receive != 0 ? outer_->receive_buffer(from, header) : nullptr;
  if (target == nullptr) return outer_->received(from, header, view);
  std::memcpy(target, view.data, view.bytes);
  inner_.release(view);
  outer_->received(from, header, {target, view.bytes, 0});
}

void FaultyTransport::deliver_copy(PeerIndex from, const FrameHeader& header, Bytes payload) {
  if (payload.empty()) return outer_->received(from, header, {});
  if (auto* target = outer_->receive_buffer(from, header)) {
    std::memcpy(target, payload.data(), payload.size());
    return outer_->received(from, header, {target, payload.size(), 0});
  }
  if (free_copies_.empty()) {
    free_copies_.push_back(copies_.size());
    copies_.emplace_back();
  }
  const size_t index = free_copies_.back();
  free_copies_.pop_back();
  copies_[index] = std::move(payload);
  outer_->received(from, header, {copies_[index].data(), copies_[index].size(), own_handle | index});
}

void FaultyTransport::on_lost(PeerIndex peer, const Status& why, PeerFate fate) {
  auto& link = links_[peer];
  if (link.broken) return;
  link.broken = true;
  // Deliver the held frames of this peer first: they arrived before the loss.
  for (size_t i = 0; i < held_.size();) {
    if (held_[i].from != peer) {
      ++i;
      continue;
    }
    auto held = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    deliver_copy(peer, held.header, std::move(held.payload));
  }
  report_kept();
  outer_->lost(peer, why, fate);
}

void FaultyTransport::on_credit(PeerIndex peer) {
  if (!broken(peer)) outer_->credit(peer);
}

bool FaultyTransport::broken(PeerIndex peer) const {
  const auto found = links_.find(peer);
  return found != links_.end() && found->second.broken;
}

void FaultyTransport::break_link(PeerIndex peer, Code code, const std::string& why) {
  auto& link = links_[peer];
  if (link.broken) return;
  link.broken = true;
  drop_held(peer);
  breaking_.push_back({peer, Status(code, why + "; " + inner_.describe(peer))});
}

void FaultyTransport::drop_held(PeerIndex peer) {
  std::erase_if(held_, [&](const Held& held) { return held.from == peer; });
}

// Driving -----------------------------------------------------------------------------------------------------------

bool FaultyTransport::poll(Nanos now, Sink& sink) {
  outer_ = &sink;
  now_ = now;
  bool any = inner_.poll(now, inner_sink_);
  any |= deliver_held();
  any |= report_kept();
  // The previous poll() closed these links. Meanwhile inner_.poll() above has made the last sent() upcalls for them, so `lost`
  // can be reported.
  for (const auto& event : std::exchange(lost_events_, {})) {
    sink.lost(event.peer, event.why, PeerFate::unknown);
    any = true;
  }
  for (auto& event : std::exchange(breaking_, {})) {
    inner_.close(event.peer);
    lost_events_.push_back(std::move(event));
    any = true;
  }
  return any;
}

bool FaultyTransport::deliver_held() {
  bool any = false;
  for (size_t i = 0; i < held_.size();) {
    if (now_ < held_[i].due && held_[i].passes_left != 0) {
      ++i;
      continue;
    }
    auto held = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    deliver_copy(held.from, held.header, std::move(held.payload));
    any = true;
  }
  return any;
}

Nanos FaultyTransport::next_deadline() const {
  if (!breaking_.empty() || !lost_events_.empty()) return 0;
  Nanos next = inner_.next_deadline();
  for (const auto& held : held_) next = std::min(next, held.passes_left == 0 ? now_ : held.due);
  return next;
}

TransportCounters FaultyTransport::counters() const {
  auto counters = inner_.counters();
  for (int i = 0; i < frame_fault_count; ++i) counters.refused_frames[i] += refused_[i];
  return counters;
}

}  // namespace unisono

// For tests of links: one process with a TcpTransport. It sends frames with known contents, receives those of others, and
// checks what a transport promises to its caller.
//
// - Each frame arrives at most once, with the right bytes, and in order if links have one stream.
// - The transport reads no payload, and writes to no receive buffer, that was given back. Given-back memory is overwritten.
// - For each send that was not cancelled, the transport says once that it needs the payload no longer.
// - `lost` is told once, after `sent` for all pending sends.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/concat.h"
#include "sim/tcp/virtual_streams.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono::sim {

// The frame number `number` from one process to another.
struct FrameName {
  ProcessIndex from = 0, to = 0;
  uint32_t number = 0;
  friend auto operator<=>(const FrameName&, const FrameName&) = default;
  std::string text() const { return concat("frame ", number, " from ", from, " to ", to); }
};

inline Bytes payload_of(const FrameName& name, size_t bytes) {
  Random random(mix64(uint64_t{name.number} << 16 | name.from << 8 | name.to));
  Bytes payload(bytes + 8);
  for (size_t at = 0; at < bytes; at += 8) {
    const auto word = random.next();
    std::memcpy(payload.data() + at, &word, 8);
  }
  payload.resize(bytes);
  return payload;
}

class LinkPeer final : public Sink {
 public:
  static constexpr uint32_t frames_per_operation = 4;
  static constexpr std::byte poison{0xDD};

  // What has become of a frame.
  struct Outgoing {
    Bytes payload{};
    uint32_t link = 0;  // number of the link to this peer on which it was sent
    bool lent = false;  // the transport may still read the payload
    bool cancelled = false;
  };
  struct Incoming {
    Bytes buffer{};
    bool asked = false, received = false, cancelled = false;
  };

  LinkPeer(ProcessIndex own_index, bool frames_in_order, uint64_t seed)
      : self(own_index), in_order_(frames_in_order), random_(seed) {}

  // Returns a text if a promise was broken.
  const std::string& problem() const { return problem_; }

  uint32_t send_frame(ProcessIndex to, size_t bytes) {
    auto& link = links[to];
    const FrameName name{self, to, link.next_number++};
    auto& frame = outgoing[name];
    frame.payload = payload_of(name, bytes);
    frame.link = link.count;
    frame.lent = bytes > 0;
    FrameHeader header;
    header.group = 1;
    header.operation = name.number / frames_per_operation;
    header.chunk = name.number;
    header.sender = self;
    header.amount = bytes;
    if (transport->send(to, header, frame.payload, id(to, name.number))) give_back(frame);
    return name.number;
  }
  // Cancels an operation: the pending sends to one peer, and the receive buffers for frames from it.
  void cancel(ProcessIndex peer, uint32_t operation) {
    transport->cancel({.match = id(peer, operation * frames_per_operation),
                       .mask = ~uint64_t{frames_per_operation - 1},
                       .group = 1,
                       .operation = operation,
                       .from = peer});
    for (uint32_t i = 0; i < frames_per_operation; ++i) {
      const auto number = operation * frames_per_operation + i;
      if (const auto sent_frame = outgoing.find({self, peer, number});
          sent_frame != outgoing.end() && sent_frame->second.lent) {
        sent_frame->second.cancelled = true;
        give_back(sent_frame->second);
      }
      const auto found = incoming.find({peer, self, number});
      if (found == incoming.end() || !found->second.asked || found->second.received) continue;
      found->second.cancelled = true;
      std::fill(found->second.buffer.begin(), found->second.buffer.end(), poison);
    }
  }
  void release_views() {
    for (const auto& view : views_) transport->release(view);
    views_.clear();
  }
  size_t held_views() const { return views_.size(); }
  bool has_lent_payload() const {
    return std::any_of(outgoing.begin(), outgoing.end(), [](const auto& entry) { return entry.second.lent; });
  }
  void check_given_back_buffers() {
    for (const auto& [name, frame] : incoming) {
      const auto& bytes = frame.buffer;
      if (frame.cancelled && std::any_of(bytes.begin(), bytes.end(), [](auto byte) { return byte != poison; }))
        fail(name.text() + " was written to its buffer after cancel()");
    }
  }

  // Functions of Sink.
  std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override {
    const FrameName name{from, self, header.chunk};
    auto& frame = incoming[name];
    if (frame.asked) fail("the transport asks twice for a buffer for " + name.text());
    if (!random_.chance(0.6)) return nullptr;
    frame.asked = true;
    frame.buffer.assign(header.payload_bytes, std::byte{0});
    return frame.buffer.data();
  }
  void received(PeerIndex from, const FrameHeader& header, const View& view) override {
    const FrameName name{from, self, header.chunk};
    auto& frame = incoming[name];
    if (std::exchange(frame.received, true)) fail(name.text() + " arrives twice");
    if (frame.cancelled) fail(name.text() + " arrives after cancel()");
    if (links[from].lost_told) fail(name.text() + " arrives after the link was lost");
    if (frame.asked && view.data != frame.buffer.data()) fail(name.text() + " is not in its buffer");
    auto& newest = newest_[from];
    if (in_order_ && header.chunk < newest) fail(concat(name.text(), " arrives after frame ", newest));
    newest = std::max(newest, header.chunk);
    const auto expected = payload_of(name, header.amount);
    if (view.bytes != expected.size() || (view.bytes > 0 && std::memcmp(view.data, expected.data(), view.bytes) != 0))
      fail(name.text() + " is damaged");
    if (view.handle == 0) return;
    if (random_.chance(0.5)) views_.push_back(view);
    else transport->release(view);
  }
  void sent(uint64_t id) override {
    const auto found = outgoing.find({self, static_cast<ProcessIndex>(id >> 32), static_cast<uint32_t>(id)});
    if (found == outgoing.end()) return fail("sent() names a frame that nobody has sent");
    if (found->second.cancelled) fail(found->first.text() + ": sent() after cancel()");
    else if (!found->second.lent) fail(found->first.text() + ": sent() although the payload was given back");
    give_back(found->second);
  }
  void lost(PeerIndex peer, const Status& why, PeerFate) override {
    auto& link = links[peer];
    if (std::exchange(link.lost_told, true)) fail(concat("the loss of peer ", peer, " is told twice"));
    if (why.ok()) fail("a link is lost without an error");
    for (const auto& [name, frame] : outgoing) {
      if (name.to == peer && frame.lent) fail(name.text() + ": no sent() before the link is lost");
    }
    // What was half received stays so.
    for (auto& [name, frame] : incoming) {
      if (name.from == peer && frame.asked && !frame.received)
        frame.cancelled = true, std::fill(frame.buffer.begin(), frame.buffer.end(), poison);
    }
    if (on_lost) on_lost(peer, why);
  }
  void credit(PeerIndex peer) override {
    if (links[peer].lost_told) fail(concat("credit for peer ", peer, ", which is lost"));
  }

  struct Link {
    uint32_t count = 0;        // how many links to this peer were asked for
    uint32_t next_number = 0;  // of the next frame to it
    bool lost_told = true;     // no link is asked for at the moment
  };

  ProcessIndex self;
  std::unique_ptr<TcpTransport> transport;
  std::map<ProcessIndex, Link> links;
  std::map<FrameName, Outgoing> outgoing;
  std::map<FrameName, Incoming> incoming;
  std::function<void(PeerIndex, const Status&)> on_lost;

 private:
  static uint64_t id(ProcessIndex to, uint32_t number) { return uint64_t{to} << 32 | number; }
  void give_back(Outgoing& frame) {
    frame.lent = false;
    std::fill(frame.payload.begin(), frame.payload.end(), poison);
  }
  void fail(const std::string& text) {
    if (problem_.empty()) problem_ = concat("process ", self, ": ", text);
  }

  bool in_order_;
  Random random_;
  std::vector<View> views_;
  std::map<PeerIndex, uint32_t> newest_;
  std::string problem_;
};

}  // namespace unisono::sim

// Virtual links between virtual processes. The network decides when frames arrive, and makes the faults of links. A
// SimTransport gives one process access to the network.
//
// Links are reliable, like the real transports. A lost packet costs a retransmission, and too many lost packets break the link.
//
// Everything that Transport allows happens at random, depending on the seed:
// - Frames overtake each other. Send credit runs out and returns.
// - sent() comes late or at once.
// - A payload is written to its destination in two parts, or the receiver gets a view of it.
//
// violations() lists each use that Transport forbids. The network owns all frames, and the memory behind views and slots. It is
// single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "sim/event_queue.h"
#include "sim/trace.h"
#include "transports/transport.h"

namespace unisono::sim {

// The settings apply to all links. Probabilities are from 0 to 1, and apply to each frame or call.
struct NetworkSettings {
  Nanos latency = 20 * microsecond;
  Nanos jitter = 0;  // a random delay of up to this is added to the latency
  // A process sends at this rate, and can receive at the same rate at the same time. 1250 is 10 Gbit/s.
  double bytes_per_us = 1250;
  // Probability that a packet is lost. The first loss costs `retransmit`, and each further loss of the packet costs twice as
  // much.
  double loss = 0;
  Nanos retransmit = 500 * microsecond;
  uint32_t retransmits_max = 10;  // if a packet is lost once more than this, the link breaks
  bool ordered = true;            // frames of one link do not overtake each other
  // While the receiver has not yet taken this many frames of a link, the link accepts no more frames with a payload.
  uint32_t queue_frames_max = 64;
  bool views_use_queue = false;
  uint32_t slots = 64, result_slots = 16;  // each process has `slots` slots; result_slots of them are reserved for results
  double view_chance = 0;  // Probability that the receiver gets a view of the payload instead of a copy in its receive buffer.
  // If true, as in shared memory, a view stays in the queue of its link until it is released, and a frame from a slot is in no
  // queue.
  bool views_take_credit = false;
  double copy = 1;  // probability that send() copies the payload
  // Probability that a payload is written to its destination in two parts. The second part is written at a later poll.
  double split = 0;
  double refuse = 0;  // probability that credit() and acquire() refuse for a while
  Nanos refuse_max = 200 * microsecond;
  uint32_t events_per_poll_max = 0;  // a poll takes at most this many events; 0: all pending events
  Nanos wake_max = 0;                // largest random delay between an event and the poll that takes it
  Nanos poll_gap = 0;                // minimum time between two polls of a process
  // True for large runs without faults: views show the memory of the sender, and payloads are neither verified nor traced.
  bool single_copy = false;
  // Injected faults. For each kind of call, the n-th call fails, counted from 1; with 0, no call fails. If a send or an arrival
  // fails, its link is cut. If credit() or acquire() fails, it returns a refusal.
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
};

struct NetworkCounters {
  uint64_t frames = 0, bytes = 0;  // frames and bytes sent, including headers
  uint64_t sends = 0, receives = 0, credits = 0, acquires = 0;
};

class Network {
 public:
  Network(const NetworkSettings& settings, uint32_t processes, uint64_t seed, EventQueue& event_queue, Trace& trace);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // These functions implement the transport of process `self`; see transports/transport.h.
  size_t credit(PeerIndex self, PeerIndex peer);
  Slot acquire(PeerIndex self, std::span<const PeerIndex> peers, size_t bytes, bool result);
  void commit(PeerIndex self, const Slot& slot, const FrameHeader& header);
  void abandon(PeerIndex self, const Slot& slot);
  bool send(PeerIndex self, PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  bool release_acknowledged(PeerIndex self, uint64_t match, uint64_t mask);
  void release_early(PeerIndex self, uint64_t match, uint64_t mask);
  void release(PeerIndex self, const View& view);
  void cancel(PeerIndex self, const Cancellation& what);
  bool poll(PeerIndex self, Sink& sink);
  void close(PeerIndex self, PeerIndex peer);
  bool has_events(PeerIndex self) const { return !stations_[self].events.empty(); }

  // These functions handle events of the event queue.
  void arrive(uint64_t frame);
  void credit_again(PeerIndex self) { give_credit(self); }
  void lose(uint64_t loss);

  // Cuts the link between `a` and `b` at once. Process `a` notices this after `notice_a`, and process `b` after `notice_b`.
  // With `never`, the process does not notice it.
  void cut(PeerIndex a, PeerIndex b, Nanos notice_a, Nanos notice_b, const std::string& why);
  // The link between `a` and `b` has no connection until time `until`. Then it goes on where it stopped.
  void reset(PeerIndex a, PeerIndex b, Nanos until);
  // Kills the process: it no longer receives or polls. Its links are not cut.
  void kill(PeerIndex self);
  // Divides the processes into two sides. Frames from one side to the other wait until time `until`.
  void partition(std::vector<bool> side, Nanos until);
  bool separated(PeerIndex a, PeerIndex b) const { return event_queue_.now() < heals_ && side_[a] != side_[b]; }
  void slow_link(PeerIndex self, double factor) { stations_[self].slowness = factor; }
  void end_faults();  // ends loss, jitter, refusals and injected failures

  bool is_cut(PeerIndex a, PeerIndex b) const { return links_[a * count_ + b].cut; }
  const NetworkSettings& settings() const { return settings_; }
  const NetworkCounters& counters() const { return counters_; }
  TransportCounters counters_of(PeerIndex self) const { return stations_[self].counters; }
  // Each text says which process broke a rule of Transport, and how.
  const std::vector<std::string>& violations() const { return violations_; }
  // Returns a text for each process. It lists the network's memory that the process has not returned, and the process's memory
  // that the network still uses. Without such memory, the text is empty. The function visits all frames once.
  std::vector<std::string> held() const;
  std::string held_by(PeerIndex self) const { return held()[self]; }

 private:
  enum class State : uint8_t {
    free,
    flying,
    queued,
    writing,
    viewed,
    stranded
  };  // `stranded`: the frame will never arrive, but its sender does not know yet
  enum class NotifySender : uint8_t { never, on_arrival, on_receipt };  // says when sent(id) is reported to the sender
  enum class NetworkEventKind : uint8_t { frame, write_rest, sent, credit, lost, nothing };

  struct Frame {
    FrameHeader header;
    const std::byte* data = nullptr;
    uint64_t send_id = 0;
    uint32_t block = 0;  // number of the block that owns `data`; 0: `data` is null, or points into the sender's memory
    uint32_t checksum = 0;
    PeerIndex from = 0, to = 0;
    uint32_t generation = 0;
    State state = State::free;
    NotifySender notify = NotifySender::never;
    bool offered_slot = false;  // the payload was committed in a slot, not passed to send()
    bool takes_credit = false;  // the frame counts in the queue of its link
    std::byte* target = nullptr;
    size_t written = 0;
  };
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    uint32_t uses = 0;
    PeerIndex slot_owner = no_process;
    std::vector<PeerIndex> peers;
  };
  struct Link {  // one direction between two processes
    Nanos last_arrival = 0;
    Nanos refused_until = 0;
    Nanos down_until = 0;
    uint32_t in_flight = 0;
    bool cut = false, lost = false, wants_credit = false;
  };
  struct NetworkEvent {
    NetworkEventKind kind = NetworkEventKind::frame;
    PeerIndex peer = 0;
    uint64_t value = 0;  // frame key, send id, or index into losses_
  };
  struct Loss {
    PeerIndex self = 0, peer = 0;
    std::string why;
  };
  struct Station {  // the state of one process
    std::deque<NetworkEvent> events;
    std::vector<PeerIndex> wants_credit;
    Nanos egress_free = 0, ingress_free = 0;
    Nanos next_poll = 0;
    double slowness = 1;
    uint32_t slots_out = 0;
    bool dead = false;
    TransportCounters counters;
  };

  static constexpr PeerIndex no_process = UINT32_MAX;
  static constexpr size_t page_frames = 1024;

  Frame& frame_at(uint64_t key) { return pages_[(key & 0xFFFFFFFF) / page_frames][(key & 0xFFFFFFFF) % page_frames]; }
  const Frame& frame_at(uint64_t key) const {
    return pages_[(key & 0xFFFFFFFF) / page_frames][(key & 0xFFFFFFFF) % page_frames];
  }
  // Returns null if the frame no longer exists.
  Frame* find(uint64_t key);
  uint64_t key_of(uint32_t index) { return uint64_t{frame_at(index).generation} << 32 | index; }
  template <typename F>
  void each_frame(F&& call);
  template <typename F>
  bool give_back(PeerIndex self, uint64_t match, uint64_t mask, F&& gives);
  uint64_t take_frame();
  void drop_frame(uint64_t key);
  uint32_t take_block(size_t bytes);
  void drop_block(uint32_t block);
  void own_payload(Frame& frame);
  void strand(uint64_t key);
  void drop_sends(PeerIndex self, PeerIndex peer);
  void report_sent(Frame& frame);

  Link& link(PeerIndex from, PeerIndex to) { return links_[size_t{from} * count_ + to]; }
  void add_event(PeerIndex self, const NetworkEvent& event);
  void want_credit(PeerIndex self, PeerIndex peer);
  void give_credit(PeerIndex self);
  bool refuses(Link& link, PeerIndex self);
  Nanos arrival_time(PeerIndex from, PeerIndex to, size_t bytes, bool& broken);
  void launch(uint64_t key);
  void deliver(PeerIndex self, uint64_t key, Sink& sink);
  void finish_write(PeerIndex self, uint64_t key, Sink& sink);
  void give_view(uint64_t key, Sink& sink);
  void count_received(const Frame& frame);
  void leave_queue(Frame& frame);
  void report_lost(PeerIndex self, const NetworkEvent& event, Sink& sink);
  void violation(const std::string& what);
  void verify(const Frame& frame);

  NetworkSettings settings_;
  uint32_t count_;
  EventQueue& event_queue_;
  Trace& trace_;
  Random random_;
  std::vector<std::unique_ptr<Frame[]>> pages_;
  std::vector<uint32_t> free_frames_;
  std::vector<Block> blocks_;  // index: block number - 1
  std::vector<uint32_t> free_blocks_;
  std::vector<Link> links_;  // index: from * count_ + to
  std::vector<Station> stations_;
  std::vector<bool> side_;
  Nanos heals_ = 0;
  std::vector<Loss> losses_;
  NetworkCounters counters_;
  std::vector<std::string> violations_;
};

}  // namespace unisono::sim

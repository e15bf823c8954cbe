// Virtual links between virtual processes: frames in flight, their timing and faults. SimTransport is one process's view of the
// network.
//
// Links are reliable, like the real transports: a lost packet costs a retransmission, and too many lost packets break the link.
// Everything that Transport allows happens randomly, by seed: frames overtake each other, send credit runs out and returns,
// sent() comes late or at once, and payloads are written to their destination in two parts or given as views. violations()
// records whatever Transport forbids its user. Owns all frames and all memory behind views and slots; single-threaded.
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

// Probabilities are 0 … 1 per frame or call.
struct NetworkSettings {
  Nanos latency = 20 * microsecond;
  Nanos jitter = 0;            // added delay, at most
  double bytes_per_us = 1250;  // that a process sends, and also receives at the same time (10 Gbit/s)
  double loss = 0;             // of a packet; costs `retransmit`, doubled each time
  Nanos retransmit = 500 * microsecond;
  uint32_t retransmits_max = 10;   // one more breaks the link
  bool ordered = true;             // frames of one link do not overtake each other
  uint32_t queue_frames_max = 64;  // with payload, per link, sent and not yet taken
  bool views_use_queue = false;
  uint32_t slots = 64, result_slots = 16;  // per process
  double lend = 0;                         // a payload is given as a view although it has a destination
  bool views_take_credit = false;          // views occupy the link's queue, and slots do not: as in shared memory
  double copy = 1;                         // send() needs the payload only during the call
  double split = 0;                        // a payload is written to its destination in two parts, the second one later
  double refuse = 0;                       // credit() and acquire() refuse for a while
  Nanos refuse_max = 200 * microsecond;
  uint32_t events_per_poll_max = 0;  // 0: all pending events
  Nanos wake_max = 0;                // from an event to the poll that takes it
  Nanos poll_gap = 0;                // a process polls no more often than this
  // Saves time: views show the sender's own memory, and payloads are neither verified nor traced. Only without faults.
  bool single_copy = false;
  // The n-th call of its kind fails, counted from 1: a send or an arrival cuts its link, credit() and acquire() refuse.
  uint64_t fail_send = 0, fail_receive = 0, fail_credit = 0, fail_acquire = 0;
};

struct NetworkCounters {
  uint64_t frames = 0, bytes = 0;  // sent, headers included
  uint64_t sends = 0, receives = 0, credits = 0, acquires = 0;
};

class Network {
 public:
  Network(const NetworkSettings& settings, uint32_t processes, uint64_t seed, EventQueue& event_queue, Trace& trace);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // One process's transport; see transports/transport.h.
  size_t credit(PeerIndex self, PeerIndex peer);
  Slot acquire(PeerIndex self, std::span<const PeerIndex> peers, size_t bytes, bool result);
  void commit(PeerIndex self, const Slot& slot, const FrameHeader& header);
  void abandon(PeerIndex self, const Slot& slot);
  bool send(PeerIndex self, PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  void release(PeerIndex self, const View& view);
  void cancel(PeerIndex self, uint64_t match, uint64_t mask, uint32_t group, uint64_t operation);
  bool poll(PeerIndex self, Sink& sink);
  void close(PeerIndex self, PeerIndex peer);
  bool has_events(PeerIndex self) const { return !stations_[self].news.empty(); }

  // Events.
  void arrive(uint64_t frame);
  void credit_again(PeerIndex self) { give_credit(self); }
  void lose(uint64_t loss);

  // Faults, effective from now on.
  // Cuts the link between the two; each notices after its delay (`never`: not at all).
  void cut(PeerIndex a, PeerIndex b, Nanos notice_a, Nanos notice_b, const std::string& why);
  // The process is gone: it takes nothing and polls no more. This does not cut its links.
  void kill(PeerIndex self);
  // Frames between the two sides wait until `until`.
  void partition(std::vector<bool> side, Nanos until);
  bool separated(PeerIndex a, PeerIndex b) const { return event_queue_.now() < heals_ && side_[a] != side_[b]; }
  void slow_link(PeerIndex self, double factor) { stations_[self].slowness = factor; }
  void calm();  // no more loss, jitter, refusals and injected failures

  bool is_cut(PeerIndex a, PeerIndex b) const { return links_[a * count_ + b].cut; }
  const NetworkSettings& settings() const { return settings_; }
  const NetworkCounters& counters() const { return counters_; }
  TransportCounters counters_of(PeerIndex self) const { return stations_[self].counters; }
  // Rules that the transports' user has broken, each with its time.
  const std::vector<std::string>& violations() const { return violations_; }
  // Memory of the network that each process still holds, and the reverse; empty if none. Visits all frames once.
  std::vector<std::string> held() const;
  std::string held_by(PeerIndex self) const { return held()[self]; }

 private:
  enum class State : uint8_t {
    free,
    flying,
    queued,
    landing,
    lent,
    stranded
  };                                                                    // stranded: never arrives; the sender does not know yet
  enum class NotifySender : uint8_t { nobody, on_arrival, on_taking };  // when sent(id) is reported to the sender
  enum class NetworkEventKind : uint8_t { frame, landed, sent, credit, lost, nothing };

  struct Frame {
    FrameHeader header;
    const std::byte* data = nullptr;
    uint64_t send_id = 0;
    uint32_t block = 0;  // 0: data is the sender's memory, or there is none
    uint32_t checksum = 0;
    PeerIndex from = 0, to = 0;
    uint32_t generation = 0;
    State state = State::free;
    NotifySender tell = NotifySender::nobody;
    bool offered_slot = false;  // the payload was committed in a slot, not sent
    bool takes_credit = false;  // counts in its link's queue
    std::byte* target = nullptr;
    size_t landed = 0;
  };
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    uint32_t uses = 0;
    PeerIndex slot_owner = no_one;
    std::vector<PeerIndex> peers;
  };
  struct Link {  // one direction
    Nanos last_arrival = 0;
    Nanos refused_until = 0;
    uint32_t under_way = 0;
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
  struct Station {  // one process
    std::deque<NetworkEvent> news;
    std::vector<PeerIndex> wants_credit;
    Nanos egress_free = 0, ingress_free = 0;
    Nanos next_poll = 0;
    double slowness = 1;
    uint32_t slots_out = 0;
    bool dead = false;
    TransportCounters counters;
  };

  static constexpr PeerIndex no_one = UINT32_MAX;
  static constexpr size_t page_frames = 1024;

  Frame& frame_at(uint64_t key) { return pages_[(key & 0xFFFFFFFF) / page_frames][(key & 0xFFFFFFFF) % page_frames]; }
  const Frame& frame_at(uint64_t key) const {
    return pages_[(key & 0xFFFFFFFF) / page_frames][(key & 0xFFFFFFFF) % page_frames];
  }
  // Null if the frame no longer exists.
  Frame* find(uint64_t key);
  uint64_t key_of(uint32_t index) { return uint64_t{frame_at(index).generation} << 32 | index; }
  template <typename F>
  void each_frame(F&& call);
  uint64_t take_frame();
  void drop_frame(uint64_t key);
  uint32_t take_block(size_t bytes);
  void drop_block(uint32_t block);
  void own_payload(Frame& frame);
  void strand(uint64_t key);
  void drop_sends(PeerIndex self, PeerIndex peer);
  void tell_sent(Frame& frame);

  Link& link(PeerIndex from, PeerIndex to) { return links_[size_t{from} * count_ + to]; }
  void add_event(PeerIndex self, const NetworkEvent& news);
  void want_credit(PeerIndex self, PeerIndex peer);
  void give_credit(PeerIndex self);
  bool refuses(Link& link, PeerIndex self);
  Nanos arrival_time(PeerIndex from, PeerIndex to, size_t bytes, bool& broken);
  void launch(uint64_t key);
  void deliver(PeerIndex self, uint64_t key, Sink& sink);
  void land(PeerIndex self, uint64_t key, Sink& sink);
  void lend(uint64_t key, Sink& sink);
  void taken(const Frame& frame);
  void leave_queue(Frame& frame);
  void report_lost(PeerIndex self, const NetworkEvent& news, Sink& sink);
  void violation(const std::string& what);
  void verify(const Frame& frame);

  NetworkSettings settings_;
  uint32_t count_;
  EventQueue& event_queue_;
  Trace& trace_;
  Random random_;
  std::vector<std::unique_ptr<Frame[]>> pages_;
  std::vector<uint32_t> free_frames_;
  std::vector<Block> blocks_;  // by number - 1
  std::vector<uint32_t> free_blocks_;
  std::vector<Link> links_;  // by from * count + to
  std::vector<Station> stations_;
  std::vector<bool> side_;
  Nanos heals_ = 0;
  std::vector<Loss> losses_;
  NetworkCounters counters_;
  std::vector<std::string> violations_;
};

}  // namespace unisono::sim

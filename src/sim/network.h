// Virtual links between virtual processes: frames in flight, their timing, what may go wrong with them. SimTransport is one
// process's view of it.
//
// The links are reliable, as the real transports are: a lost packet costs a retransmission, too many of them the link. All
// that Transport allows happens, by chance and seed: frames overtake each other, room ends and comes back, sent() comes late
// or at once, payloads land in place in two parts or are lent. What Transport forbids its user is noted in violations().
// Owns all frames and all memory that it lends; single-threaded.
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

// Chances are 0 … 1 per frame or call.
struct NetworkSettings {
  Nanos latency = 20 * microsecond;
  Nanos jitter = 0;            // up to this much more
  double bytes_per_us = 1250;  // that one process sends, and receives at the same time (10 Gbit/s)
  double loss = 0;             // of a packet; costs `retransmit`, doubled each time
  Nanos retransmit = 500 * microsecond;
  uint32_t retransmits_max = 10;   // one more loses the link
  bool ordered = true;             // frames of one link do not overtake each other
  uint32_t queue_frames_max = 64;  // with payload, per link, sent and not yet taken
  bool lends_slots = false;
  uint32_t slots = 64, result_slots = 16;  // per process
  double lend = 0;                         // a payload is lent although it could be placed
  bool views_take_credit =
      false;          // lent payloads keep their place in the link's queue, and slots need none: as in shared memory
  double copy = 1;    // send() needs the payload no longer than the call
  double split = 0;   // a placed payload lands in two parts, the second one later
  double refuse = 0;  // credit() and acquire() say no for a while
  Nanos refuse_max = 200 * microsecond;
  uint32_t news_per_poll_max = 0;  // 0 = all there are
  Nanos wake_max = 0;              // from news to the poll that takes it
  Nanos poll_gap = 0;              // a process polls no more often than this
  // For speed: lent views show the sender's own memory, and payloads are neither verified nor part of the trace. Only
  // without faults.
  bool single_copy = false;
  // The n-th of all calls fails, counted from 1: a send or an arrival cuts its link, credit() and acquire() say no.
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
  bool has_news(PeerIndex self) const { return !stations_[self].news.empty(); }

  // Events.
  void arrive(uint64_t frame);
  void credit_again(PeerIndex self) { give_credit(self); }
  void lose(uint64_t loss);

  // Faults, from now on.
  // Nothing more passes between the two; each learns of it after its delay (`never`: not at all).
  void cut(PeerIndex a, PeerIndex b, Nanos notice_a, Nanos notice_b, const std::string& why);
  // The process is gone: it takes nothing and polls no more. Its links are not cut by this.
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
  // Broken promises of the transports' user, each with its time.
  const std::vector<std::string>& violations() const { return violations_; }
  // What each process still holds of the network's memory, or the network of its; empty if nothing. One look at all frames.
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
  };                                                            // stranded: never arrives; the sender does not know yet
  enum class Tell : uint8_t { nobody, on_arrival, on_taking };  // when the sender hears sent(id)
  enum class NewsKind : uint8_t { frame, landed, sent, credit, lost, nothing };

  struct Frame {
    FrameHeader header;
    const std::byte* data = nullptr;
    uint64_t send_id = 0;
    uint32_t block = 0;  // 0: data is the sender's memory, or there is none
    uint32_t checksum = 0;
    PeerIndex from = 0, to = 0;
    uint32_t generation = 0;
    State state = State::free;
    Tell tell = Tell::nobody;
    bool offered_slot = false;  // the payload was committed, not sent
    bool takes_credit = false;  // in its link's queue
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
  struct News {
    NewsKind kind = NewsKind::frame;
    PeerIndex peer = 0;
    uint64_t value = 0;  // frame key, send id, or index into losses_
  };
  struct Loss {
    PeerIndex self = 0, peer = 0;
    std::string why;
  };
  struct Station {  // one process
    std::deque<News> news;
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
  // Null if the frame has gone since.
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
  void give_up_sends(PeerIndex self, PeerIndex peer);
  void tell_sent(Frame& frame);

  Link& link(PeerIndex from, PeerIndex to) { return links_[size_t{from} * count_ + to]; }
  void put_news(PeerIndex self, const News& news);
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
  void lost_news(PeerIndex self, const News& news, Sink& sink);
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

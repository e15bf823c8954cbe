// A transport decorator that injects faults: it shows the layer above a bad network, a bad cable and a dying peer.
//
// Every decision follows from the seed, the peer and the frame's number from that peer, so a run can be repeated whatever the
// timing. Faults are injected where frames arrive. Delay, reorder and disconnect are within the contract of Transport. Damage
// is reported as a receiver of a stream would: the frame is refused and counted, and the link is lost with the code corrupt.
// Duplicate and cut break the contract on purpose: the layer above must notice them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "transports/transport.h"

namespace unisono {

struct FaultPlan {
  uint64_t seed = 1;
  // Probabilities per received frame, 0 … 1.
  double delay = 0;            // held for up to delay_max
  double reorder = 0;          // held until up to reorder_frames_max later frames have passed it, at most delay_max
  double duplicate = 0;        // delivered twice
  double cut = 0;              // the end of the payload is missing, and the header says the shorter length
  double corrupt_header = 0;   // one flipped bit in the header
  double corrupt_payload = 0;  // one flipped bit in the payload; goes unnoticed unless the frame has a payload checksum
  double disconnect = 0;       // the link is lost instead
  Nanos delay_max = 5 * millisecond;
  uint32_t reorder_frames_max = 4;
  // If not 0: the n-th frame given to send or commit, or received, ends its link instead. Counted from 1 over all peers.
  uint64_t fail_send = 0;
  uint64_t fail_receive = 0;

  bool faults_frames() const {
    return delay > 0 || reorder > 0 || duplicate > 0 || cut > 0 || corrupt_header > 0 || corrupt_payload > 0 || disconnect > 0;
  }
};

// Borrows `inner`, which must outlive it and be driven only through it.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(Transport& inner, const FaultPlan& plan) : inner_(inner), plan_(plan), inner_sink_(*this) {}

  const char* name() const override { return "faulty"; }
  size_t credit(PeerIndex peer) override { return broken(peer) ? 0 : inner_.credit(peer); }
  size_t slot_bytes() const override { return inner_.slot_bytes(); }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release(const View& view) override;
  // Only if no fault is injected into received frames.
  bool looks_ahead() const override { return inner_.looks_ahead() && !plan_.faults_frames() && plan_.fail_receive == 0; }
  Next next(PeerIndex from, const FrameHeader& expected, const std::byte*& payload) override {
    return broken(from) ? Next::none : inner_.next(from, expected, payload);
  }
  void take_next(std::span<const PeerIndex> from) override { inner_.take_next(from), receive_count_ += from.size(); }
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  int wait_handle() const override { return inner_.wait_handle(); }
  bool arm() override { return breaking_.empty() && lost_events_.empty() && inner_.arm(); }
  void disarm() override { inner_.disarm(); }
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override { return "faulty " + inner_.describe(peer); }

  uint64_t sends() const { return send_count_; }
  uint64_t receives() const { return receive_count_; }

 private:
  struct Link {
    uint64_t frames = 0;  // received
    bool broken = false;  // by this decorator
  };
  struct Held {
    PeerIndex from = 0;
    FrameHeader header;
    Bytes payload;
    Nanos due = 0;
    uint32_t passes_left = UINT32_MAX;  // later frames of this peer that must pass first
  };
  struct Choice {  // faults for one frame
    bool delay, reorder, duplicate, cut, corrupt_header, corrupt_payload, disconnect;
    uint64_t amount;  // random bits for faults that need a size
  };
  struct LostEvent {
    PeerIndex peer = 0;
    Status why;
  };

  class InnerSink final : public Sink {  // the sink that inner_ gets
   public:
    explicit InnerSink(FaultyTransport& owner) : owner_(owner) {}
    std::byte* place(PeerIndex from, const FrameHeader& header) override { return owner_.on_place(from, header); }
    void received(PeerIndex from, const FrameHeader& header, const View& view) override { owner_.on_frame(from, header, view); }
    void sent(uint64_t id) override { owner_.outer_->sent(id); }
    void lost(PeerIndex peer, const Status& why) override { owner_.on_lost(peer, why); }
    void credit(PeerIndex peer) override { owner_.on_credit(peer); }

   private:
    FaultyTransport& owner_;
  };

  std::byte* on_place(PeerIndex from, const FrameHeader& header);
  void on_frame(PeerIndex from, const FrameHeader& header, const View& view);
  void on_lost(PeerIndex peer, const Status& why);
  void on_credit(PeerIndex peer);

  bool broken(PeerIndex peer) const;
  Choice choose(PeerIndex from, uint64_t number) const;
  void damage(PeerIndex from, FrameHeader header, const View& view, const Choice& choice);
  void hold(PeerIndex from, const FrameHeader& header, const View& view, const Choice& choice);
  void deliver_lent(PeerIndex from, const FrameHeader& header, const View& view);
  void deliver_copy(PeerIndex from, const FrameHeader& header, Bytes payload);
  Bytes copy_and_release(const View& view);
  bool deliver_held();
  void break_link(PeerIndex peer, Code code, const std::string& why);
  void drop_held(PeerIndex peer);

  Transport& inner_;
  FaultPlan plan_;
  InnerSink inner_sink_;
  Sink* outer_ = nullptr;
  Nanos now_ = 0;
  std::map<PeerIndex, Link> links_;
  std::vector<Held> held_;
  std::vector<LostEvent> breaking_;     // links to close in inner_ when it is not polling
  std::vector<LostEvent> lost_events_;  // closed; their last sent() come with the next poll, then lost
  std::vector<Bytes> copies_;           // lent from here; handle = own_handle | index
  std::vector<size_t> free_copies_;
  std::map<uint64_t, std::vector<PeerIndex>> slot_peers_;
  uint64_t send_count_ = 0;
  uint64_t receive_count_ = 0;
  uint64_t refused_[frame_fault_count] = {};
};

}  // namespace unisono

// A transport that wraps another transport and injects faults into the frames that arrive. The layer above it sees a bad
// network, a bad cable or a dying peer.
//
// Every decision depends only on the seed, on the peer, and on the number of the frame from that peer. Therefore a run can be
// repeated, even if its timing differs. The contract of Transport allows delay, reorder and disconnect. A damaged frame is
// handled as the receiver of a stream would handle it: the frame is refused and counted, and the link is lost with the code
// corrupt. The faults `duplicate` and `cut` break the contract on purpose: the layer above must notice them.
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
  // The next seven values are probabilities for each received frame, from 0 to 1.
  double delay = 0;  // probability that the frame is held for up to delay_max
  // Probability that up to reorder_frames_max later frames overtake this frame. The frame is held for at most delay_max.
  double reorder = 0;
  double duplicate = 0;       // probability that the frame is delivered twice
  double cut = 0;             // probability that the payload is shortened; payload_bytes in the header is then reduced, too
  double corrupt_header = 0;  // probability that one bit of the header is flipped
  // Probability that one bit of the payload is flipped. Without a payload checksum nobody notices this.
  double corrupt_payload = 0;
  double disconnect = 0;  // probability that the frame is not delivered, and the link is lost instead
  Nanos delay_max = 5 * millisecond;
  uint32_t reorder_frames_max = 4;
  // If not 0, the frame with this number is not passed on, and its link is lost. fail_send counts the frames that are sent, and
  // fail_receive the frames that are received. Both count from 1, and count the frames of all peers together.
  uint64_t fail_send = 0;
  uint64_t fail_receive = 0;
  // If true, sent() follows for a payload only after release_early() has asked for its memory, or when its link is lost.
  // The transport then has no slots.
  bool keeps_memory = false;

  bool faults_frames() const {
    return delay > 0 || reorder > 0 || duplicate > 0 || cut > 0 || corrupt_header > 0 || corrupt_payload > 0 || disconnect > 0;
  }
};

// Uses `inner`, which must live longer than this object. As long as this object exists, nobody else may call `inner`.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(Transport& inner, const FaultPlan& plan) : inner_(inner), plan_(plan), inner_sink_(*this) {}

  const char* name() const override { return "faulty"; }
  size_t credit(PeerIndex peer) override { return broken(peer) ? 0 : inner_.credit(peer); }
  size_t slot_bytes() const override { return plan_.keeps_memory ? 0 : inner_.slot_bytes(); }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override;
  void commit(const Slot& slot, const FrameHeader& header) override;
  void abandon(const Slot& slot) override;
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override;
  void release_early(uint64_t match, uint64_t mask) override;
  void release(const View& view) override;
  // Returns true only if no fault is injected into received frames.
  bool looks_ahead() const override { return inner_.looks_ahead() && !plan_.faults_frames() && plan_.fail_receive == 0; }
  Next next(PeerIndex from, const FrameHeader& expected, const std::byte*& payload) override {
    return broken(from) ? Next::none : inner_.next(from, expected, payload);
  }
  void take_next(std::span<const PeerIndex> from) override { inner_.take_next(from), receive_count_ += from.size(); }
  void cancel(const Cancellation& what) override;
  bool poll(Nanos now, Sink& sink) override;
  Nanos next_deadline() const override;
  void close(PeerIndex peer) override;
  int wait_handle() const override { return inner_.wait_handle(); }
  bool arm() override { return breaking_.empty() && lost_events_.empty() && inner_.arm(); }
  void disarm() override { inner_.disarm(); }
  TransportCounters counters() const override;
  std::string describe(PeerIndex peer) const override { return "faulty " + inner_.describe(peer); }
  std::string link_state(PeerIndex peer) const override { return inner_.link_state(peer); }

  uint64_t sends() const { return send_count_; }
  uint64_t receives() const { return receive_count_; }
  size_t kept_sends() const { return kept_.size(); }

 private:
  struct Link {
    uint64_t frames = 0;  // frames received from the peer
    bool broken = false;  // this object, not the peer, has ended the link
  };
  struct Held {
    PeerIndex from = 0;
    FrameHeader header;
    Bytes payload;
    Nanos due = 0;
    uint32_t passes_left = UINT32_MAX;  // The frame is held until this many later frames of the same peer have passed it.
  };
  struct Choice {  // the faults chosen for one frame
    bool delay, reorder, duplicate, cut, corrupt_header, corrupt_payload, disconnect;
    uint64_t amount;  // random bits, for faults that need a position or a size
  };
  struct LostEvent {
    PeerIndex peer = 0;
    Status why;
  };

  class InnerSink final : public Sink {  // the sink that is passed to inner_
   public:
    explicit InnerSink(FaultyTransport& owner) : owner_(owner) {}
    std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override {
      return owner_.on_receive_buffer(from, header);
    }
    void received(PeerIndex from, const FrameHeader& header, const View& view) override { owner_.on_frame(from, header, view); }
    void sent(uint64_t id) override { owner_.on_sent(id); }
    void lost(PeerIndex peer, const Status& why, PeerFate fate) override { owner_.on_lost(peer, why, fate); }
    void credit(PeerIndex peer) override { owner_.on_credit(peer); }
    void noticed(PeerIndex peer, EventKind kind, const std::string& text) override { owner_.outer_->noticed(peer, kind, text); }

   private:
    FaultyTransport& owner_;
  };

  struct KeptSend {
    PeerIndex to = 0;
    uint64_t id = 0;
    bool in_use = false;     // inner_ needs the memory
    bool asked_for = false;  // release_early() has asked for it
  };

  void on_sent(uint64_t id);
  bool report_kept();
  std::byte* on_receive_buffer(PeerIndex from, const FrameHeader& header);
  void on_frame(PeerIndex from, const FrameHeader& header, const View& view);
  void on_lost(PeerIndex peer, const Status& why, PeerFate fate);
  void on_credit(PeerIndex peer);

  bool broken(PeerIndex peer) const;
  Choice choose(PeerIndex from, uint64_t number) const;
  void damage(PeerIndex from, FrameHeader header, const View& view, const Choice& choice);
  void hold(PeerIndex from, const FrameHeader& header, const View& view, const Choice& choice);
  void deliver_view(PeerIndex from, const FrameHeader& header, const View& view);
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
  // Links that the next poll() closes in inner_. They wait for it because a link must not be closed while inner_ polls.
  std::vector<LostEvent> breaking_;
  std::vector<LostEvent> lost_events_;  // Links that are closed. The next poll() reports their last sent(), and then `lost`.
  // The memory of the views that this object lends. The handle of a view is own_handle | (its index here).
  std::vector<Bytes> copies_;
  std::vector<size_t> free_copies_;
  std::map<uint64_t, std::vector<PeerIndex>> slot_peers_;
  std::vector<KeptSend> kept_;  // sends that are not reported yet, if the plan says keeps_memory
  uint64_t send_count_ = 0;
  uint64_t receive_count_ = 0;
  uint64_t refused_[frame_fault_count] = {};
};

}  // namespace unisono

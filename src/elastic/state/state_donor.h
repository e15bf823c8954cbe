// Gives a peer's state to joiners. It serves few joiners at a time, and uses only a part of the bandwidth for them, so that
// averaging keeps its speed. It is a state machine: messages and time go in, messages come out.
//
// Each joiner that is being served has a slot. A joiner loses its slot if it sends nothing, or requests no part, for
// stall_timeout. All other joiners get BUSY, and must ask again later.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "elastic/state/state_copy.h"
#include "elastic/state/state_messages.h"
#include "elastic/wire/elastic_times.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct StateSend {
  PeerId to;
  SharedMessage message;
};

struct StateDonorOptions {
  uint64_t schema = 0;
  uint32_t serve_slots = 2;
  double serve_share = 0.25;  // this fraction of the bandwidth may be used for joiners
  ElasticTimes times;
};

struct StateDonorCounters {
  uint64_t parts = 0, part_bytes = 0;  // parts that were sent to joiners, and their size
  uint64_t granted = 0, busy = 0, refused = 0;
  uint64_t stalled = 0;  // slots that were taken back, because the joiner was silent or requested no part
  uint64_t malformed = 0;
};

class StateDonor {
 public:
  // The copy must outlive the donor. No other code may call the copy's hold() or release().
  StateDonor(const StateDonorOptions& options, StateCopy& copy);

  // Sets the measured bandwidth in bytes/s. A value of 0 or less means that it is unknown. In this case, sending is limited
  // only by the number of parts that a joiner may request at a time.
  void set_bandwidth(double bytes_per_second) { bandwidth_ = bytes_per_second; }
  // Handles a message for which for_donor() is true. If no correct joiner sends such a message, it is only counted, and the
  // result is the error corrupt.
  Status message(const PeerId& from, const StateMessage& message, Nanos now);
  void peer_gone(const PeerId& peer);
  // From now on accepts no new joiners, and refuses those that are being served.
  void leave();
  void woke(Nanos now);
  Nanos next_deadline() const;
  std::vector<StateSend> take_sends() { return std::exchange(sends_, {}); }

  uint32_t serving() const { return static_cast<uint32_t>(slots_.size()); }
  const StateDonorCounters& counters() const { return counters_; }

 private:
  struct Slot {
    PeerId joiner;
    std::deque<uint32_t> wanted;  // parts that were requested but not sent yet; at most state_window_max, each once
    Nanos received_at = 0;
    Nanos last_wanted_at = 0;  // when the joiner last had a request that was not fulfilled
    Nanos sent_at = 0;         // when the joiner was last sent a message
  };

  Slot* slot_of(const PeerId& joiner);
  void on(const PeerId& from, const StateAsk& ask, Nanos now);
  Status on(const PeerId& from, const StateWant& want, Nanos now);
  Slot* grant(const PeerId& joiner, uint64_t wanted, Nanos now);
  void send(const PeerId& to, const StateMessage& message);
  void send_busy(const PeerId& to, Nanos retry_after);
  void refuse(const PeerId& to, StateRefusal reason);
  void drop(size_t slot);
  void serve(Nanos now);
  Nanos silence_ends(const Slot& slot) const;

  StateDonorOptions options_;
  StateCopy& copy_;
  double bandwidth_ = 0;
  bool leaving_ = false;
  std::vector<Slot> slots_;  // at most serve_slots; after each part that is sent, its slot moves to the end
  Nanos next_part_ = 0;      // the bandwidth does not allow to send the next part before this time
  std::vector<StateSend> sends_;
  StateDonorCounters counters_;
};

}  // namespace unisono

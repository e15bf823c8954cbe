// Gives a peer's state to joiners: few at a time, with only a part of the bandwidth, so that averaging keeps its speed. A state
// machine: messages and time go in, messages come out.
//
// A served joiner holds a slot. It loses the slot after stall_timeout of silence, or of wanting nothing. All other joiners are
// told to come back.
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
  double serve_share = 0.25;  // of the bandwidth
  ElasticTimes times;
};

struct StateDonorCounters {
  uint64_t parts = 0, part_bytes = 0;  // sent to joiners
  uint64_t granted = 0, busy = 0, refused = 0;
  uint64_t stalled = 0;  // slots taken back from joiners that were silent or wanted nothing
  uint64_t malformed = 0;
};

class StateDonor {
 public:
  // The copy is borrowed; no other code may hold or release it.
  StateDonor(const StateDonorOptions& options, StateCopy& copy);

  // Measured, in bytes/s; 0 or less: unknown. Then only the joiners' windows limit the sending.
  void set_bandwidth(double bytes_per_second) { bandwidth_ = bytes_per_second; }
  // Takes a message for which for_donor() is true. Error: corrupt, counted and without effect, for a message that no correct
  // joiner sends.
  Status message(const PeerId& from, const StateMessage& message, Nanos now);
  void peer_gone(const PeerId& peer);
  // Accepts no new joiners and dismisses those being served.
  void leave();
  void woke(Nanos now);
  Nanos next_deadline() const;
  std::vector<StateSend> take_sends() { return std::exchange(sends_, {}); }

  uint32_t serving() const { return static_cast<uint32_t>(slots_.size()); }
  const StateDonorCounters& counters() const { return counters_; }

 private:
  struct Slot {
    PeerId joiner;
    std::deque<uint32_t> wanted;  // at most state_window_max, none twice
    Nanos heard = 0;
    Nanos wanting = 0;  // last time that there was something to send to it
    Nanos told = 0;     // last time that something was sent to it
  };

  Slot* slot_of(const PeerId& joiner);
  void on(const PeerId& from, const StateAsk& ask, Nanos now);
  Status on(const PeerId& from, const StateWant& want, Nanos now);
  Slot* grant(const PeerId& joiner, uint64_t wanted, Nanos now);
  void say(const PeerId& to, const StateMessage& message);
  void say_busy(const PeerId& to, Nanos retry_after);
  void refuse(const PeerId& to, StateRefusal reason);
  void drop(size_t slot);
  void serve(Nanos now);
  Nanos silence_ends(const Slot& slot) const;

  StateDonorOptions options_;
  StateCopy& copy_;
  double bandwidth_ = 0;
  bool leaving_ = false;
  std::vector<Slot> slots_;  // at most serve_slots, in turn: a served joiner moves to the end
  Nanos next_part_ = 0;      // the next part is sent no sooner, to keep to the bandwidth
  std::vector<StateSend> sends_;
  StateDonorCounters counters_;
};

}  // namespace unisono

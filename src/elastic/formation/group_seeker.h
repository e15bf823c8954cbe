// Finds this process's group for one round: a state machine. It registers at the slot's coordinator, tries the next holder if
// that one is silent or gone, and ends with a group or with a reason. It runs one request at a time.
//
// It ends within 3·(coordinator_timeout + gather_timeout + round_timeout), whatever other peers do: each of at most three
// coordinators gets one such time. It waits for coordinators only, and coordinators wait for no one, so there is no cycle of
// waits. It also keeps the last descriptors for members that never got theirs, and declines descriptors that it cannot accept
// any more.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "elastic/formation/formation_messages.h"
#include "elastic/layout/formation_view.h"
#include "elastic/wire/elastic_times.h"

namespace unisono {

struct SeekerOptions {
  PeerId self;
  std::string run;
  ElasticTimes times;
  double vector_bytes = 0;  // for round_timeout
};

struct SeekRequest {
  SlotName slot;
  uint32_t cell = 0;
  uint32_t position = 0;
  bool weighted = false;
  bool in_layout = false;
  double bandwidth = -1;
  ElasticRole role = ElasticRole::peer;
  uint64_t schema = 0;
  std::vector<PeerId> missing;  // from the descriptor or ALONE answer of this round in the previous averaging step
};
// A request with the peer's position in the layout. Under a layout with keys, the position follows from the peer's first key.
SeekRequest seek_request(const Layout& layout, const PeerId& self, uint64_t step, uint32_t round);

// No other member came: the round ends with unchanged values.
struct SeekAlone {
  bool no_reducer = false;
  std::vector<PeerId> missing;
};
// The group was formed without this process. The seeker has sent LATE to the coordinator of this round in the next averaging
// step.
struct SeekClosed {
  uint64_t since_ms = 0;      // how long ago
  uint64_t steps_opened = 0;  // highest opened averaging step + 1, as the coordinator knows it
};
struct SeekFull {
  bool other_schema = false;
};
struct SeekNoCoordinator {
  std::string text;  // begins with NO_COORDINATOR
};
// The layout was replaced: adopt this one and seek the slot that it gives.
struct SeekStale {
  Layout newer;
};
using SeekOutcome = std::variant<GroupDescriptor, SeekAlone, SeekClosed, SeekFull, SeekNoCoordinator, SeekStale>;

// A member of an accepted group that takes no part in it.
struct DeclineEvent {
  GroupId id;
  PeerId peer;
};

struct SeekerCounters {
  uint64_t ignored = 0;   // messages that match no request of this process
  uint64_t declined = 0;  // descriptors that this process declined
  uint64_t holders_abandoned = 0;
};

class GroupSeeker {
 public:
  // The view must outlive the seeker.
  GroupSeeker(SeekerOptions options, const FormationView& view);

  // Begins a request. A request under way for another slot is withdrawn. After pre_register() for the same slot it goes on with
  // the coordinator found there.
  void seek(const SeekRequest& request, Nanos now);
  // Tells a slot's coordinator that this process will want the slot, while its current round runs. Not while a request is under
  // way.
  void pre_register(const SeekRequest& request, Nanos now);
  // Tells a slot's coordinator that this process will not come, so its group need not wait. Not for the slot of the request
  // under way.
  void skip(const SlotName& slot);
  // Withdraws the request under way; no outcome follows.
  void stop(Nanos now);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // The peer is dead or has left.
  void peer_gone(const PeerId& peer, Nanos now);
  // Call when a member sent a message of a round that does not run here. Asks the member for the descriptor, or declines again.
  void unknown_group(const GroupId& id, const PeerId& from, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if no request is under way.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // One outcome per seek().
  std::optional<SeekOutcome> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  // Declines by members of accepted groups, each once. A decline that arrives before its descriptor is kept until then.
  std::vector<DeclineEvent> take_declines() { return std::exchange(declines_, {}); }
  // The highest averaging step that other peers say was opened; empty if it has not risen since the last call.
  std::optional<uint64_t> take_opened() { return std::exchange(opened_, std::nullopt); }

  bool seeking() const { return phase_ == Phase::seeking; }
  const SeekerCounters& counters() const { return counters_; }

 private:
  enum class Phase : uint8_t { idle, pre, seeking };
  struct Recent {
    std::shared_ptr<const GroupDescriptor> group;
    bool accepted = false;
  };

  void begin(const SeekRequest& request);
  void ask_holder(Nanos now);
  void next_holder(Nanos now);
  void end(SeekOutcome outcome);
  void withdraw_here();
  void send_register(Nanos now);
  void say_late();
  bool is_coordinator(const PeerId& from, const SlotName& slot) const;
  bool from_coordinator(const PeerId& from, const SlotName& slot);
  bool is_answer(const PeerId& from, const SlotName& slot, uint64_t steps_opened, Nanos now);
  void heard(Nanos now);
  void note_opened(uint64_t steps_opened);
  void take(const PeerId& from, const formation::Pending& pending, Nanos now);
  void take(const PeerId& from, const formation::Descriptor& descriptor, Nanos now);
  void take(const PeerId& from, const formation::Alone& alone, Nanos now);
  void take(const PeerId& from, const formation::Closed& closed, Nanos now);
  void take(const PeerId& from, const formation::Full& full, Nanos now);
  void take(const PeerId& from, const formation::StaleLayout& stale, Nanos now);
  void take(const PeerId& from, const formation::NeedLayout& need, Nanos now);
  void take(const PeerId& from, const formation::Decline& decline, Nanos now);
  void take(const PeerId& from, const formation::GetDescriptor& get, Nanos now);
  bool acceptable(const GroupDescriptor& group) const;
  void accept(const PeerId& from, const GroupDescriptor& group);
  void decline(const GroupDescriptor& group);
  const Recent* find_recent(const GroupId& id) const;
  void remember(const GroupDescriptor& group, bool accepted);
  Nanos silence_deadline() const;
  Nanos cap() const;

  SeekerOptions options_;
  const FormationView& view_;
  Phase phase_ = Phase::idle;
  SeekRequest request_;
  std::vector<PeerId> holders_;  // of the slot, as known when the request began
  size_t holder_ = 0;            // index of the holder being asked
  uint64_t attempt_ = 0;
  bool acknowledged_ = false;
  uint32_t late_wakeups_ = 0;
  Nanos asked_ = 0;            // when the current holder was first asked
  Nanos heard_ = 0;            // last answer from the current holder; asked_ if none
  Nanos repeat_ = never;       // when REGISTER is sent again
  Nanos layout_sent_ = never;  // to the current holder; `never`: not yet
  Nanos round_timeout_ = 0;    // the coordinator's, or computed here until it says
  std::deque<Recent> recent_;
  std::deque<DeclineEvent> early_declines_;
  std::map<GroupId, Nanos> asked_groups_;
  std::vector<FormationSend> sends_;
  std::vector<DeclineEvent> declines_;
  std::optional<SeekOutcome> outcome_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;
  SeekerCounters counters_;
};

}  // namespace unisono

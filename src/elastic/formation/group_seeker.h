// Finds this process's group for one round. A seeker registers at the slot's coordinator. If the coordinator is silent or gone,
// the seeker tries the next holder of the slot's key. It ends with a group, or with the reason why there is none. A seeker is a
// state machine, and runs one request at a time.
//
// A request ends within 3·(coordinator_timeout + gather_timeout + round_timeout), whatever other peers do: there are at most
// three coordinators, and the sum in parentheses limits the wait for each of them. Seekers wait for coordinators, but
// coordinators wait for no answer, so no cycle of waits can form. The seeker also gives recent descriptors to members that lack
// them, and declines descriptors that come too late.
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
  double vector_bytes = 0;  // size of the averaged vector; round_timeout depends on it
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
  // The members that were missing in this round of the previous averaging step, as its descriptor or ALONE listed them.
  std::vector<PeerId> missing;
};
// Returns a request that has the peer's position in the layout. Under a layout with keys, the position is derived from the
// peer's first key.
SeekRequest seek_request(const Layout& layout, const PeerId& self, uint64_t step, uint32_t round);

// No group was formed, so the round changes no values. If `no_reducer` is true, other members came, but no member can own
// chunks.
struct SeekAlone {
  bool no_reducer = false;
  std::vector<PeerId> missing;
};
// The group was formed without this process. The seeker has sent LATE, so that the group of this round in the next averaging
// step waits for this process.
struct SeekClosed {
  uint64_t since_ms = 0;      // how long ago the group was formed
  uint64_t steps_opened = 0;  // the highest opened averaging step, plus 1
};
struct SeekFull {
  bool other_schema = false;
};
struct SeekNoCoordinator {
  std::string text;  // an error text; it begins with NO_COORDINATOR
};
// A newer layout has replaced the slot's layout. The caller must adopt `newer`, and seek the slot that it has under the new
// layout.
struct SeekStale {
  Layout newer;
};
using SeekOutcome = std::variant<GroupDescriptor, SeekAlone, SeekClosed, SeekFull, SeekNoCoordinator, SeekStale>;

// A member of an accepted group has declined to take part.
struct DeclineEvent {
  GroupId id;
  PeerId peer;
};

struct SeekerCounters {
  uint64_t ignored = 0;   // received messages that match no request of this process
  uint64_t declined = 0;  // descriptors that this process declined
  uint64_t holders_abandoned = 0;
};

class GroupSeeker {
 public:
  // The view must outlive the seeker.
  GroupSeeker(SeekerOptions options, const FormationView& view);

  // Begins a request. If a request for another slot is running, withdraws it. If pre_register() has named the same slot,
  // continues with the coordinator that has answered it.
  void seek(const SeekRequest& request, Nanos now);
  // While the current round runs, tells the next slot's coordinator that this process will register. Must not be called while a
  // request of seek() is under way.
  void pre_register(const SeekRequest& request, Nanos now);
  // Tells the slot's coordinators that this process will not come, so that they do not wait for it. The slot must not be that
  // of the running request.
  void skip(const SlotName& slot);
  // Withdraws the running request. No outcome follows.
  void stop(Nanos now);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // Call when the peer is dead or has left.
  void peer_gone(const PeerId& peer, Nanos now);
  // Call when a peer sends a message of a group that has no round in this process. Requests the group's descriptor from the
  // peer. But if this process has declined the group, declines it again instead.
  void unknown_group(const GroupId& id, const PeerId& from, Nanos now);
  void woke(Nanos now);
  // Returns the coordinator that woke() would now replace because it is silent. Returns null if there is none.
  const PeerId* silent_coordinator(Nanos now) const;
  // The link to the silent coordinator is out. Waits for it until the next REGISTER is repeated, and asks again.
  void excuse_silence(Nanos now);
  // Returns when woke() must be called next, or `never` if no request is under way.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Returns the outcome, once per seek(). Returns nothing before the request has ended.
  std::optional<SeekOutcome> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  // Returns each decline of an accepted group once. If a decline arrives before the descriptor of its group, it is kept until
  // the group is accepted.
  std::vector<DeclineEvent> take_declines() { return std::exchange(declines_, {}); }
  // Returns the highest averaging step that other peers report as opened, if it has risen since the last call. Otherwise
  // returns nothing.
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
  void withdraw_from_holder();
  void send_register(Nanos now);
  void send_late();
  bool is_coordinator(const PeerId& from, const SlotName& slot) const;
  bool from_coordinator(const PeerId& from, const SlotName& slot);
  bool is_answer(const PeerId& from, const SlotName& slot, uint64_t steps_opened, Nanos now);
  void on_answer(Nanos now);
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
  Nanos holder_deadline() const;

  SeekerOptions options_;
  const FormationView& view_;
  Phase phase_ = Phase::idle;
  SeekRequest request_;
  std::vector<PeerId> holders_;  // holders of the slot's key, as known when the request began
  size_t holder_ = 0;            // the holder that is being asked is holders_[holder_]
  uint64_t attempt_ = 0;
  bool acknowledged_ = false;
  uint32_t late_wakeups_ = 0;
  Nanos asked_at_ = 0;         // when the current holder was first asked
  Nanos answered_at_ = 0;      // when the current holder last answered; equals asked_at_ before its first answer
  Nanos repeat_at_ = never;    // when REGISTER is sent again
  Nanos layout_sent_ = never;  // when the current holder last got the layout; `never`: not yet
  Nanos round_timeout_ = 0;    // estimated here, until the coordinator sends its own value
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

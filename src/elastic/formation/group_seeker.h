// This process's own quest for a group of one round: a state machine. It registers at the slot's coordinator, goes on to the
// next holder when that one is silent or gone, and ends with a group or with the reason why there is none. One quest at a time.
//
// It ends within 3·(coordinator_timeout + gather_timeout + round_timeout) whatever anybody does: a coordinator gets so long
// (without the 3), and there are at most three. It waits for coordinators only, and coordinators wait for nobody, so there is
// no cycle of waits. It also keeps the last descriptors for members that never got theirs, and declines those that it cannot
// take any more.
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
  std::vector<PeerId> missing;  // of the descriptor, or of ALONE, of this round in the averaging step before
};
// A request with the place that the layout gives to the peer; with keys, that of its first one.
SeekRequest seek_request(const Layout& layout, const PeerId& self, uint64_t step, uint32_t round);

// Nobody else is there: the round is done with values unchanged.
struct SeekAlone {
  bool no_reducer = false;
  std::vector<PeerId> missing;
};
// The group was formed without this process. The coordinator of this round in the next averaging step has been told (LATE).
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
// The layout was replaced: take this one in, and seek the slot that it gives.
struct SeekStale {
  Layout newer;
};
using SeekOutcome = std::variant<GroupDescriptor, SeekAlone, SeekClosed, SeekFull, SeekNoCoordinator, SeekStale>;

// A member of an accepted group that takes no part in it.
struct DeclineNews {
  GroupId id;
  PeerId peer;
};

struct SeekerCounters {
  uint64_t ignored = 0;   // messages about nothing that is sought here
  uint64_t declined = 0;  // descriptors
  uint64_t holders_given_up = 0;
};

class GroupSeeker {
 public:
  // The view outlives the seeker.
  GroupSeeker(SeekerOptions options, const FormationView& view);

  // Begins a quest; one that is under way for another slot is withdrawn. After pre_register of the same slot it goes on with
  // the coordinator found there.
  void seek(const SeekRequest& request, Nanos now);
  // Tells the coordinator of a slot that this process will want it, while the round before runs. Not while a quest is under
  // way.
  void pre_register(const SeekRequest& request, Nanos now);
  // Tells the coordinator of a slot that this process will not come: its group need not wait. Not for the slot of a quest under
  // way.
  void skip(const SlotName& slot);
  // Withdraws what is under way; no outcome follows.
  void stop(Nanos now);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // The peer is dead or has left.
  void peer_gone(const PeerId& peer, Nanos now);
  // A message of a round came from a member of a group that has no round here: asks for the descriptor, or declines again.
  void unknown_group(const GroupId& id, const PeerId& from, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if nothing is sought.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Once per quest.
  std::optional<SeekOutcome> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  // Of groups that were accepted here, each once; those that come before the descriptor are kept until it does.
  std::vector<DeclineNews> take_declines() { return std::exchange(declines_, {}); }
  // The highest averaging step that others say was opened, if that was news.
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
  std::vector<PeerId> holders_;  // of the slot, as known when the quest began
  size_t holder_ = 0;            // index of the one that is asked
  uint64_t attempt_ = 0;
  bool acknowledged_ = false;
  uint32_t naps_ = 0;
  Nanos asked_ = 0;            // the present holder, first
  Nanos heard_ = 0;            // from it last, or asked_
  Nanos repeat_ = never;       // when REGISTER goes out again
  Nanos layout_sent_ = never;  // to the present holder; `never`: not yet
  Nanos round_timeout_ = 0;    // as the coordinator says, or as reckoned here
  std::deque<Recent> recent_;
  std::deque<DeclineNews> early_declines_;
  std::map<GroupId, Nanos> asked_groups_;
  std::vector<FormationSend> sends_;
  std::vector<DeclineNews> declines_;
  std::optional<SeekOutcome> outcome_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;
  SeekerCounters counters_;
};

}  // namespace unisono

// The coordinator in every process: takes registrations for slots, and tells the registered peers which group they are in. It
// serves slots whose key names this process, and those that peers register for here. A state machine beside the process's own
// GroupSeeker; it need not be in the groups that it forms.
//
// It waits for no other peer: each answer follows from messages that have arrived. A group is closed when all expected members
// have registered, or gather_timeout after the first REGISTER, or when pre-registered peers have had round_timeout. It closes
// sooner if others are in a later averaging step already: a peer that has not registered by then goes there.
//
// Under layouts with keys no members are expected by name: M registrations complete a group, and fewer wait for gather_timeout,
// as in the published method. If more than M had pre-registered, the surplus is told FULL.
//
// After take_layouts() the caller must put the layouts into the view before the next message: the member registers again right
// behind its LAYOUT_REPLY.
//
// Bounds: slots_open_max slots, 2·max_group registrations and as many pre-registrations per slot, closed_max closed slots for
// 60 s. At the limit the oldest closed slot is dropped, or the oldest slot without registrations. If there is none, the new
// registration is not answered.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "elastic/formation/formation_messages.h"
#include "elastic/layout/formation_view.h"
#include "elastic/wire/elastic_times.h"

namespace unisono {

// One process coordinates this many slots only if it can reach hardly any other peer.
inline constexpr size_t slots_open_max = 1024;
// The newest closed slots are kept. A peer that asks for an older one is answered from the number of its averaging step.
inline constexpr size_t closed_max = 512;
inline constexpr Nanos closed_kept = 60 * second;
// Slots this far behind the highest opened averaging step are not opened any more.
inline constexpr uint64_t steps_behind_max = 2;

struct CoordinatorOptions {
  PeerId self;
  std::string run;
  ElasticTimes times;
  uint32_t max_group = 32;  // 4 … 128
  uint32_t chunk_count = 0;
  uint32_t min_chunks = 0;
  uint64_t schema = 0;
  uint64_t seed = 0;        // of group ids; no two processes may share it
  double vector_bytes = 0;  // for round_timeout
};

struct CoordinatorCounters {
  uint64_t groups = 0;  // descriptors made
  uint64_t alone = 0;
  // Messages without effect: a position other than the layout's, an unknown slot, or no free slot.
  uint64_t ignored = 0;
  // Slots dropped without a group: their layout was replaced, their averaging step is over, or there were too many.
  uint64_t given_up = 0;
};

class GroupCoordinator {
 public:
  // The view must outlive the coordinator.
  GroupCoordinator(CoordinatorOptions options, const FormationView& view);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // The peer is dead or has left: no slot waits for it, and no group will include it.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if no slot is open or remembered.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Layouts that members sent; see the opening of this file.
  std::vector<Layout> take_layouts() { return std::exchange(layouts_, {}); }
  // The highest averaging step that a REGISTER opened here; empty if it has not risen since the last call.
  std::optional<uint64_t> take_opened() { return std::exchange(opened_, std::nullopt); }

  size_t open_slots() const { return open_.size(); }
  size_t closed_slots() const { return closed_.size(); }
  const CoordinatorCounters& counters() const { return counters_; }

 private:
  struct Entry {
    PeerId peer;
    uint32_t position = 0;
    bool in_layout = false;
    bool registered = false;  // false: pre-registered
    bool weighted = false;
    ElasticRole role = ElasticRole::peer;
    double bandwidth = -1;
    uint64_t attempt = 0;
    Nanos since = 0;  // when the peer first asked for this slot
  };
  struct Slot {
    std::vector<PeerId> line;    // members that the layout names, by position
    uint32_t key_group = 0;      // M under a layout with keys, where `line` is empty; else 0
    std::vector<Entry> entries;  // in order of arrival
    std::set<PeerId> lagging;  // members of the line that were named missing or have withdrawn; the slot does not wait for them
    std::set<PeerId> withdrawn;  // subset of lagging: absent by their own wish, so not reported missing
    std::set<PeerId> late;       // members of the line that sent LATE; they do not count as lagging, whatever others report
    Nanos made = 0;
    Nanos first_register = never;
    Nanos next_sign = never;  // when PENDING goes to the registered peers next
    Nanos close_at = never;   // as known now; without registrations: when pre-registrations expire
  };
  struct Closed {
    Nanos at = 0;
    std::shared_ptr<const GroupDescriptor> group;  // null: all registered peers were told ALONE
    formation::Alone alone;
    std::set<PeerId> told_alone, told_full;
    std::set<PeerId> unacknowledged;
    Nanos next_repeat = never;
  };
  using Slots = std::map<SlotName, Slot>;

  void take(const PeerId& from, const formation::Register& request, Nanos now);
  void take(const PeerId& from, const formation::DescriptorAck& ack, Nanos now);
  void take(const PeerId& from, const formation::LayoutReply& reply, Nanos now);
  void take(const PeerId& from, const formation::Late& late, Nanos now);
  void take(const PeerId& from, const formation::Withdraw& withdraw, Nanos now);

  bool answer_closed(const PeerId& from, const SlotName& slot, Nanos now);
  const Layout* layout_of(const PeerId& from, const SlotName& slot);
  const Layout* replacement(const SlotName& slot) const;
  Slot* open_slot(const SlotName& name, const Layout& layout, Nanos now);
  static std::vector<Entry>::iterator find_entry(Slot& slot, const PeerId& peer);
  bool add_entry(Slot& slot, const PeerId& from, const formation::Register& request, Nanos now);
  bool make_space(Slot& slot, const formation::Register& request);
  static void note_missing(Slot& slot, std::vector<PeerId> missing);
  void note_opened(uint64_t step);
  uint64_t steps_opened() const;
  bool past(uint64_t step) const;
  bool superseded(uint64_t step) const;
  void drop_past();

  // If it is time, closes the slot, or drops it when nothing needs to be remembered. True if it is not open any more.
  bool settle(Slots::iterator slot, Nanos now);
  static bool has_registered(const Slot& slot, const PeerId& peer);
  static size_t registered_with_values(const Slot& slot);
  Nanos when_to_close(const SlotName& name, const Slot& slot) const;
  Nanos round_timeout(const Slot& slot) const;
  void close(const SlotName& name, const Slot& slot, Nanos now);
  Result<GroupDescriptor> form(const SlotName& name, const Slot& slot);
  static bool is_complete(const Slot& slot, const GroupDescriptor& group);
  std::vector<PeerId> missing_of(const Slot& slot) const;
  void sign(Slots::iterator slot, Nanos now);
  void repeat_descriptors(const SlotName& name, Nanos now);
  const Layout* layout_of_line(const PeerId& from, const SlotName& slot);
  bool everybody_is_here(Slot& slot) const;
  void tell_announced(const SlotName& name, const Slot& slot);
  void send_pending(const SlotName& name, const Slot& slot, const Entry& entry);

  CoordinatorOptions options_;
  const FormationView& view_;
  Random random_;
  Slots open_;
  std::map<SlotName, Closed> closed_;
  std::deque<std::pair<Nanos, SlotName>> closed_order_;     // time of closing; oldest first
  std::map<GroupId, SlotName> repeating_;                   // closed slots whose descriptor some members have not acknowledged
  std::set<std::pair<uint64_t, uint64_t>> wanted_layouts_;  // version and digest of layouts that were asked for
  std::vector<FormationSend> sends_;
  std::vector<Layout> layouts_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;  // plus 1, as in FormationView
  CoordinatorCounters counters_;
};

}  // namespace unisono

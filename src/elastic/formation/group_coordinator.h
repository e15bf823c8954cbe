// The coordinator in every process: takes registrations for slots whose key names this process (or whoever registers here), and
// tells the registered who is in their group. A state machine beside the process's own quests; it need not be in the groups
// that it forms.
//
// It waits for nobody: every answer is made from what has arrived. A group is closed when everybody expected has registered,
// else gather_timeout after the first REGISTER, else when the pre-registered have had round_timeout. Sooner where others are in
// a later averaging step already: whoever has not registered by then goes there. Where peers have keys, nobody is expected by
// name: M are enough, and fewer wait for gather_timeout, as in the published method; of more than M, who had announced
// themselves, some are told FULL. After take_layouts() the layouts must be in the view before the next message comes: the
// member registers again right behind its LAYOUT_REPLY.
//
// Bounded: slots_open_max slots, 2·max_group registrations and as many pre-registrations in each, closed_max closed slots for
// 60 s. At the limit, the oldest closed slot goes, or the oldest that nobody registered for; if there is none, the newcomer is
// not answered.
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

inline constexpr size_t slots_open_max = 1024;  // a process coordinators for more only if hardly any other peer can be reached
inline constexpr size_t closed_max =
    512;  // of the newest; who asks for an older one is told so by the number of its averaging step
inline constexpr Nanos closed_kept = 60 * second;
inline constexpr uint64_t steps_behind_max =
    2;  // slots of averaging steps further behind the highest opened one are not opened any more

struct CoordinatorOptions {
  PeerId self;
  std::string run;
  ElasticTimes times;
  uint32_t max_group = 32;  // 4 … 128
  uint32_t chunk_count = 0;
  uint32_t min_chunks = 0;
  uint64_t schema = 0;
  uint64_t seed = 0;        // of group ids: never the same in two processes
  double vector_bytes = 0;  // for round_timeout
};

struct CoordinatorCounters {
  uint64_t groups = 0;  // descriptors made
  uint64_t alone = 0;
  uint64_t ignored =
      0;  // messages that make no sense here: another place than the layout gives, unknown slots, no room for a slot
  uint64_t given_up =
      0;  // slots without a group: their layout was replaced, their averaging step is past, or there were too many
};

class GroupCoordinator {
 public:
  // The view outlives the coordinator.
  GroupCoordinator(CoordinatorOptions options, const FormationView& view);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // The peer is dead or has left: nobody waits for it, and it is not put into a group.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if no slot is open or remembered.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Pulled from members, to be taken in before the next message.
  std::vector<Layout> take_layouts() { return std::exchange(layouts_, {}); }
  // The highest averaging step that a REGISTER opened here, if that was news.
  std::optional<uint64_t> take_opened() { return std::exchange(opened_, std::nullopt); }

  size_t open_slots() const { return open_.size(); }
  size_t closed_slots() const { return closed_.size(); }
  const CoordinatorCounters& counters() const { return counters_; }

 private:
  struct Entry {
    PeerId peer;
    uint32_t position = 0;
    bool in_layout = false;
    bool registered = false;  // else pre-registered
    bool weighted = false;
    ElasticRole role = ElasticRole::peer;
    double bandwidth = -1;
    uint64_t attempt = 0;
    Nanos since = 0;  // it was first heard of for this slot
  };
  struct Slot {
    std::vector<PeerId> line;    // its layout members, by position
    uint32_t key_group = 0;      // M, if peers have keys: then the line is empty
    std::vector<Entry> entries;  // in order of arrival
    std::set<PeerId> lagging;    // of the line: named missing, or withdrawn; nobody waits for them
    std::set<PeerId> withdrawn;  // of these: absent by their own wish, so not missing
    std::set<PeerId> late;       // of the line: said LATE, so they do not lag whatever others say
    Nanos made = 0;
    Nanos first_register = never;
    Nanos next_sign = never;  // PENDING to the registered
    Nanos close_at = never;   // as things stand; with nobody registered: when the pre-registrations are over
  };
  struct Closed {
    Nanos at = 0;
    std::shared_ptr<const GroupDescriptor> group;  // null: everybody registered was told ALONE
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
  bool slot_entry(Slot& slot, const PeerId& from, const formation::Register& request, Nanos now);
  bool make_room(Slot& slot, const formation::Register& request);
  static void hear_missing(Slot& slot, std::vector<PeerId> missing);
  void note_opened(uint64_t step);
  uint64_t steps_opened() const;
  bool past(uint64_t step) const;
  bool superseded(uint64_t step) const;
  void give_up_past();

  // Closes the slot, or drops it if nothing is left to remember, if it is time; true if it is not open any more.
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
  std::deque<std::pair<Nanos, SlotName>> closed_order_;     // when each was closed, oldest first
  std::map<GroupId, SlotName> repeating_;                   // closed slots whose descriptor is not acknowledged by all
  std::set<std::pair<uint64_t, uint64_t>> wanted_layouts_;  // version and digest, asked for
  std::vector<FormationSend> sends_;
  std::vector<Layout> layouts_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;  // + 1, as FormationView has it
  CoordinatorCounters counters_;
};

}  // namespace unisono

// Every process has a coordinator. It takes registrations for slots (names of groups to be formed), forms groups, and tells
// each registered peer its group. A coordinator serves a slot if the slot's key selects this process, or if a peer registers
// here. Its process need not be a member of the group. It is a state machine, separate from the GroupSeeker.
//
// A coordinator never waits for an answer, so formation cannot deadlock. A slot closes when all expected peers have registered.
// If some do not register, it closes gather_timeout after the first REGISTER, or up to round_timeout later if peers have
// pre-registered. If other peers are already in a later averaging step, the slot closes sooner. Peers that have not registered
// by then join the later step.
//
// A layout with keys does not say which peers belong to a group. Such a group is complete when M peers have registered, where M
// is the layout's group size. Until then the coordinator waits for up to gather_timeout, as in the published method. If more
// than M peers pre-registered, the surplus gets FULL.
//
// A member registers again right after it has sent a LAYOUT_REPLY. Therefore the caller must pass the layouts that
// take_layouts() returns to the FormationView before it passes in the next message.
//
// Limits: There are at most slots_open_max open slots. At most closed_max closed slots are remembered, each for 60 s. A slot
// has at most 2·max_group registrations, and as many pre-registrations. When a limit is reached, the oldest closed slot is
// dropped, or the oldest open slot without registrations. If all open slots have registrations, a REGISTER for a new slot gets
// no answer.
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

// At most this many slots are open. A process coordinates so many slots only if it can reach hardly any other peer.
inline constexpr size_t slots_open_max = 1024;
// This many closed slots are remembered. If a slot was forgotten and its averaging step is over, a later REGISTER for it gets
// CLOSED.
inline constexpr size_t closed_max = 512;
inline constexpr Nanos closed_kept = 60 * second;
// A slot is not opened if its averaging step is more than this far behind the highest opened step.
inline constexpr uint64_t steps_behind_max = 2;

struct CoordinatorOptions {
  PeerId self;
  std::string run;
  ElasticTimes times;
  uint32_t max_group = 32;  // 4 … 128
  uint32_t chunk_count = 0;
  uint32_t min_chunks = 0;
  uint64_t schema = 0;
  uint64_t seed = 0;        // determines the random group ids; each process needs its own seed
  double vector_bytes = 0;  // size of the averaged vector; round_timeout depends on it
};

struct CoordinatorCounters {
  uint64_t groups = 0;  // how many descriptors were made
  uint64_t alone = 0;
  // Number of messages without effect: their position differs from the layout's, their slot is unknown, or too many slots are
  // open.
  uint64_t ignored = 0;
  // Number of slots that were dropped without a group: their layout was replaced, their averaging step is over, or too many
  // slots were open.
  uint64_t dropped = 0;
};

class GroupCoordinator {
 public:
  // The view must outlive the coordinator.
  GroupCoordinator(CoordinatorOptions options, const FormationView& view);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // Call when the peer is dead or has left. No slot then waits for the peer any more, and no new group includes it.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  // Returns when woke() must be called next, or `never` if no slot is open or remembered.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Returns the layouts that members have sent. The caller must pass them to the FormationView before the next message.
  std::vector<Layout> take_layouts() { return std::exchange(layouts_, {}); }
  // Returns the highest averaging step that a REGISTER has opened here, if it has risen since the last call. Otherwise returns
  // nothing.
  std::optional<uint64_t> take_opened() { return std::exchange(opened_, std::nullopt); }

  size_t open_slots() const { return open_.size(); }
  size_t closed_slots() const { return closed_.size(); }
  const CoordinatorCounters& counters() const { return counters_; }

 private:
  struct Entry {
    PeerId peer;
    uint32_t position = 0;
    bool in_layout = false;
    bool registered = false;  // false: the peer is only pre-registered
    bool weighted = false;
    ElasticRole role = ElasticRole::peer;
    double bandwidth = -1;
    uint64_t attempt = 0;
    Nanos since = 0;  // when the peer first asked for this slot
  };
  struct Slot {
    std::vector<PeerId> line;    // peers on the slot's line according to the layout, ordered by position
    uint32_t key_group = 0;      // under a layout with keys: the group size M (`line` is then empty); otherwise 0
    std::vector<Entry> entries;  // all peers that have registered or pre-registered, in order of arrival
    // Peers of `line` that were reported missing, or have withdrawn. Once two peers have registered, the slot does not wait for
    // these.
    std::set<PeerId> lagging;
    // Those peers of `lagging` that have withdrawn. Descriptors do not list them as `missing`.
    std::set<PeerId> withdrawn;
    std::set<PeerId> late;  // Peers of `line` that have sent LATE. If such a peer is reported missing, the report is ignored.
    Nanos made = 0;
    Nanos first_register = never;
    Nanos next_pending = never;  // when the registered peers get the next PENDING
    // When the slot closes. If no peer has registered, this is when the last pre-registration expires.
    Nanos close_at = never;
  };
  struct Closed {
    Nanos at = 0;
    // Null if the slot was closed without a group. The registered peers then got ALONE or CLOSED.
    std::shared_ptr<const GroupDescriptor> group;
    formation::Alone alone;
    std::set<PeerId> sent_alone, sent_full;
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

  // Closes the slot if its time has come, and returns true. If the slot holds no entry, no LATE and no withdrawal, drops it and
  // returns true. Otherwise the slot stays open, and the result is false.
  bool settle(Slots::iterator slot, Nanos now);
  static bool has_registered(const Slot& slot, const PeerId& peer);
  static size_t registered_with_values(const Slot& slot);
  Nanos when_to_close(const SlotName& name, const Slot& slot) const;
  Nanos round_timeout(const Slot& slot) const;
  void close(const SlotName& name, const Slot& slot, Nanos now);
  Result<GroupDescriptor> form(const SlotName& name, const Slot& slot);
  static bool is_complete(const Slot& slot, const GroupDescriptor& group);
  std::vector<PeerId> missing_of(const Slot& slot) const;
  void repeat_pending(Slots::iterator slot, Nanos now);
  void repeat_descriptors(const SlotName& name, Nanos now);
  const Layout* layout_of_line(const PeerId& from, const SlotName& slot);
  bool all_expected_present(Slot& slot) const;
  void notify_pre_registered(const SlotName& name, const Slot& slot);
  void send_pending(const SlotName& name, const Slot& slot, const Entry& entry);

  CoordinatorOptions options_;
  const FormationView& view_;
  Random random_;
  Slots open_;
  std::map<SlotName, Closed> closed_;
  std::deque<std::pair<Nanos, SlotName>> closed_order_;  // ordered by the time of closing, oldest first
  // closed slots whose descriptors are still repeated, because some members have not acknowledged them
  std::map<GroupId, SlotName> repeating_;
  std::set<std::pair<uint64_t, uint64_t>> wanted_layouts_;  // version and digest of each layout that a member was asked for
  std::vector<FormationSend> sends_;
  std::vector<Layout> layouts_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;  // the highest averaging step that was opened here, plus 1; 0: none was
  CoordinatorCounters counters_;
};

}  // namespace unisono

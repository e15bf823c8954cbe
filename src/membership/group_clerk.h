// The clerk in every process: takes registrations for seats whose key names this process (or whoever registers here), and tells the
// registered who is in their group. A state machine beside the process's own quests; it need not be in the groups that it forms.
//
// It waits for nobody: every answer is made from what has arrived. A group is closed when everybody expected has registered, else
// gather_timeout after the first REGISTER, else when the pre-registered have had round_timeout. After take_layouts() the layouts
// must be in the view before the next message comes: the member registers again right behind its LAYOUT_REPLY.
//
// Bounded: seats_open_max seats, 2·max_group registrations and as many pre-registrations in each, closed_max closed seats for 60 s.
// At the limit, the oldest closed seat goes, or the oldest that nobody registered for; if there is none, the newcomer is not answered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "membership/formation_messages.h"
#include "membership/formation_view.h"
#include "wire/elastic_times.h"

namespace unisono {

inline constexpr size_t seats_open_max = 1024;  // a process clerks for more only if hardly any other peer can be reached
inline constexpr size_t closed_max = 512;       // of the newest; who asks for an older one is told so by the number of its sweep
inline constexpr Nanos closed_kept = 60 * second;
inline constexpr uint64_t sweeps_behind_max = 2;  // seats of sweeps further behind the highest opened one are not opened any more

struct ClerkOptions {
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

struct ClerkCounters {
  uint64_t groups = 0;   // descriptors made
  uint64_t alone = 0;
  uint64_t ignored = 0;  // messages that make no sense here: another place than the layout gives, unknown seats, no room for a seat
  uint64_t given_up = 0; // open seats dropped: their layout was replaced, their sweep is long past, or there were too many
};

class GroupClerk {
 public:
  // The view outlives the clerk.
  GroupClerk(ClerkOptions options, const FormationView& view);

  void message(const PeerId& from, const FormationMessage& message, Nanos now);
  // The peer is dead or has left: nobody waits for it, and it is not put into a group.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  // When woke() must be called; `never` if no seat is open or remembered.
  Nanos next_deadline() const;

  std::vector<FormationSend> take_sends() { return std::exchange(sends_, {}); }
  // Pulled from members, to be taken in before the next message.
  std::vector<Layout> take_layouts() { return std::exchange(layouts_, {}); }
  // The highest sweep that a REGISTER opened here, if that was news.
  std::optional<uint64_t> take_opened() { return std::exchange(opened_, std::nullopt); }

  size_t open_seats() const { return open_.size(); }
  size_t closed_seats() const { return closed_.size(); }
  const ClerkCounters& counters() const { return counters_; }

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
    Nanos since = 0;  // it was first heard of here
  };
  struct Seat {
    std::vector<PeerId> line;      // its layout members
    std::vector<Entry> entries;    // in order of arrival
    std::set<PeerId> lagging;      // of the line: named missing, or withdrawn; nobody waits for them
    std::set<PeerId> withdrawn;    // of the line: absent by their own wish, so not missing
    std::set<PeerId> late;         // of the line: said LATE, so they are not lagging whatever others say
    Nanos made = 0;
    Nanos first_register = never;
    Nanos next_sign = never;       // PENDING to the registered
  };
  struct Closed {
    Nanos at = 0;
    std::shared_ptr<const GroupDescriptor> group;  // null: everybody was told ALONE
    formation::Alone alone;                        // then this
    std::set<PeerId> told;                         // ALONE
    std::set<PeerId> unacknowledged;
    Nanos next_repeat = never;
  };

  void take(const PeerId& from, const formation::Register& request, Nanos now);
  void take(const PeerId& from, const formation::DescriptorAck& ack, Nanos now);
  void take(const PeerId& from, const formation::LayoutReply& reply, Nanos now);
  void take(const PeerId& from, const formation::Late& late, Nanos now);
  void take(const PeerId& from, const formation::Withdraw& withdraw, Nanos now);

  ClerkOptions options_;
  const FormationView& view_;
  Random random_;
  std::map<SeatName, Seat> open_;
  std::map<SeatName, Closed> closed_;
  std::vector<FormationSend> sends_;
  std::vector<Layout> layouts_;
  std::optional<uint64_t> opened_;
  uint64_t highest_opened_ = 0;  // + 1
  ClerkCounters counters_;
};

}  // namespace unisono

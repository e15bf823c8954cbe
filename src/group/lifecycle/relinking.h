// Makes lost links anew while the group re-forms. A member to which the link is lost may live, unless the loss proves that its
// process has ended. So it is dialled at the addresses of the roster before it is judged. A link that is up but does not work
// at present is waited for.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "base/clock.h"
#include "transports/transport.h"
#include "wire/peer_id.h"

namespace unisono {

struct GuardedState;
struct ReformRequest;

// What is known of links in the present re-forming.
struct Relinking {
  std::vector<PeerIndex> peers{};             // the members of the roster that is re-formed, by rank
  std::set<PeerIndex> dialled{};              // the links to these peers were lost, and are made anew
  std::map<PeerIndex, Nanos> silent_since{};  // the hosts of these peers acknowledge nothing
};

// A lost link has been tried for link_timeout already, or the peer has given it up. The peer, too, has to notice the loss, and
// the first datagram or SYN may be lost.
inline constexpr Nanos relink_time = 2 * second;
// While the group re-forms, step_relinking() must be called this often.
inline constexpr Nanos relink_interval = 10 * millisecond;

// Begins a re-forming: dials the members whose links are lost, and tells `request` of all members without a link that works.
void begin_relinking(GuardedState& guarded, ReformRequest& request, Nanos now);
// Tells the state machine which links have come up and which do not work, and dials the members whose links were lost since.
void step_relinking(GuardedState& guarded, Nanos now);
// Call it when a link is lost, at any time.
void on_link_lost(GuardedState& guarded, PeerIndex peer, PeerFate fate, Nanos now);

}  // namespace unisono

#include "group/lifecycle/reporting.h"

#include <algorithm>

#include "base/concat.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/security_options.h"

namespace unisono {
namespace {

std::string list_of(const std::vector<Member>& members) {
  std::string list;
  for (const auto& member : members)
    list += concat(list.empty() ? "" : ", ", "rank ", member.rank, " (host ", member.host, ", pid ", member.pid, ")");
  return list;
}

}  // namespace

void report_event(GuardedState& guarded, EventKind kind, PeerIndex about, const std::string& text) {
  int32_t rank = -1;
  if (about != self_peer) {
    if (const auto* member = guarded.members.record_of(about)) rank = static_cast<int32_t>(member->rank);
  }
  guarded.engine.record_event(about, kind, text, monotonic_now());
  guarded.events.add(kind, rank, text);
}

void set_event_source(GuardedState& guarded) {
  if (const auto* self = guarded.members.record_of(self_peer)) guarded.events.set_source(label(*self));
}

void report_joined(GuardedState& guarded) {
  const auto& roster = guarded.members.roster();
  report_event(guarded, EventKind::joined, self_peer,
               concat("joined a group of ", roster.members.size(), roster.members.size() == 1 ? " rank on " : " ranks on ",
                      hosts_of(roster).size(), hosts_of(roster).size() == 1 ? " host" : " hosts", ", epoch ", roster.epoch));
}

void report_unprotected(GuardedState& guarded) {
  const auto& options = guarded.options;
  const auto* self = guarded.members.record_of(self_peer);
  if (self == nullptr || self->rank != 0 || options.key.given() || options.security != Security::automatic) return;
  const auto is_elsewhere = [&](const MemberRecord& member) { return member.machine != self->machine; };
  if (is_on_this_host(options.rendezvous) && std::ranges::none_of(guarded.members.roster().members, is_elsewhere)) return;
  report_event(guarded, EventKind::unprotected, self_peer,
               unprotected_text("group", "start it with `unisono launch`, or ", "ranks"));
}

void report_reformed(GuardedState& guarded, const Reformed& reformed) {
  report_event(guarded, EventKind::reformed, self_peer,
               concat("the group has re-formed: ", reformed.world_size, reformed.world_size == 1 ? " rank" : " ranks",
                      ", epoch ", reformed.epoch, reformed.lost.empty() ? "" : "; lost: ", list_of(reformed.lost),
                      reformed.joined.empty() ? "" : "; joined: ", list_of(reformed.joined)));
}

}  // namespace unisono

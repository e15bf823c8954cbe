#include "elastic/peer/run_events.h"

#include <utility>

#include "base/concat.h"

namespace unisono {

void RunEvents::look(const ElasticStatus& status, Nanos now) {
  next_look_ = now + period;
  std::map<std::string, std::string> present;
  for (const auto& peer : status.peers) {
    if (peer.self) events_.set_source(concat("peer ", peer.name, " of run ", run_id_));
    else present.emplace(concat(peer.name, " (", peer.address.empty() ? "no address" : peer.address, ")"), peer.status);
  }
  if (!joined_) {
    joined_ = true;
    events_.add(EventKind::joined, -1,
                concat("joined run ", run_id_, " of ", present.size() + 1, present.empty() ? " peer" : " peers"));
  } else {
    for (const auto& [peer, after] : present) {
      const auto before = known_.find(peer);
      compare(peer, before == known_.end() ? "" : before->second, after);
    }
    for (const auto& [peer, before] : known_) {
      if (!present.contains(peer)) compare(peer, before, "dead");
    }
  }
  known_ = std::move(present);
  if (const auto more = status.refused - refused_; status.refused > refused_) {
    events_.add(EventKind::refused, -1,
                concat("refused ", more, more == 1 ? " connection or message" : " connections or messages",
                       "; the last: ", status.last_refusal));
  }
  refused_ = status.refused;
}

void RunEvents::compare(const std::string& peer, const std::string& before, const std::string& after) {
  const auto is_present = [](const std::string& status) { return status == "alive" || status == "suspect"; };
  const bool was_here = is_present(before), is_here = is_present(after);
  if (is_here && !was_here) events_.add(EventKind::peer_joined, -1, concat("peer ", peer, " has joined the run"));
  if (after == "left" && was_here) events_.add(EventKind::peer_left, -1, concat("peer ", peer, " has left the run"));
  if (after == "dead" && was_here)
    events_.add(EventKind::peer_lost, -1, concat("peer ", peer, " is lost: it does not answer any more"));
}

}  // namespace unisono

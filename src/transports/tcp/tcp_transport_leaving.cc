// How a TcpTransport ends links: a closed link goes on until its peer has everything.
#include <algorithm>
#include <utility>

#include "transports/tcp/tcp_transport.h"

namespace unisono {
namespace {

constexpr size_t departures_max = 4096;

}  // namespace

void TcpTransport::close(PeerIndex peer) {
  auto* link = find(peer);
  if (link == nullptr) return;
  dial_back_.drop(*link);
  if (link->state() == LinkState::connecting) --connecting_;
  if (const auto at = std::find(live_.begin(), live_.end(), link); at != live_.end()) {
    live_.erase(at);
    by_id_.erase(link->request().id);
  }
  // During poll(), the link may be among the callers of this function.
  auto owned = std::move(links_[peer]);
  if (link->state() == LinkState::up) {
    const auto number = leaving_numbers_++;
    link->leave(leaving_tag_base + number, now_, sent_);
    leaving_.push_back({number, std::move(owned)});
  } else {
    link->lose(Status(Code::peer_lost, "closed"), PeerFate::unknown, sent_);
    retire(*link);
    if (polling_) closed_links_.push_back(std::move(owned));
  }
  count_streams();
  check_control_ = true;
}

void TcpTransport::abort(PeerIndex peer) {
  auto* link = find(peer);
  if (link != nullptr && link->state() == LinkState::up)
    link->lose(Status(Code::peer_lost, "aborted"), PeerFate::unknown, sent_);
  close(peer);
}

// The link is about to be deleted.
void TcpTransport::retire(const TcpLink& link) {
  const auto& traffic = link.traffic();
  retired_.sent_frames += traffic.sent_frames;
  retired_.sent_bytes += traffic.sent_bytes;
  retired_.received.frames += traffic.received.frames;
  retired_.received.bytes += traffic.received.bytes;
}

// Transport: driving ------------------------------------------------------------------------------------------------

// Links that leave make no upcalls.
bool TcpTransport::step_leaving(Nanos now, Sink& sink) {
  bool any = false;
  for (size_t i = 0; i < leaving_.size();) {
    auto& link = *leaving_[i].link;
    auto state = TcpLink::Leaving::in_vain;
    if (link.state() == LinkState::up) {
      any |= keep_up(link, now, sink);
      state = link.leaving_state(now);
    }
    if (state == TcpLink::Leaving::goes_on) {
      ++i;
      continue;
    }
    any = true;
    if (state == TcpLink::Leaving::in_order) remember_departure(link);
    retire(link);
    leaving_.erase(leaving_.begin() + static_cast<ptrdiff_t>(i));
    listener_->recheck_waiting();
    check_control_ = true;
    count_streams();
  }
  return any;
}

void TcpTransport::remember_departure(const TcpLink& link) {
  std::erase_if(departures_, [&](const auto& departure) { return now_ >= departure.until; });
  if (departures_.size() >= departures_max) departures_.erase(departures_.begin());
  TcpDeparture departure{.peer = link.request().id, .session = link.session_number()};
  for (uint16_t i = 0; i < link.stream_count(); ++i) departure.positions.push_back(link.stream(i).position());
  departure.until = now_ + options_.link.link_timeout;
  departures_.push_back(std::move(departure));
}

TcpLink* TcpTransport::find_tag(uint64_t tag) const {
  const auto name = tag >> 16;
  if (name < leaving_tag_base) return find(static_cast<PeerIndex>(name));
  const auto found = std::lower_bound(leaving_.begin(), leaving_.end(), name - leaving_tag_base,
                                      [](const LeavingLink& leaving, uint64_t number) { return leaving.number < number; });
  return found != leaving_.end() && found->number == name - leaving_tag_base ? found->link.get() : nullptr;
}

bool TcpTransport::has_pending() const {
  return std::any_of(leaving_.begin(), leaving_.end(), [](const auto& leaving) { return leaving.link->may_be_missed(); });
}

}  // namespace unisono

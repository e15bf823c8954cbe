#include "transports/tcp/tcp_dial_back.h"

#include <algorithm>

#include "transports/tcp/tcp_link.h"

namespace unisono {

void TcpDialBack::add(TcpLink& link) {
  const bool dialling = std::any_of(dials_.begin(), dials_.end(), [&](const Dial& dial) { return dial.link == &link; });
  if (link.wants_dial_back() && !dialling && std::find(waiting_.begin(), waiting_.end(), &link) == waiting_.end())
    waiting_.push_back(&link);
}

void TcpDialBack::drop(const TcpLink& link) {
  std::erase(waiting_, &link);
  std::erase_if(dials_, [&](const Dial& dial) { return dial.link == &link; });
}

bool TcpDialBack::step(Nanos now, const MakeDialer& make_dialer) {
  bool any = false;
  while (!waiting_.empty() && dials_.size() < at_a_time) {
    auto* const link = waiting_.back();
    waiting_.pop_back();
    if (link->wants_dial_back()) dials_.push_back({.link = link, .dialer = make_dialer(*link), .until = now + answer_timeout});
  }
  std::erase_if(dials_, [&](Dial& dial) {
    any |= dial.dialer->step(now);
    const bool answered = dial.dialer->final_answer().has_value();
    if (answered) dial.link->note_answer(*dial.dialer->answered_at());
    return answered || dial.dialer->failed() || now >= dial.until || !dial.link->wants_dial_back();
  });
  return any;
}

Nanos TcpDialBack::next_deadline() const {
  if (!waiting_.empty() && dials_.size() < at_a_time) return 0;
  Nanos next = never;
  for (const auto& dial : dials_) next = std::min({next, dial.until, dial.dialer->next_deadline()});
  return next;
}

}  // namespace unisono

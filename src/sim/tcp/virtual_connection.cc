#include "sim/tcp/virtual_connection.h"

#include <algorithm>
#include <cerrno>

namespace unisono::sim {
namespace {

// These are Linux's values; the keep-alive probes are those of set_stream_options().
constexpr Nanos syn_interval = 1 * second, first_interval = 200 * millisecond, interval_max = 120 * second;
constexpr uint32_t syn_repeats_max = 6, syn_answers_max = 5, repeats_max = 15;
constexpr Nanos keepalive_idle = 10 * second, keepalive_interval = 5 * second;
constexpr uint32_t keepalive_probes_max = 4;
constexpr Nanos finish_timeout = 60 * second;  // for an end without a socket that waits for the other end to finish
constexpr uint32_t repeats_min = 2;            // below it, unacknowledged() reports nothing
constexpr uint32_t packet_headers = 52;
// The kernel of a new connection has memory for the bytes of a handshake, whatever short_write says.
constexpr uint64_t first_bytes = 160;

}  // namespace

VirtualConnection::VirtualConnection(StreamKernel& kernel, ConnectionId id)
    : kernel_(kernel),
      id_(id),
      pipes_{StreamPipe(kernel.settings().record_bytes_max), StreamPipe(kernel.settings().record_bytes_max)} {}

// Sockets -----------------------------------------------------------------------------------------------------------

void VirtualConnection::dial() {
  auto& self = end(0);
  self.state = EndState::dialling;
  self.held = true;
  self.heard_at = kernel_.now();
  self.interval = syn_interval;
  send_control(0, SegmentKind::syn);
  start_timer(0);
}

ptrdiff_t VirtualConnection::write(int side, const iovec* parts, int count) {
  auto& self = end(side);
  auto& pipe = out(side);
  if (self.state == EndState::dialling) return 0;
  if (self.error != 0) return -take_error(side);
  if (self.state != EndState::open || pipe.ended()) return -EPIPE;
  const auto& settings = kernel_.settings();
  const uint64_t held = pipe.written() - std::min(pipe.acknowledged(), pipe.written());
  size_t space = held < settings.send_queue_bytes ? static_cast<size_t>(settings.send_queue_bytes - held) : 0;
  if (space > 0 && pipe.written() >= first_bytes && kernel_.random().chance(settings.short_write)) {
    size_t wanted = 0;
    for (int i = 0; i < count; ++i) wanted += parts[i].iov_len;
    space = 1 + static_cast<size_t>(kernel_.random().below(std::min(space, std::max<size_t>(wanted, 1))));
  }
  const bool was_idle = !has_pending(side);
  const auto taken = pipe.append(parts, count, space, kernel_.random());
  transmit(side);
  if (was_idle && taken > 0) start_timer(side);
  return static_cast<ptrdiff_t>(taken);
}

ptrdiff_t VirtualConnection::read(int side, const iovec* parts, int count, bool keep, bool& ended) {
  auto& self = end(side);
  auto& pipe = in(side);
  ended = false;
  if (self.state == EndState::dialling) return 0;
  if (size_t limit = pipe.readable(); limit > 0) {
    if (kernel_.random().chance(kernel_.settings().short_read)) limit = 1 + static_cast<size_t>(kernel_.random().below(limit));
    const auto copied = pipe.copy(parts, count, limit);
    if (keep) return static_cast<ptrdiff_t>(copied);
    pipe.drop(copied);
    const auto grown = free_window(side) - self.offered;
    const bool closed = self.offered == pipe.received();
    if (self.state == EndState::open && grown > 0 && (closed || grown * 4 >= kernel_.settings().receive_queue_bytes))
      send_control(side, SegmentKind::acknowledgement);
    return static_cast<ptrdiff_t>(copied);
  }
  if (pipe.end_received()) ended = true;
  else if (self.error != 0) return -take_error(side);
  else if (self.state != EndState::open) ended = true;
  return 0;
}

void VirtualConnection::shut_down(int side) {
  if (end(side).state != EndState::open || out(side).ended()) return;
  const bool was_idle = !has_pending(side);
  out(side).end();
  transmit(side);
  if (was_idle) start_timer(side);
}

void VirtualConnection::close(int side, bool aborts) {
  auto& self = end(side);
  if (!self.held) return;
  if (self.state == EndState::open && kernel_.random().chance(kernel_.settings().late_arrival)) arrive_late(side);
  self.held = false;
  if (self.state == EndState::dialling || self.state == EndState::answering) self.state = EndState::gone;
  if (self.state != EndState::open) return;
  if (aborts || in(side).has_unread()) return abort(side);
  shut_down(side);
  start_timer(side);
  finish_if_done(side);
}

void VirtualConnection::close_unaccepted() {
  end(1).held = false;
  if (end(1).state == EndState::open) abort(1);
}

// Between the last call that found nothing to read and close(), bytes may arrive, and their sender may learn it.
void VirtualConnection::arrive_late(int side) {
  for (const int from : {1 - side, side}) {
    auto& flights = end(from).flights;
    for (auto n = kernel_.random().below(4); n > 0 && !flights.empty(); --n) {
      const auto segment = flights.front().segment;
      flights.pop_front();
      if (kernel_.carries(*this, from)) arrive(1 - from, segment);
      if (from != side) acknowledgement_due(side);
    }
  }
}

bool VirtualConnection::is_readable(int side) const {
  const auto& self = end(side);
  if (self.state == EndState::dialling) return false;
  return in(side).readable() > 0 || in(side).end_received() || self.error != 0 || self.state != EndState::open;
}

bool VirtualConnection::is_writable(int side) const {
  const auto& self = end(side);
  if (self.state == EndState::dialling) return false;
  return self.state != EndState::open ||
         out(side).written() - std::min(out(side).acknowledged(), out(side).written()) < kernel_.settings().send_queue_bytes;
}

bool VirtualConnection::host_is_silent(int side, Nanos silence) const {
  const auto& self = end(side);
  return (self.repeats >= 2 || self.probes >= 2) && kernel_.now() - self.heard_at >= silence;
}

bool VirtualConnection::awaits_host(int side, Nanos silence) const {
  const auto& self = end(side);
  return self.next > out(side).acknowledged() && kernel_.now() - self.heard_at >= silence;
}

Unacknowledged VirtualConnection::unacknowledged(int side) const {
  const auto& self = end(side);
  const auto bytes = out(side).unacknowledged_bytes();
  if (self.state != EndState::open || self.repeats < repeats_min || bytes == 0) return {};
  const auto segment = kernel_.settings().segment_bytes_max;
  return {.repeats = self.repeats,
          .segments = static_cast<uint32_t>((self.next - out(side).acknowledged() + segment - 1) / segment),
          .segment_bytes = static_cast<uint32_t>(segment),
          .packet_bytes = static_cast<uint32_t>(segment) + packet_headers,
          .bytes = bytes};
}

// Sending -----------------------------------------------------------------------------------------------------------

// Returns up to which position this end takes bytes.
uint64_t VirtualConnection::free_window(int side) const {
  return in(side).read_position() + kernel_.settings().receive_queue_bytes;
}

void VirtualConnection::send(int side, Segment segment) {
  auto& self = end(side);
  segment.acknowledged = in(side).received();
  segment.window = self.offered = free_window(side);
  self.acknowledgement_due = false;
  auto& random = kernel_.random();
  const auto& settings = kernel_.settings();
  if (!kernel_.carries(*this, side)) return kernel_.note(*this, "loses", side, segment);
  kernel_.note(*this, "sends", side, segment);
  self.busy_until = std::max(self.busy_until, kernel_.now());
  if (bytes_per_second_ > 0)
    self.busy_until += static_cast<Nanos>(static_cast<double>(segment.to - segment.from) / bytes_per_second_ * second);
  auto at = self.busy_until + settings.delay + static_cast<Nanos>(random.below(static_cast<uint64_t>(settings.jitter) + 1));
  if (!self.flights.empty()) at = std::max(at, self.flights.back().at);
  self.flights.push_back({at, segment});
  kernel_.set_alarm(at, *this, side, StreamKernel::Alarm::arrival, 0);
}

void VirtualConnection::send_control(int side, SegmentKind kind) { send(side, {.kind = kind}); }

void VirtualConnection::transmit(int side) {
  auto& self = end(side);
  const auto& pipe = out(side);
  while (self.state == EndState::open && self.next < pipe.last()) {
    const auto limit = std::max(std::min(pipe.written(), self.window), std::min(self.next, pipe.written()));
    uint64_t to = self.next;
    if (limit > self.next)
      to += std::min<uint64_t>(1 + kernel_.random().below(kernel_.settings().segment_bytes_max), limit - self.next);
    if (to == pipe.written() && pipe.ended()) ++to;  // the end travels with the last byte
    if (to == self.next) return;                     // the window is closed
    send(side, {.kind = SegmentKind::bytes, .from = self.next, .to = to});
    self.next = to;
    if (self.repeats > 0) return;  // while nothing is acknowledged, only the first segment is sent again
  }
}

void VirtualConnection::start_timer(int side) {
  auto& self = end(side);
  if (self.state == EndState::finished || self.state == EndState::gone) return;
  Nanos wait = self.interval;
  if (self.state == EndState::open && !has_pending(side)) {
    wait = !self.held ? finish_timeout : self.probes > 0 ? keepalive_interval : keepalive_idle;
  }
  kernel_.set_alarm(kernel_.now() + wait, *this, side, StreamKernel::Alarm::timer, ++self.timer);
}

void VirtualConnection::timer_due(int side, uint64_t number) {
  auto& self = end(side);
  if (number != self.timer) return;
  switch (self.state) {
    case EndState::none:
    case EndState::finished:
    case EndState::gone: return;
    case EndState::dialling:
    case EndState::answering: return retransmit(side);
    case EndState::open: break;
  }
  if (has_pending(side)) {
    if (out(side).acknowledged() < self.next) return retransmit(side);
    self.interval = std::min(2 * self.interval, interval_max);
    return probe(side, repeats_max);
  }
  if (!self.held) return vanish(side);
  if (kernel_.now() - self.heard_at >= keepalive_idle) return probe(side, keepalive_probes_max);
  kernel_.set_alarm(self.heard_at + keepalive_idle, *this, side, StreamKernel::Alarm::timer, ++self.timer);
}

void VirtualConnection::retransmit(int side) {
  auto& self = end(side);
  const auto most = self.state == EndState::dialling    ? syn_repeats_max
                    : self.state == EndState::answering ? syn_answers_max
                                                        : repeats_max;
  if (++self.repeats > most) return fail(side, ETIMEDOUT);
  self.interval = std::min(2 * self.interval, interval_max);
  if (self.state == EndState::dialling) {
    send_control(side, SegmentKind::syn);
  } else if (self.state == EndState::answering) {
    send_control(side, SegmentKind::syn_reply);
  } else {
    self.next = out(side).acknowledged();
    transmit(side);
  }
  start_timer(side);
}

void VirtualConnection::probe(int side, uint32_t probes_max) {
  if (++end(side).probes > probes_max) return fail(side, ETIMEDOUT);
  send_control(side, SegmentKind::probe);
  start_timer(side);
}

// The kernel of this side gives the connection up. Bytes that it has not sent are lost; bytes that it has received can be read.
void VirtualConnection::fail(int side, int error) {
  end(side).state = EndState::gone;
  end(side).error = error;
}

void VirtualConnection::abort(int side) {
  // The reset may overtake what is on its way. What was written and not yet sent is lost in any case.
  if (kernel_.random().chance(0.5)) end(side).flights.clear();
  end(side).state = EndState::gone;
  send_control(side, SegmentKind::reset);
}

// Receiving ---------------------------------------------------------------------------------------------------------

void VirtualConnection::arrive_due(int side) {
  auto& flights = end(side).flights;
  if (flights.empty() || flights.front().at > kernel_.now()) return;  // it has arrived early, or a reset has overtaken it
  const auto segment = flights.front().segment;
  flights.pop_front();
  if (kernel_.carries(*this, side)) arrive(1 - side, segment);
  else kernel_.note(*this, "loses", side, segment);
}

void VirtualConnection::arrive(int side, const Segment& segment) {
  auto& self = end(side);
  const bool is_reset = segment.kind == SegmentKind::reset;
  if (cut_) {
    // Nothing gets through. What has reset the connection answers in the name of this side.
    if (!is_reset && end(1 - side).state != EndState::gone) send_control(side, SegmentKind::reset);
    if (!is_reset) return;
  }
  if (is_reset) {
    if (self.state == EndState::gone || self.state == EndState::finished || self.state == EndState::none) return;
    return fail(side, self.state == EndState::dialling ? ECONNREFUSED : in(side).end_received() ? EPIPE : ECONNRESET);
  }
  if (segment.kind == SegmentKind::syn) return take_syn();
  if (self.state == EndState::none || self.state == EndState::gone) return send_control(side, SegmentKind::reset);
  if (self.state == EndState::finished) {
    if (segment.kind == SegmentKind::acknowledgement) return;
    return send_control(side, segment.to > in(side).received() ? SegmentKind::reset : SegmentKind::acknowledgement);
  }
  self.heard_at = kernel_.now();
  self.probes = 0;
  if (self.state == EndState::dialling || self.state == EndState::answering) {
    if (self.state == EndState::answering && !kernel_.queue_for_accept(*this)) return abort(side);
    self.state = EndState::open;
    self.repeats = 0;
    self.interval = first_interval;
    start_timer(side);
  }
  take_acknowledgement(side, segment);
  if (segment.kind == SegmentKind::bytes) take_bytes(side, segment);
  else if (segment.kind != SegmentKind::acknowledgement) send_control(side, SegmentKind::acknowledgement);
  finish_if_done(side);
}

void VirtualConnection::take_syn() {
  auto& self = end(1);
  if (self.state == EndState::none) {
    const auto answer = kernel_.answer_syn(*this);
    if (answer == StreamKernel::Answer::refusal) return send_control(1, SegmentKind::reset);
    if (answer == StreamKernel::Answer::silence) return;
    self.state = EndState::answering;
    self.interval = syn_interval;
    self.heard_at = kernel_.now();
    start_timer(1);
  }
  send_control(1, self.state == EndState::gone ? SegmentKind::reset : SegmentKind::syn_reply);
}

void VirtualConnection::take_bytes(int side, const Segment& segment) {
  auto& self = end(side);
  const bool has_data = std::min(segment.to, in(side).written()) > in(side).received();
  if (!self.held && has_data) return abort(side);  // nobody will read it
  in(side).arrive(segment.from, segment.to);
  if (std::exchange(self.acknowledgement_due, true)) return;
  const auto delay = kernel_.random().below(static_cast<uint64_t>(kernel_.settings().acknowledgement_delay) + 1);
  kernel_.set_alarm(kernel_.now() + static_cast<Nanos>(delay), *this, side, StreamKernel::Alarm::acknowledgement, 0);
}

void VirtualConnection::acknowledgement_due(int side) {
  if (!end(side).acknowledgement_due) return;
  const bool answers = end(side).state == EndState::open || end(side).state == EndState::finished;
  if (answers) send_control(side, SegmentKind::acknowledgement);
}

void VirtualConnection::take_acknowledgement(int side, const Segment& segment) {
  auto& self = end(side);
  auto& pipe = out(side);
  const bool progress = segment.acknowledged > pipe.acknowledged();
  const bool opens = segment.window > self.window;
  self.window = std::max(self.window, segment.window);
  if (progress) {
    pipe.acknowledge(segment.acknowledged);
    self.next = std::max(self.next, segment.acknowledged);
    self.repeats = 0;
  }
  if (!progress && !opens) return;
  self.interval = first_interval;
  transmit(side);
  start_timer(side);
}

// If both directions have ended and their ends were acknowledged, the kernel forgets the connection.
void VirtualConnection::finish_if_done(int side) {
  if (end(side).state != EndState::open || end(side).held) return;
  if (out(side).ended() && !has_pending(side) && in(side).end_received()) {
    acknowledgement_due(side);
    end(side).state = EndState::finished;
  }
}

// Faults ------------------------------------------------------------------------------------------------------------

void VirtualConnection::reset(bool tell_dialler, bool tell_acceptor) {
  cut_ = true;
  for (const int side : {0, 1}) {
    const auto& self = end(side);
    const bool told = side == 0 ? tell_dialler : tell_acceptor;
    if (told && (self.state == EndState::open || self.state == EndState::dialling || self.state == EndState::answering))
      fail(side, ECONNRESET);
  }
}

void VirtualConnection::vanish(int side) {
  end(side).held = false;
  end(side).state = EndState::gone;
}

bool VirtualConnection::is_over() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const auto& each) {
    const bool rests = each.state == EndState::none || each.state == EndState::finished || each.state == EndState::gone;
    return !each.held && rests && each.flights.empty();
  });
}

}  // namespace unisono::sim

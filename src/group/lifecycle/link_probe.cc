#include "group/lifecycle/link_probe.h"

#include <algorithm>

#include "group/lifecycle/control_kind.h"

namespace unisono {
namespace {

constexpr Nanos first_echo_time = 250 * millisecond;  // If the first echo takes longer, the link is not measured.
constexpr Nanos echo_time = 20 * millisecond;         // After this time, no new echo is sent.
constexpr Nanos burst_time_max = 100 * millisecond;   // All bursts together may take this long, plus a few round trips.
// The whole probe may take this long. The limit is needed because a group must form even if every echo is slow.
constexpr Nanos time_max = 500 * millisecond;
// Echoes are sent for at least this long. After that time, other ranks on the same cores have gone to sleep.
constexpr Nanos echo_time_min = 500 * microsecond;
constexpr uint32_t echoes_min = 20;
constexpr uint32_t header_bytes = 1 + 4 + 4;  // sizes of the kind, of the probe's number and of the sequence number
constexpr uint32_t burst_bytes_first = 16u << 10, burst_growth = 4;
constexpr uint32_t chunk_bytes_max = 128u << 10;

struct Bursts {
  uint32_t bytes_last;
  // A burst that takes this long can be measured well. After it, bursts do not grow any more, because a larger one might clog
  // the link.
  Nanos time_enough;
  uint32_t repeats_min;  // At least this many bursts of the largest size are sent.
  uint32_t repeats_max;
  // More than repeats_min bursts of the largest size are sent only until this much time has passed since the first burst.
  Nanos time;
};
// Inside a host, bursts are so small that they fit into the CPU caches. Messages for which the best schedule is not obvious fit
// into them, too.
constexpr Bursts inside_host{
    .bytes_last = 256u << 10, .time_enough = millisecond, .repeats_min = 1, .repeats_max = 8, .time = 3 * millisecond};
constexpr Bursts between_hosts{
    .bytes_last = 4u << 20, .time_enough = 5 * millisecond, .repeats_min = 3, .repeats_max = 3, .time = 0};
constexpr const Bursts& bursts_of(LinkSpan span) { return span == LinkSpan::inside_host ? inside_host : between_hosts; }

}  // namespace

LinkProbe::LinkProbe(uint32_t number, LinkSpan span, Nanos now, Nanos until)
    : number_(number), span_(span), until_(until), started_(now), deadline_(std::min(until, now + first_echo_time)) {
  echo(now);
}

std::shared_ptr<Bytes> LinkProbe::message(uint32_t bytes) {
  auto made =
      std::make_shared<Bytes>(std::move(ByteWriter().write(ControlKind::probe).write(number_).write(++sequence_)).take());
  made->resize(std::max(bytes, header_bytes));
  return made;
}

void LinkProbe::echo(Nanos now) {
  sent_at_ = now;
  request_ = Request{.message = message(0), .times = 1};
}

void LinkProbe::burst(uint32_t bytes, Nanos now) {
  const auto chunk_bytes = std::min(bytes, chunk_bytes_max);
  if (phase_ == Phase::echo) bursts_began_ = now;
  if (bytes != burst_bytes_) durations_.clear();
  phase_ = Phase::burst;
  burst_bytes_ = bytes;
  burst_chunks_ = bytes / chunk_bytes;
  chunks_answered_ = 0;
  sent_at_ = now;
  // The same message is sent for all chunks of one size, even in different bursts, so these chunks have the same sequence
  // number. Their answers cannot be confused, because a burst starts only after every chunk of the burst before has been
  // answered.
  if (chunk_ == nullptr || chunk_->size() != chunk_bytes) chunk_ = message(chunk_bytes);
  request_ = Request{.message = chunk_, .times = burst_chunks_};
}

void LinkProbe::on_answer(ByteView bytes, Nanos now) {
  ByteReader reader(bytes);
  const bool ours = reader.read<ControlKind>() == ControlKind::probe_answer && reader.read<uint32_t>() == number_ &&
                    reader.read<uint32_t>() == sequence_ && reader.done();
  if (!ours || done()) return;
  if (phase_ != Phase::burst) return on_echo(now);
  if (++chunks_answered_ == burst_chunks_) on_burst(now);
}

void LinkProbe::on_echo(Nanos now) {
  round_trip_ = std::min(round_trip_, std::max<Nanos>(1, now - sent_at_));
  ++echoes_;
  const auto spent = now - started_;
  if (phase_ == Phase::echo_again) return echoes_ < echoes_min && spent < echo_time ? echo(now) : finish();
  if (spent < echo_time_min || (echoes_ < echoes_min && spent < echo_time)) return echo(now);
  deadline_ = std::min({until_, now + burst_time_max + 4 * round_trip_, started_ + time_max});
  burst(burst_bytes_first, now);
}

void LinkProbe::on_burst(Nanos now) {
  // The duration of a burst includes a round trip. If a burst took less time than round_trip_, the round trip must be shorter
  // than round_trip_.
  round_trip_ = std::min(round_trip_, std::max<Nanos>(1, now - sent_at_));
  durations_.push_back(now - sent_at_);
  const auto& bursts = bursts_of(span_);
  const auto took = without_echo(now - sent_at_);
  const bool grows = took < std::max(bursts.time_enough, round_trip_) && burst_bytes_ < bursts.bytes_last;
  if (grows) return burst(burst_bytes_ * burst_growth, now);
  const auto most = now - bursts_began_ < bursts.time ? bursts.repeats_max : bursts.repeats_min;
  if (durations_.size() < most) return burst(burst_bytes_, now);
  phase_ = Phase::echo_again;
  echoes_ = 0;
  started_ = now;
  echo(now);
}

void LinkProbe::woke(Nanos now) {
  if (done() || now < deadline_) return;
  // If no burst was completed, compute the rate from the chunks that were answered. If none was answered, compute it as if one
  // had been.
  if (phase_ == Phase::burst && durations_.empty()) {
    burst_bytes_ = std::max(1u, chunks_answered_) * (burst_bytes_ / burst_chunks_);
    durations_.push_back(now - sent_at_);
  }
  finish();
}

void LinkProbe::finish() {
  const bool measured = phase_ != Phase::echo;
  phase_ = Phase::done;
  request_.reset();
  if (!measured) return;
  const auto counts =
      durations_.begin() + (span_ == LinkSpan::inside_host ? 0 : static_cast<std::ptrdiff_t>(durations_.size() / 2));
  std::nth_element(durations_.begin(), counts, durations_.end());
  const auto took = static_cast<double>(without_echo(*counts)) / microsecond;
  const auto echo_us = static_cast<double>(round_trip_) / microsecond;
  result_ = {.measured = true, .latency_us = echo_us / 2, .bytes_per_us = burst_bytes_ / took};
}

Bytes LinkProbe::answer(ByteView message) {
  ByteReader reader(message);
  if (reader.read<ControlKind>() != ControlKind::probe) return {};
  const auto number = reader.read<uint32_t>();
  const auto sequence = reader.read<uint32_t>();
  if (!reader.ok()) return {};
  return std::move(ByteWriter().write(ControlKind::probe_answer).write(number).write(sequence)).take();
}

}  // namespace unisono

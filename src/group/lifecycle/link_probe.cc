#include "group/lifecycle/link_probe.h"

#include <algorithm>

#include "group/lifecycle/control_kind.h"

namespace unisono {
namespace {

constexpr Nanos first_echo_time = 250 * millisecond;  // a slower link is not measured
constexpr Nanos echo_time = 20 * millisecond;         // no further echo after that
constexpr Nanos burst_time_max = 100 * millisecond;   // beyond a few round trips, all bursts together
constexpr Nanos time_max = 500 * millisecond;         // all together: a group must form even where every echo is slow
constexpr Nanos echo_time_min = 500 * microsecond;    // so long that other ranks, waiting on the same cores, have gone to sleep
constexpr uint32_t echoes_min = 20;
constexpr uint32_t header_bytes = 1 + 4 + 4;  // kind, number, sequence
constexpr uint32_t burst_bytes_first = 16u << 10, burst_growth = 4;
constexpr uint32_t chunk_bytes_max = 128u << 10;

struct Bursts {
  uint32_t bytes_last;
  Nanos time_enough;     // such a burst can be measured, and a larger one might clog the link
  uint32_t repeats_min;  // of the last size
  uint32_t repeats_max;
  Nanos time;  // for more than the fewest
};
// Inside a host not so large that the bytes leave the caches: the sizes at which the choice between schedules is close do not
// either.
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
  asked_ = now;
  question_ = Question{.message = message(0), .times = 1};
}

void LinkProbe::burst(uint32_t bytes, Nanos now) {
  const auto chunk_bytes = std::min(bytes, chunk_bytes_max);
  if (phase_ == Phase::echo) bursts_began_ = now;
  if (bytes != burst_bytes_) took_.clear();
  phase_ = Phase::burst;
  burst_bytes_ = bytes;
  burst_chunks_ = bytes / chunk_bytes;
  chunks_came_ = 0;
  asked_ = now;
  // All chunks of one size are one message: the burst before has been answered to the last byte.
  if (chunk_ == nullptr || chunk_->size() != chunk_bytes) chunk_ = message(chunk_bytes);
  question_ = Question{.message = chunk_, .times = burst_chunks_};
}

void LinkProbe::answered(ByteView bytes, Nanos now) {
  ByteReader reader(bytes);
  const bool ours = reader.read<ControlKind>() == ControlKind::probe_answer && reader.read<uint32_t>() == number_ &&
                    reader.read<uint32_t>() == sequence_ && reader.done();
  if (!ours || done()) return;
  if (phase_ != Phase::burst) return echo_came(now);
  if (++chunks_came_ == burst_chunks_) burst_came(now);
}

void LinkProbe::echo_came(Nanos now) {
  round_trip_ = std::min(round_trip_, std::max<Nanos>(1, now - asked_));
  ++echoes_;
  const auto spent = now - started_;
  if (phase_ == Phase::echo_again) return echoes_ < echoes_min && spent < echo_time ? echo(now) : finish();
  if (spent < echo_time_min || (echoes_ < echoes_min && spent < echo_time)) return echo(now);
  deadline_ = std::min({until_, now + burst_time_max + 4 * round_trip_, started_ + time_max});
  burst(burst_bytes_first, now);
}

void LinkProbe::burst_came(Nanos now) {
  // A burst cannot come back sooner than an echo.
  round_trip_ = std::min(round_trip_, std::max<Nanos>(1, now - asked_));
  took_.push_back(now - asked_);
  const auto& bursts = bursts_of(span_);
  const auto took = without_echo(now - asked_);
  const bool grows = took < std::max(bursts.time_enough, round_trip_) && burst_bytes_ < bursts.bytes_last;
  if (grows) return burst(burst_bytes_ * burst_growth, now);
  const auto most = now - bursts_began_ < bursts.time ? bursts.repeats_max : bursts.repeats_min;
  if (took_.size() < most) return burst(burst_bytes_, now);
  phase_ = Phase::echo_again;
  echoes_ = 0;
  started_ = now;
  echo(now);
}

void LinkProbe::woke(Nanos now) {
  if (done() || now < deadline_) return;
  // A link that has not even carried one chunk is taken to be as fast as if it just had.
  if (phase_ == Phase::burst && took_.empty()) {
    burst_bytes_ = std::max(1u, chunks_came_) * (burst_bytes_ / burst_chunks_);
    took_.push_back(now - asked_);
  }
  finish();
}

void LinkProbe::finish() {
  const bool measured = phase_ != Phase::echo;
  phase_ = Phase::done;
  question_.reset();
  if (!measured) return;
  const auto counts = took_.begin() + (span_ == LinkSpan::inside_host ? 0 : static_cast<std::ptrdiff_t>(took_.size() / 2));
  std::nth_element(took_.begin(), counts, took_.end());
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

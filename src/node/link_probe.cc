#include "node/link_probe.h"

#include <algorithm>

#include "node/control_kind.h"

namespace unisono {
namespace {

constexpr Nanos first_echo_time = 250 * millisecond;  // a slower link is not measured
constexpr Nanos echo_time = 20 * millisecond;         // no further echo after that
constexpr Nanos burst_time_max = 100 * millisecond;   // beyond a few round trips, all bursts together
constexpr Nanos time_max = 500 * millisecond;         // all together: a group must form even where every echo is slow
constexpr Nanos echo_time_min = 500 * microsecond;    // so long that other ranks, waiting on the same cores, have gone to sleep
constexpr uint32_t echoes_min = 20;
constexpr uint32_t header_bytes = 1 + 4 + 4;  // kind, number, sequence
// Not so large that the bytes leave the caches: the sizes at which the choice between schedules is close do not either.
constexpr uint32_t burst_bytes_first = 16u << 10, burst_bytes_last = 256u << 10, burst_growth = 4;
constexpr uint32_t chunk_bytes_max = 128u << 10;
constexpr Nanos burst_time_enough = millisecond;  // such a burst can be measured, and a larger one might clog the link
constexpr Nanos bursts_time = 3 * millisecond;    // no repetition after that
constexpr uint32_t repeats_max = 8;

}  // namespace

LinkProbe::LinkProbe(uint32_t number, Nanos now, Nanos until)
    : number_(number), until_(until), started_(now), deadline_(std::min(until, now + first_echo_time)) {
  echo(now);
}

std::shared_ptr<Bytes> LinkProbe::message(uint32_t bytes) {
  auto made = std::make_shared<Bytes>(std::move(ByteWriter().write(ControlKind::probe).write(number_).write(++sequence_)).take());
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
  if (bytes != burst_bytes_) repeats_ = 0, quickest_ = never;
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
  quickest_ = std::min(quickest_, now - asked_);
  ++repeats_;
  const auto took = without_echo(now - asked_);
  const bool grows = took < std::max(burst_time_enough, round_trip_) && burst_bytes_ < burst_bytes_last;
  if (grows) return burst(burst_bytes_ * burst_growth, now);
  if (repeats_ < repeats_max && now - bursts_began_ < bursts_time) return burst(burst_bytes_, now);
  phase_ = Phase::echo_again;
  echoes_ = 0;
  started_ = now;
  echo(now);
}

void LinkProbe::woke(Nanos now) {
  if (done() || now < deadline_) return;
  // A link that has not even carried one chunk is taken to be as fast as if it just had.
  if (phase_ == Phase::burst && repeats_ == 0) {
    burst_bytes_ = std::max(1u, chunks_came_) * (burst_bytes_ / burst_chunks_);
    quickest_ = now - asked_;
  }
  finish();
}

void LinkProbe::finish() {
  const bool measured = phase_ != Phase::echo;
  phase_ = Phase::done;
  question_.reset();
  if (!measured) return;
  const auto took = static_cast<double>(without_echo(quickest_)) / microsecond;
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

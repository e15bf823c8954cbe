#include "transports/udp/path/udp_path_probe.h"

#include <algorithm>

#include "base/bytes.h"

namespace unisono {

void put_question(const PathQuestion& question, DatagramHeader& header, uint32_t header_bytes) {
  header.kind = DatagramKind::path_probe;
  header.phase = static_cast<uint8_t>(PathPhase::question);
  header.op = question.number;
  header.packet_index = question.index;
  header.deadline_us = question.count;
  header.payload_bytes = static_cast<uint16_t>(question.bytes - header_bytes);
}

bool get_question(const DatagramHeader& header, PathQuestion& question) {
  if (header.phase != static_cast<uint8_t>(PathPhase::question)) return false;
  question = {.number = header.op,
              .index = header.packet_index,
              .count = header.deadline_us,
              .bytes = header.payload_bytes + datagram_header_bytes};
  return question.count >= 1 && question.count <= PathProbe::train_datagrams && question.index < question.count;
}

void put_answer(uint32_t number, DatagramHeader& header) {
  header.kind = DatagramKind::path_probe;
  header.phase = static_cast<uint8_t>(PathPhase::answer);
  header.op = number;
  header.payload_bytes = sizeof(PathAnswer);
}

bool read_answer(std::span<const std::byte> payload, PathAnswer& answer) {
  ByteReader reader(payload);
  answer = reader.read<PathAnswer>();
  return reader.done();
}

PathProbe::PathProbe(const PathProbeSettings& settings)
    : settings_(settings), sizes_{1500 - settings.headers_bytes, 9000 - settings.headers_bytes, 65'000} {
  if (settings.sizes) return;
  stage_ = Stage::done;
  due_ = never;
  best_ = settings.bytes_max;
}

void PathProbe::measure_rate(Nanos now) {
  if (std::exchange(rate_asked_, true)) return;
  rate_pending_ = true;
  if (stage_ == Stage::done) finish(now);
}

bool PathProbe::next(const RttEstimator& rtt, Nanos now, PathQuestion& question) {
  if (now < due_) return false;
  if (stage_ == Stage::done) {
    due_ = never;
    if (!may_grow()) return false;
    // The kernel may have refused a size that was in use before. The path may carry it again.
    too_long_ = std::max(too_long_, fallen_from_ + 1);
    raise_interval_ = std::min(raise_interval_ * 2, raise_max);
    begin(Stage::raise, now);
  }
  if (stage_ == Stage::check && next_check(rtt, now, question)) return true;
  if (stage_ == Stage::sizes || stage_ == Stage::raise) return next_search(rtt, now, question);
  return stage_ == Stage::train && next_train(rtt, now, question);
}

// Tries the sizes, as often as needed.
bool PathProbe::next_search(const RttEstimator& rtt, Nanos now, PathQuestion& question) {
  const auto tries_max = stage_ == Stage::sizes ? size_tries_max : raise_tries_max;
  if (at_ == 0 && (tries_ == tries_max || !next_size(question))) {
    finish(now);
    return stage_ == Stage::train && next_train(rtt, now, question);
  }
  if (!next_size(question)) {
    wait(rtt, now);
    return false;
  }
  remember(question, now);
  return true;
}

bool PathProbe::next_train(const RttEstimator& rtt, Nanos now, PathQuestion& question) {
  if (at_ == train_datagrams) {
    wait(rtt, now);
    return false;
  }
  if (at_ == 0 && tries_ == train_tries_max) {
    finish(now);
    return false;
  }
  question = {.number = at_ == 0 ? number_++ : number_ - 1, .index = at_, .count = train_datagrams, .bytes = best_};
  ++at_;
  remember(question, now);
  return true;
}

// Asks with 1200 bytes and with the size in use, in turn. The receiver answers the newest question that it has, so the longer
// one comes second. Returns false if there is nothing to send now, or if the check has ended and a search has begun.
bool PathProbe::next_check(const RttEstimator& rtt, Nanos now, PathQuestion& question) {
  if (at_ == 0 && tries_ >= check_tries_min && base_answers_ >= check_answers_min) {
    fall(now);
    return false;
  }
  if (at_ == 2) {
    check_interval_ = std::max(check_interval_, rtt.repair_interval());
    wait(rtt, now);
    due_ = now + check_interval_;
    // If not even 1200 bytes are answered, the path is interrupted. Then ask less often.
    if (tries_ >= check_tries_min)
      check_interval_ = std::min(check_interval_ * 3 / 2, std::max(check_interval_max, rtt.repair_interval()));
    return false;
  }
  question = {.number = number_, .index = 0, .count = 1, .bytes = at_ == 0 ? PathProbeSettings::assumed_bytes : best_};
  remember(question, now);
  return true;
}

void PathProbe::check(Nanos now) {
  rate_pending_ |= stage_ == Stage::train;
  begin(Stage::check, now);
  base_answers_ = 0;
  check_interval_ = 0;
}

// Datagrams of the size in use do not arrive. Uses 1200 bytes, and searches for a size between.
void PathProbe::fall(Nanos now) {
  fallen_from_ = std::max(fallen_from_, best_);
  const auto failed = std::exchange(best_, PathProbeSettings::assumed_bytes);
  for (auto& sent : sent_questions_) sent.at = never;  // answers that come late are about the path as it was
  checked_ = true;
  begin(Stage::raise, now);
  below_ = failed;
}

void PathProbe::begin(Stage stage, Nanos now) {
  stage_ = stage;
  tries_ = at_ = 0;
  below_ = UINT32_MAX;
  due_ = now;
}

// The questions of this stage are over. Continues with the train if it is pending.
void PathProbe::finish(Nanos now) {
  if (std::exchange(rate_pending_, false)) return begin(Stage::train, now);
  begin(Stage::done, now);
  due_ = may_grow() ? now + raise_interval_ : never;
}

bool PathProbe::may_try(uint32_t bytes) const {
  return bytes > best_ && bytes <= settings_.bytes_max && bytes < too_long_ && bytes < below_;
}

// Returns true if there is a longer size that the path might carry.
bool PathProbe::may_grow() const {
  if (!settings_.sizes) return false;
  return std::any_of(sizes_.begin(), sizes_.end(), [this](uint32_t bytes) {
    return bytes > best_ && bytes <= settings_.bytes_max && (bytes < too_long_ || bytes <= fallen_from_);
  });
}

// Finds the next size that must be tried and is not yet known to arrive. Moves at_ to that size.
bool PathProbe::next_size(PathQuestion& question) {
  for (; at_ < sizes_.size(); ++at_) {
    if (!may_try(sizes_[at_])) continue;
    question = {.number = number_, .index = 0, .count = 1, .bytes = sizes_[at_]};
    return true;
  }
  return false;
}

void PathProbe::remember(const PathQuestion& question, Nanos now) {
  sent_questions_[question.number % sent_questions_.size()] = {question.number, question.bytes, question.count, now};
  if (question.count > 1) return;
  ++number_;
  ++at_;
}

void PathProbe::wait(const RttEstimator& rtt, Nanos now) {
  ++tries_;
  at_ = 0;
  // After a train (datagrams sent one right after the other), wait longer than a round trip, because its datagrams arrive one
  // after the other: at 10 Mbit/s this takes over 20 ms. The rate of the path is not known yet, so wait at least
  // train_wait_min.
  due_ = now + (stage_ == Stage::train ? std::max(train_wait_min, rtt.repair_interval()) : rtt.repair_interval());
}

bool PathProbe::answered(uint32_t number, const PathAnswer& answer, RttEstimator& rtt, Nanos now) {
  auto& sent = sent_questions_[number % sent_questions_.size()];
  if (sent.at == never || sent.number != number) return false;
  const Nanos held = Nanos{answer.held_us} * microsecond;
  if (answer.datagrams < 1 || answer.datagrams > sent.count || answer.bytes > (answer.datagrams - 1) * sent.bytes ||
      held > now - sent.at)
    return false;
  rtt.sample(now - sent.at - held);
  sent.at = never;
  if (sent.count == 1) {
    size_answered(sent.bytes, rtt, now);
    return true;
  }
  if (stage_ != Stage::train || answer.datagrams < train_arrivals_min) return true;
  if (answer.spread_ns > 0) rate_ = uint64_t{answer.bytes} * 1'000'000'000 / answer.spread_ns;
  finish(now);
  return true;
}

// A datagram of this size has arrived.
void PathProbe::size_answered(uint32_t bytes, const RttEstimator& rtt, Nanos now) {
  if (stage_ == Stage::check) {
    if (bytes < best_) {
      base_answers_ += bytes == PathProbeSettings::assumed_bytes;
      return;
    }
    checked_ = true;
    return finish(now);
  }
  if (bytes < too_long_) best_ = std::max(best_, bytes);
  if (stage_ != Stage::sizes && stage_ != Stage::raise) return;
  // True if a question of a larger size may still be answered.
  const bool waiting = std::any_of(sizes_.begin(), sizes_.end(), [this](uint32_t larger) { return may_try(larger); });
  due_ = std::min(due_, waiting ? now + rtt.repair_interval() : now);
}

void PathProbe::too_long(uint32_t bytes, Nanos now) {
  too_long_ = std::min(too_long_, bytes);
  if (best_ < too_long_) return;
  fallen_from_ = std::max(fallen_from_, best_);
  best_ = PathProbeSettings::assumed_bytes;
  for (const uint32_t size : sizes_) {
    if (size < too_long_ && size <= settings_.bytes_max) best_ = std::max(best_, size);
  }
  if (stage_ == Stage::check) checked_ = true;
  if (stage_ == Stage::check || stage_ == Stage::done) finish(now);
}

void TrainMeter::question(const PathQuestion& question, Nanos arrived) {
  if (!any_ || static_cast<int32_t>(question.number - number_) > 0) {
    any_ = true;
    number_ = question.number;
    seen_ = 0;
    answered_ = false;
    answer_ = {};
    first_ = last_ = arrived;
  } else if (question.number != number_ || answered_) {
    return;
  }
  const uint32_t bit = uint32_t{1} << (question.index % 32);
  if ((seen_ & bit) != 0) return;
  seen_ |= bit;
  if (answer_.datagrams++ > 0) answer_.bytes += question.bytes;
  last_ = std::max(last_, arrived);
  due_ = question.index + 1 == question.count ? arrived : arrived + silence_max;
}

PathAnswer TrainMeter::answer(Nanos now, uint32_t& number) {
  number = number_;
  answered_ = true;
  due_ = never;
  auto answer = answer_;
  answer.spread_ns = static_cast<uint32_t>(std::min<Nanos>(last_ - first_, UINT32_MAX));
  answer.held_us = static_cast<uint32_t>(std::clamp<Nanos>((now - last_) / microsecond, 0, UINT32_MAX));
  return answer;
}

}  // namespace unisono

#include "transports/udp/path/udp_path_probe.h"

#include <algorithm>

#include "base/bytes.h"

namespace unisono {

void put_question(const PathQuestion& question, DatagramHeader& header) {
  header.kind = DatagramKind::path_probe;
  header.phase = static_cast<uint8_t>(PathPhase::question);
  header.op = question.number;
  header.packet_index = question.index;
  header.deadline_us = question.count;
  header.payload_bytes = static_cast<uint16_t>(question.bytes - datagram_header_bytes);
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
  stage_ = Stage::train;
  best_ = settings.bytes_max;
}

bool PathProbe::next(const RttEstimator& rtt, Nanos now, PathQuestion& question) {
  if (now < due_ || stage_ == Stage::done) return false;
  if (stage_ == Stage::sizes) {
    if (at_ == 0 && (tries_ == size_tries_max || !next_size(question))) {
      stage_ = Stage::train;
      tries_ = at_ = 0;
    } else if (next_size(question)) {
      remember(question, now);
      return true;
    } else {
      wait(rtt, now);
      return false;
    }
  }
  if (at_ == train_datagrams) {
    wait(rtt, now);
    return false;
  }
  if (at_ == 0 && tries_ == train_tries_max) {
    stage_ = Stage::done;
    due_ = never;
    return false;
  }
  question = {.number = at_ == 0 ? number_++ : number_ - 1, .index = at_, .count = train_datagrams, .bytes = best_};
  ++at_;
  remember(question, now);
  return true;
}

// The next size of this try that is not known to arrive. Sets at_ behind it.
bool PathProbe::next_size(PathQuestion& question) {
  for (; at_ < sizes_.size(); ++at_) {
    const uint32_t bytes = sizes_[at_];
    if (bytes <= best_ || bytes > settings_.bytes_max || bytes >= too_long_) continue;
    question = {.number = number_, .index = 0, .count = 1, .bytes = bytes};
    return true;
  }
  return false;
}

void PathProbe::remember(const PathQuestion& question, Nanos now) {
  asked_[question.number % asked_.size()] = {question.number, question.bytes, question.count, now};
  if (question.count > 1) return;
  ++number_;
  ++at_;
}

void PathProbe::wait(const RttEstimator& rtt, Nanos now) {
  ++tries_;
  at_ = 0;
  // A train also takes the time over which it spreads. That time is unknown; at 10 Mbit/s it is 20 ms.
  due_ = now + (stage_ == Stage::train ? std::max(train_wait_min, rtt.repair_interval()) : rtt.repair_interval());
}

bool PathProbe::answered(uint32_t number, const PathAnswer& answer, RttEstimator& rtt, Nanos now) {
  auto& asked = asked_[number % asked_.size()];
  if (asked.at == never || asked.number != number) return false;
  const Nanos held = Nanos{answer.held_us} * microsecond;
  if (answer.datagrams < 1 || answer.datagrams > asked.count || answer.bytes > (answer.datagrams - 1) * asked.bytes ||
      held > now - asked.at)
    return false;
  rtt.sample(now - asked.at - held);
  asked.at = never;
  if (asked.count == 1) {
    if (asked.bytes < too_long_) best_ = std::max(best_, asked.bytes);
    // True if a larger size may still be answered.
    const bool waiting = stage_ == Stage::sizes && std::any_of(sizes_.begin(), sizes_.end(), [this](uint32_t bytes) {
                           return bytes > best_ && bytes <= settings_.bytes_max && bytes < too_long_;
                         });
    if (stage_ == Stage::sizes) due_ = std::min(due_, waiting ? now + rtt.repair_interval() : now);
    return true;
  }
  if (stage_ != Stage::train || answer.datagrams < train_heard_min) return true;
  if (answer.spread_ns > 0) rate_ = uint64_t{answer.bytes} * 1'000'000'000 / answer.spread_ns;
  stage_ = Stage::done;
  due_ = never;
  return true;
}

void PathProbe::too_long(uint32_t bytes) {
  too_long_ = std::min(too_long_, bytes);
  if (best_ < too_long_) return;
  best_ = PathProbeSettings::assumed_bytes;
  for (const uint32_t size : sizes_) {
    if (size < too_long_ && size <= settings_.bytes_max) best_ = std::max(best_, size);
  }
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

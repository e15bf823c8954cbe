#include "research/tensor_parallel/exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "research/tensor_parallel/q80.h"

namespace tensor_parallel {

using unisono::Codec;
using unisono::Group;
using unisono::Report;
using unisono::Result;

namespace {

using Clock = std::chrono::steady_clock;

class CodecReducer final : public Reducer {
 public:
  CodecReducer(Group& group, const Codec& codec) : group_(group), options_{.codec = codec} {}
  Result<Report> sum(std::span<float> values) override { return group_.all_reduce(values, options_); }

 private:
  Group& group_;
  unisono::CallOptions options_;
};

class Q80Reducer final : public Reducer {
 public:
  explicit Q80Reducer(Group& group) : group_(group) {}
  Result<Report> sum(std::span<float> values) override {
    const size_t bytes = q80_bytes(values.size());
    mine_.resize(bytes);
    all_.resize(bytes * group_.world_size());
    q80_encode(values, mine_);
    // With the schedule `direct`, each rank sends to all others at once. With a ring, the blocks would go from rank to rank.
    auto report = group_.all_gather(std::span<const uint8_t>(mine_), std::span<uint8_t>(all_), {},
                                    {.schedule = unisono::ScheduleKind::direct, .codec = Codec{}});
    if (!report.ok()) return report;
    std::fill(values.begin(), values.end(), 0.0f);
    for (size_t at = 0; at < all_.size(); at += bytes) q80_add(std::span(all_).subspan(at, bytes), values);
    report->sent_elements = report->sent_payload / std::max<size_t>(1, bytes) * values.size();
    report->passes = 1;
    return report;
  }

 private:
  Group& group_;
  std::vector<uint8_t> mine_, all_;
};

template <typename T>
Result<std::vector<T>> gathered(Group& group, const std::vector<T>& mine) {
  std::vector<T> all(mine.size() * group.world_size());
  const auto report = group.all_gather(std::span<const T>(mine), std::span<T>(all), {}, {.codec = Codec{}});
  if (!report.ok()) return report.status();
  return all;
}

}  // namespace

Result<Setting> parse_setting(const std::string& word) {
  if (word == "q80") return Setting{.name = word, .codec = std::nullopt};
  const auto codec = Codec::parse(word == "exact" ? "plain" : word);
  if (!codec.ok()) return codec.status();
  return Setting{.name = word, .codec = *codec};
}

std::unique_ptr<Reducer> make_reducer(Group& group, const Setting& setting) {
  if (setting.codec) return std::make_unique<CodecReducer>(group, *setting.codec);
  return std::make_unique<Q80Reducer>(group);
}

Result<Report> TimedReducer::sum(std::span<float> values) {
  const auto start = Clock::now();
  auto report = reducer_.sum(values);
  if (!report.ok()) return report;
  const Clock::duration moved = Clock::now() - start - std::chrono::microseconds(report->wait_us);
  calls_s_.push_back(std::max(0.0, std::chrono::duration<double>(moved).count()));
  const Report earlier = std::exchange(report_, *report);
  report_.sent_bytes += earlier.sent_bytes;
  report_.sent_payload += earlier.sent_payload;
  report_.sent_elements += earlier.sent_elements;
  return report;
}

Result<std::vector<double>> gather(Group& group, const std::vector<double>& mine) { return gathered(group, mine); }

Result<std::vector<uint64_t>> gather(Group& group, const std::vector<uint64_t>& mine) { return gathered(group, mine); }

}  // namespace tensor_parallel

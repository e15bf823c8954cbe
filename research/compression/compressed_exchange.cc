#include "research/compression/compressed_exchange.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "research/model/group_calls.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Transposes a matrix in square blocks. If the function copied whole columns, every single value would load another cache line.
void transpose(const float* from, size_t rows, size_t columns, float* to) {
  constexpr size_t side = 16;
  for (size_t top = 0; top < rows; top += side) {
    for (size_t left = 0; left < columns; left += side) {
      for (size_t r = top; r < std::min(rows, top + side); ++r) {
        for (size_t c = left; c < std::min(columns, left + side); ++c) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
}

// Copies the gradients, and transposes those matrices whose layout is not the one that the compression method expects.
// put_back() does the reverse.
void arrange(const Bucket& bucket, std::span<const float> gradients, std::span<float> out) {
  size_t at = 0;
  for (const auto& parameter : bucket.parameters) {
    if (parameter.by_columns) transpose(&gradients[at], parameter.rows, parameter.columns, &out[at]);
    else std::copy_n(&gradients[at], parameter.count(), &out[at]);
    at += parameter.count();
  }
}
void put_back(const Bucket& bucket, std::span<const float> averages, std::span<float> gradients) {
  size_t at = 0;
  for (const auto& parameter : bucket.parameters) {
    if (parameter.by_columns) transpose(&averages[at], parameter.columns, parameter.rows, &gradients[at]);
    else std::copy_n(&averages[at], parameter.count(), &gradients[at]);
    at += parameter.count();
  }
}

class CompressedExchange final : public GradientExchange {
 public:
  CompressedExchange(unisono::Group group, std::vector<Bucket> buckets, std::unique_ptr<BucketReducer> reducer,
                     std::string method)
      : group_(std::move(group)), buckets_(std::move(buckets)), reducer_(std::move(reducer)) {
    if (!buckets_.empty()) elements_ = buckets_.front().offset + buckets_.front().count;
    arranged_.resize(elements_);
    notes_.method = std::move(method);
  }

  uint32_t rank() const override { return group_.rank(); }
  uint32_t world_size() const override { return group_.world_size(); }

  void begin(std::span<float> gradients) override {
    gradients_ = gradients;
    failure_ = gradients.size() < elements_ ? Status(Code::invalid, "fewer gradients than parameters") : Status();
    next_ = 0;
    started_.reset();
  }

  void ready(size_t first) override {
    if (!failure_.ok() || first > elements_) return;
    const auto entered = Clock::now();
    if (!started_) {
      started_ = entered;
      if (gradients_.size() > elements_)
        tail_ = group_.all_reduce_async(unisono::Tensor(gradients_.subspan(elements_)), averaging);
    }
    for (; failure_.ok() && next_ < buckets_.size() && buckets_[next_].offset >= first; ++next_) {
      const auto& bucket = buckets_[next_];
      const auto arranged = std::span(arranged_).subspan(bucket.offset, bucket.count);
      arrange(bucket, gradients_.subspan(bucket.offset, bucket.count), arranged);
      failure_ = reducer_->reduce(next_, arranged);
    }
    starting_ += Clock::now() - entered;
  }

  Status finish() override {
    const auto entered = Clock::now();
    auto outcome = reducer_->finish();
    auto tail = tail_ ? std::exchange(tail_, {}).wait() : Result<unisono::Report>(unisono::Report{});
    if (failure_.ok()) failure_ = outcome.ok() ? tail.status() : outcome.status();
    if (!failure_.ok()) return failure_;
    for (const auto& bucket : std::span(buckets_).first(next_)) {
      put_back(bucket, std::span(arranged_).subspan(bucket.offset, bucket.count),
               gradients_.subspan(bucket.offset, bucket.count));
    }
    take(*outcome);
    if (gradients_.size() > elements_) ++statistics_.operations;
    statistics_.sent_bytes += tail->sent_bytes;
    statistics_.waited_s += seconds(Clock::now() - entered + std::exchange(starting_, {}));
    if (started_) statistics_.overlapped_s += seconds(entered - *started_);
    return {};
  }
  bool applied() const override { return applied_; }

  Status broadcast(std::span<float> values) override { return group_.broadcast(unisono::Tensor(values), 0).status(); }
  Status average(std::span<float> values) override { return group_.all_reduce(unisono::Tensor(values), averaging).status(); }
  Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) override {
    return group_.all_gather(unisono::ConstTensor(mine), unisono::Tensor(all), {}, long_timeout).status();
  }
  Result<unisono::DropCompute> make_drop_compute(uint32_t micro_batches, const unisono::DropOptions& options) override {
    return unisono::DropCompute::make(group_, micro_batches, options);
  }
  Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan&, std::span<const float>,
                                                        std::unique_ptr<unisono::ShardOptimizer>) override {
    return Status(Code::unsupported, "sharded training does not support gradient compression: owners need whole gradients");
  }
  const ExchangeStatistics& statistics() const override { return statistics_; }
  const CompressionNotes& compression() const override { return notes_; }
  std::span<const float> residuals() const override { return {}; }

 private:
  void take(StepOutcome& outcome) {
    applied_ = outcome.applied;
    statistics_.operations += outcome.operations;
    statistics_.sent_bytes += outcome.sent_bytes;
    notes_.elements += outcome.elements;
    notes_.payload += outcome.payload;
    if (!applied_) ++notes_.skipped_steps;
    if (!outcome.off.empty()) {
      ++notes_.off_steps;
      notes_.off = std::move(outcome.off);
    }
    for (auto& warning : outcome.warnings) {
      if (std::find(notes_.warnings.begin(), notes_.warnings.end(), warning) == notes_.warnings.end())
        notes_.warnings.push_back(std::move(warning));
    }
  }

  unisono::Group group_;
  const std::vector<Bucket> buckets_;
  const std::unique_ptr<BucketReducer> reducer_;
  // number of gradient values; the buffer's values after the gradients (such as the loss) are averaged exactly
  size_t elements_ = 0;
  std::vector<float> arranged_;  // all gradients, in the layout that the compression method expects
  std::span<float> gradients_;
  size_t next_ = 0;  // the next bucket to pass to the reducer
  unisono::Work tail_;
  Status failure_;
  bool applied_ = true;
  std::optional<Clock::time_point> started_;  // when this step's exchange started
  Clock::duration starting_{0};
  ExchangeStatistics statistics_;
  CompressionNotes notes_;
};

}  // namespace

Result<std::unique_ptr<GradientExchange>> make_compressed_exchange(unisono::Group group, const ExchangeOptions& options) {
  auto buckets = make_buckets(options.parameters, std::max<size_t>(1, options.bucket_bytes / sizeof(float)));
  auto reducer = options.compression.by == GradientCompression::By::reducer
                     ? make_library_reducer(group, buckets, options.compression.options)
                     : make_baseline_reducer(group, buckets, options.compression);
  if (!reducer.ok()) return reducer.status();
  return make_compressed_exchange(std::move(group), std::move(buckets), *std::move(reducer), options.compression.to_string());
}

std::unique_ptr<GradientExchange> make_compressed_exchange(unisono::Group group, std::vector<Bucket> buckets,
                                                           std::unique_ptr<BucketReducer> reducer, std::string method) {
  return std::make_unique<CompressedExchange>(std::move(group), std::move(buckets), std::move(reducer), std::move(method));
}

}  // namespace language_model

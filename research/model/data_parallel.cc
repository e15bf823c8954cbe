#include "research/model/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "research/compression/compressed_exchange.h"
#include "research/model/group_calls.h"
#include "unisono/unisono.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

struct Piece {
  unisono::Work work;
  Clock::time_point started;
};

class GroupExchange final : public GradientExchange {
 public:
  GroupExchange(unisono::Group group, const ExchangeOptions& options)
      : group_(std::move(group)),
        bucket_elements_(std::max<size_t>(1, options.bucket_bytes / sizeof(float))),
        codec_(options.codec),
        error_feedback_(options.error_feedback),
        exact_tail_(codec_.is_plain() ? 0 : options.exact_tail) {}

  uint32_t rank() const override { return group_.rank(); }
  uint32_t world_size() const override { return group_.world_size(); }

  void begin(std::span<float> gradients) override {
    gradients_ = gradients;
    open_ = gradients.size();
    exact_from_ = open_ - std::min(open_, exact_tail_);
    if (error_feedback_ && residuals_.size() != open_) residuals_.assign(open_, 0.0f);
    buckets_.clear();
  }

  void ready(size_t first) override {
    const auto entered = Clock::now();
    while (open_ > first) {
      const size_t lowest = open_ > exact_from_ ? exact_from_ : 0;
      const size_t start = open_ > lowest + bucket_elements_ ? open_ - bucket_elements_ : lowest;
      if (start < first) break;
      const auto bucket = gradients_.subspan(start, open_ - start);
      const auto options = start < exact_from_ ? encoding(start, bucket) : averaging;
      buckets_.push_back({group_.all_reduce_async(unisono::Tensor(bucket), options), Clock::now()});
      open_ = start;
    }
    starting_ += Clock::now() - entered;
  }

  Status finish() override {
    const auto entered = Clock::now();
    Status failure;
    auto busy_until = Clock::time_point::min();
    Clock::duration overlapped{0};
    for (Piece& bucket : buckets_) {
      const auto report = bucket.work.wait();
      if (!report.ok()) {
        if (failure.ok()) failure = report.status();  // Go on waiting, because the other operations still use the buffer.
        continue;
      }
      ++statistics_.operations;
      statistics_.sent_bytes += report->sent_bytes;
      statistics_.received_bytes += report->received_bytes;
      // Add the time in which this bucket was in flight during the backward pass. Leave out the time that was already counted
      // for an earlier bucket.
      const auto done = std::min(entered, bucket.started + std::chrono::microseconds(report->total_us));
      const auto from = std::max(bucket.started, busy_until);
      if (done > from) overlapped += done - from;
      busy_until = std::max(busy_until, done);
    }
    statistics_.waited_s += seconds(Clock::now() - entered) + seconds(starting_);
    statistics_.overlapped_s += seconds(overlapped);
    starting_ = {};
    return failure;
  }
  bool applied() const override { return true; }

  Status broadcast(std::span<float> values) override { return group_.broadcast(unisono::Tensor(values), 0).status(); }
  Status average(std::span<float> values) override { return group_.all_reduce(unisono::Tensor(values), averaging).status(); }
  Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) override {
    return group_.all_gather(unisono::ConstTensor(mine), unisono::Tensor(all), {}, long_timeout).status();
  }
  Result<unisono::DropCompute> make_drop_compute(uint32_t micro_batches, const unisono::DropOptions& options) override {
    return unisono::DropCompute::make(group_, micro_batches, options);
  }
  Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan& plan, std::span<const float> parameters,
                                                        std::unique_ptr<unisono::ShardOptimizer> optimizer) override {
    return make_sharded_exchange(group_, plan, parameters, std::move(optimizer));
  }
  const ExchangeStatistics& statistics() const override { return statistics_; }
  const CompressionNotes& compression() const override { return notes_; }
  std::span<const float> residuals() const override { return residuals_; }

 private:
  // Returns the options for the all-reduce of the bucket that begins at index `start`. With error feedback, the all-reduce adds
  // the residuals (the encoding errors of earlier steps) to the gradients.
  unisono::CallOptions encoding(size_t start, std::span<float> bucket) {
    auto options = averaging;
    if (codec_.is_plain()) return options;
    // With this fixed schedule, the codec is used for all links and all bucket sizes. With the automatic choice, the bits of a
    // run would depend on measurements.
    options.schedule = unisono::ScheduleKind::two_step;
    options.codec = codec_;
    if (error_feedback_) {
      options.encode_error = std::span(residuals_).subspan(start, bucket.size()).data();
      options.error_feedback = true;
    }
    return options;
  }

  unisono::Group group_;
  size_t bucket_elements_;
  unisono::Codec codec_;
  bool error_feedback_;
  size_t exact_tail_;
  std::vector<float> residuals_;
  std::span<float> gradients_;
  size_t exact_from_ = 0;
  size_t open_ = 0;  // Elements before this index do not belong to a bucket yet.
  std::vector<Piece> buckets_;
  Clock::duration starting_{0};
  ExchangeStatistics statistics_;
  CompressionNotes notes_;
};

class LocalExchange final : public GradientExchange {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t world_size() const override { return 1; }
  void begin(std::span<float>) override {}
  void ready(size_t) override {}
  Status finish() override { return {}; }
  bool applied() const override { return true; }
  Status broadcast(std::span<float>) override { return {}; }
  Status average(std::span<float>) override { return {}; }
  Status gather(std::span<const uint64_t> mine, std::span<uint64_t> all) override {
    if (mine.size() != all.size()) return Status(Code::invalid, "gather: one process, so both sizes must be equal");
    std::copy(mine.begin(), mine.end(), all.begin());
    return {};
  }
  Result<unisono::DropCompute> make_drop_compute(uint32_t, const unisono::DropOptions&) override {
    return Status(Code::unsupported, "DropCompute needs at least two processes: one process never waits");
  }
  Result<std::unique_ptr<ShardedExchange>> make_sharded(const ShardedPlan&, std::span<const float>,
                                                        std::unique_ptr<unisono::ShardOptimizer>) override {
    return Status(Code::unsupported, "sharded training needs at least two processes: one process owns all parameters");
  }
  const ExchangeStatistics& statistics() const override { return statistics_; }
  const CompressionNotes& compression() const override { return notes_; }
  std::span<const float> residuals() const override { return {}; }

 private:
  ExchangeStatistics statistics_;
  CompressionNotes notes_;
};

// Checks that all ranks have the same compression. If they had not, they would start different operations.
Status check_compression(unisono::Group& group, const std::string& own) {
  constexpr size_t bytes = 512;
  std::vector<uint8_t> mine(bytes), all(bytes * group.world_size());
  std::copy_n(own.begin(), std::min(own.size(), bytes), mine.begin());
  if (auto gathered = group.all_gather(unisono::ConstTensor(mine.data(), bytes, unisono::DType::u8),
                                       unisono::Tensor(all.data(), all.size(), unisono::DType::u8));
      !gathered.ok()) {
    return gathered.status();
  }
  const auto text_of = [&](size_t rank) {
    const std::string text(all.begin() + static_cast<ptrdiff_t>(rank * bytes),
                           all.begin() + static_cast<ptrdiff_t>((rank + 1) * bytes));
    const auto end = text.find('\0');
    return end == 0 ? std::string("without compression of gradients")
                    : "to compress gradients as \"" + text.substr(0, end) + "\"";
  };
  for (size_t rank = 1; rank < group.world_size(); ++rank) {
    if (text_of(rank) == text_of(0)) continue;
    return {Code::invalid,
            unisono::concat("config_mismatch: rank 0 was started ", text_of(0), ", and rank ", rank, " ", text_of(rank))};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<GradientExchange>> make_group_exchange(const ExchangeOptions& options) {
  auto group = unisono::Group::join(options.join);
  if (!group.ok()) return group.status();
  if (auto agreed = check_compression(*group, options.compression.to_string()); !agreed.ok()) return agreed;
  if (options.compression.by != GradientCompression::By::nothing) return make_compressed_exchange(*std::move(group), options);
  return std::unique_ptr<GradientExchange>(std::make_unique<GroupExchange>(std::move(group).value(), options));
}

std::unique_ptr<GradientExchange> make_local_exchange() { return std::make_unique<LocalExchange>(); }

}  // namespace language_model

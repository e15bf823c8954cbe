#include "research/model/bucket_reducer.h"

#include <utility>

namespace language_model {

using unisono::GradientReducer;
using unisono::Result;
using unisono::Status;

namespace {

class LibraryReducer final : public BucketReducer {
 public:
  LibraryReducer(GradientReducer reducer, std::span<const Bucket> buckets)
      : reducer_(std::move(reducer)), buckets_(buckets.begin(), buckets.end()) {}

  Status reduce(size_t bucket, std::span<float> gradients) override {
    std::vector<unisono::Gradient> given;
    for (float* at = gradients.data(); const auto& parameter : buckets_[bucket].parameters) {
      given.push_back({.name = parameter.name, .values = at});
      at += parameter.count();
    }
    return reducer_.reduce(given);
  }

  Result<StepOutcome> finish() override {
    auto report = reducer_.finish();
    if (!report.ok()) return report.status();
    return StepOutcome{.applied = report->applied,
                       .operations = report->costs.collectives,
                       .sent_bytes = report->costs.sent_payload + report->costs.sent_headers,
                       .elements = report->elements,
                       .payload = report->costs.payload_elements,
                       .off = std::move(report->off),
                       .warnings = std::move(report->warnings)};
  }

 private:
  GradientReducer reducer_;
  const std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<uint64_t> shape_of(const ExchangedParameter& parameter) {
  if (parameter.rows == 1) return {parameter.columns};
  return parameter.by_columns ? std::vector<uint64_t>{parameter.columns, parameter.rows}
                              : std::vector<uint64_t>{parameter.rows, parameter.columns};
}

std::vector<Bucket> make_buckets(std::span<const ExchangedParameter> parameters, size_t elements) {
  std::vector<Bucket> buckets;
  size_t offset = 0;
  for (const auto& parameter : parameters) offset += parameter.count();
  Bucket open;
  for (size_t i = parameters.size(); i > 0; --i) {
    const size_t count = parameters[i - 1].count();
    offset -= count;
    open.offset = offset;
    open.count += count;
    open.first = static_cast<uint32_t>(i - 1);
    open.parameters.insert(open.parameters.begin(), parameters[i - 1]);
    if (open.count >= elements || i == 1) buckets.push_back(std::exchange(open, {}));
  }
  return buckets;
}

Result<std::unique_ptr<BucketReducer>> make_library_reducer(unisono::Group& group, std::span<const Bucket> buckets,
                                                            const unisono::Compression& compression) {
  std::vector<unisono::Parameter> parameters;
  for (const auto& bucket : buckets) {
    for (const auto& parameter : bucket.parameters)
      parameters.push_back({.name = parameter.name, .shape = shape_of(parameter)});
  }
  auto reducer = GradientReducer::make(group, parameters, compression);
  if (!reducer.ok()) return reducer.status();
  return std::unique_ptr<BucketReducer>(std::make_unique<LibraryReducer>(*std::move(reducer), buckets));
}

}  // namespace language_model

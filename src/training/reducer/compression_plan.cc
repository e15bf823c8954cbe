#include <algorithm>
#include <cstdio>
#include <set>

#include "compressors/matrix_product.h"
#include "kernels/sketch.h"
#include "training/reducer/compression_rules.h"
#include "training/reducer/reduction_pipeline.h"
#include "unisono/training.h"

namespace unisono {

RowRule row_rule(const Compression& compression, double ratio) {
  return {.ratio_ppm = *parts_per_million(ratio),
          .rounding = compression.round_down ? Rounding::down : Rounding::up,
          .rank = compression.rank,
          .max_payload_ppm = *parts_per_million(compression.max_payload),
          .min_elements = compression.min_elements};
}

ArcOptions arc_options(const Compression& compression, double ratio) {
  return {.rule = row_rule(compression, ratio),
          .seed = compression.seed,
          .refresh_every = compression.refresh_every,
          .random = compression.method == Compression::Method::random_k};
}

PowerOptions power_options(const Compression& compression) {
  return {.rule = row_rule(compression, compression.ratio), .rank = compression.rank, .seed = compression.seed};
}

Decision decide(const Compression& compression, double ratio, std::span<const uint64_t> shape) {
  return compression.method == Compression::Method::power_sgd ? decide(power_options(compression), shape)
                                                              : decide(row_rule(compression, ratio), shape);
}

Result<std::unique_ptr<Compressor>> make_compressor(const Compression& compression, double ratio, uint32_t group,
                                                    std::vector<GroupTensor> tensors, uint32_t side_value_count) {
  return compression.method == Compression::Method::power_sgd
             ? make_power_sgd(power_options(compression), group, std::move(tensors), side_value_count)
             : make_arc_top_k(arc_options(compression, ratio), group, std::move(tensors), side_value_count);
}

FeedbackOptions feedback_options(const Compression& compression) {
  using enum Compression::Feedback;
  const auto kind = compression.feedback == none   ? Feedback::none
                    : compression.feedback == ef14 ? Feedback::ef14
                                                   : Feedback::ef21m;
  return {.kind = kind,
          .eta = compression.feedback == ef21 ? 1 : compression.eta,
          .lossy = !compression.values.is_plain() && compression.absorb_codec_error};
}

double ratio_at(const Compression& compression, uint64_t step) {
  double ratio = compression.ratio;
  for (const auto& entry : compression.schedule) {
    if (entry.step <= step) ratio = entry.ratio;
  }
  return ratio;
}

namespace {

constexpr uint64_t usual_bucket = 25 << 20;  // The plan assumes that a bucket has this many bytes.

// Returns how many numbers a rank keeps between steps for each element of a tensor.
uint64_t kept_per_element(const FeedbackOptions& feedback, bool compressed) {
  if (feedback.kind == Feedback::none) return 0;
  if (feedback.kind == Feedback::ef14) return compressed || feedback.lossy ? 1 : 0;
  return compressed || feedback.lossy ? 3 : 1;
}

}  // namespace

Result<CompressionPlan> CompressionPlan::make(std::span<const Parameter> parameters, const Compression& compression) {
  if (auto status = compression.check(); !status.ok()) return status;
  const auto feedback = feedback_options(compression);
  CompressionPlan plan;
  std::set<std::string_view> names;
  // `widest` is the number of columns of the widest tensor that is sketched. If the feedback is EF14, `moved` is the number of
  // bytes of all compressed tensors, and `largest` that of the largest tensor counted in `moved`.
  uint64_t widest = 0, moved = 0, largest = 0;
  uint64_t factor_work = 0, transposed = 0;  // PowerSGD: how much working memory the largest factors need, in floats.
  for (const auto& parameter : parameters) {
    if (parameter.name.empty()) return Status(Code::invalid, "bad_option: a parameter without a name");
    if (!names.insert(parameter.name).second)
      return Status(Code::invalid, "bad_option: two parameters are called " + parameter.name);
    auto decision = decide(compression, compression.ratio, parameter.shape);
    const uint64_t elements = decision.matrix.elements();
    if (compression.method == Compression::Method::dense && elements > 0)
      decision = {.treatment = Treatment::dense, .matrix = decision.matrix, .kept = 0, .reason = "nothing is to be compressed"};
    const bool compressed = decision.treatment == Treatment::compressed;
    const bool sketched = compressed && compression.method != Compression::Method::random_k;
    const uint64_t payload =
        decision.value_elements() + (sketched ? decision.sketch_elements(row_rule(compression, compression.ratio)) : 0);
    plan.parameters.push_back({.name = parameter.name,
                               .rows = decision.matrix.rows,
                               .columns = decision.matrix.columns,
                               .compressed = compressed,
                               .kept_rows = decision.kept,
                               .payload = payload,
                               .reason = decision.reason,
                               .factor_columns = decision.factors});
    plan.elements += elements;
    plan.payload += payload;
    plan.buffer_bytes += sizeof(float) * (payload + (feedback.lossy ? decision.value_elements() : 0));
    if (compressed && feedback.kind == Feedback::ef14)
      moved += sizeof(float) * elements, largest = std::max(largest, sizeof(float) * elements);
    if (sketched && decision.factors == 0) widest = std::max(widest, decision.matrix.columns);
    const uint64_t directions = kernels::direction_stride(decision.matrix.columns) * decision.factors;
    factor_work = std::max(factor_work, directions), transposed = std::max(transposed, decision.matrix.rows * decision.factors);
    plan.state_bytes += sizeof(float) * decision.matrix.columns * decision.factors;
    if (compression.method != Compression::Method::dense)
      plan.state_bytes += sizeof(float) * elements * kept_per_element(feedback, compressed);
  }
  if (factor_work > 0) plan.buffer_bytes += sizeof(float) * (factor_work + transposed + matrix_product_scratch);
  plan.buffer_bytes +=
      sizeof(float) * widest * (2 * compression.rank + 1) + std::min(moved, open_buckets_max * std::max(usual_bucket, largest));
  return plan;
}

std::string CompressionPlan::to_string() const {
  const auto compressed =
      std::count_if(parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter.compressed; });
  char text[240];
  std::snprintf(text, sizeof text,
                "%zu of %zu parameters compressed: %llu of %llu values per step (%.3f); %.4g MB of state, %.4g MB of "
                "buffers",
                static_cast<size_t>(compressed), parameters.size(), static_cast<unsigned long long>(payload),
                static_cast<unsigned long long>(elements),
                elements == 0 ? 0.0 : static_cast<double>(payload) / static_cast<double>(elements),
                static_cast<double>(state_bytes) / 1e6, static_cast<double>(buffer_bytes) / 1e6);
  return text;
}

}  // namespace unisono

#include "research/tensor_parallel/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "research/tensor_parallel/weights.h"

namespace tensor_parallel {

using language_model::Matrix;
using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

// Queries are processed in blocks of this size. Most of the scores above the diagonal (those of later keys) are then not
// computed.
constexpr size_t query_block = 32;

enum MatrixName : uint64_t { query, key, value, mix, gate, up, down, matrices_per_block };
constexpr uint64_t embedding_matrix = ~uint64_t{0};

float deviation_of(size_t fan_in) { return static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in))); }

}  // namespace

Status Shape::validate(uint32_t world_size) const {
  const auto refuse = [](const std::string& why) { return Status(Code::invalid, why); };
  if (blocks == 0 || blocks > 1000) return refuse(fmt::format("--blocks {}: must be 1 to 1000", blocks));
  if (weight_sets == 0 || weight_sets > blocks)
    return refuse(fmt::format("--weight-sets {}: must be 1 to the number of blocks, {}", weight_sets, blocks));
  if (hidden == 0 || hidden > 65536) return refuse(fmt::format("--hidden {}: must be 1 to 65536", hidden));
  if (inner == 0 || inner > 1u << 20) return refuse(fmt::format("--inner {}: must be 1 to {}", inner, 1u << 20));
  if (heads == 0 || hidden % (2 * heads) != 0)
    return refuse(fmt::format("--heads {}: --hidden {} is no even multiple of it", heads, hidden));
  if (context == 0 || context > 1u << 20) return refuse(fmt::format("{} tokens: must be 1 to {}", context, 1u << 20));
  if (heads % world_size != 0) return refuse(fmt::format("--heads {}: cannot be split over {} ranks", heads, world_size));
  if (inner % world_size != 0) return refuse(fmt::format("--inner {}: cannot be split over {} ranks", inner, world_size));
  return {};
}

std::vector<float> embeddings(const Shape& shape, const WeightOptions& options, size_t first, size_t tokens) {
  std::vector<float> rows(tokens * shape.hidden);
  const Slice slice{.matrix = embedding_matrix,
                    .columns_total = shape.hidden,
                    .first_row = first,
                    .rows = tokens,
                    .columns = shape.hidden,
                    .outlier = options.outlier};
  fill(options.seed, slice, rows.data(), shape.hidden);
  return rows;
}

Transformer::Transformer(const Shape& shape, const WeightOptions& options, Part part)
    : shape_(shape),
      part_(part),
      width_(shape.hidden / part.count),
      inner_(shape.inner / part.count),
      kernels_(language_model::kernels<float>()),
      weights_(shape.weight_sets),
      caches_(shape.blocks) {
  for (size_t set = 0; set < weights_.size(); ++set) make_weights(set, options);
  for (Cache& cache : caches_) {
    cache.keys.resize(shape.context * width_);
    cache.values.resize(shape.context * width_);
  }
  for (size_t channel = 0; channel < shape.hidden; ++channel) gain_.push_back(is_outlier(channel) ? 1 / options.outlier : 1.0f);
  const size_t half = shape.head_width() / 2;
  for (size_t position = 0; position < shape.context; ++position) {
    for (size_t i = 0; i < half; ++i) {
      const double turn =
          static_cast<double>(position) * std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
      cosine_.push_back(static_cast<float>(std::cos(turn)));
      sine_.push_back(static_cast<float>(std::sin(turn)));
    }
  }
}

void Transformer::make_weights(size_t set, const WeightOptions& options) {
  Weights& w = weights_[set];
  const size_t hidden = shape_.hidden;
  w.qkv.resize(hidden * 3 * width_);
  w.mix.resize(width_ * hidden);
  w.gate_up.resize(hidden * 2 * inner_);
  w.down.resize(inner_ * hidden);
  const auto columns = [&](MatrixName name, size_t mine, float* out, size_t stride) {
    const Slice slice{.matrix = set * matrices_per_block + name,
                      .columns_total = mine * part_.count,
                      .rows = hidden,
                      .first_column = mine * part_.index,
                      .columns = mine,
                      .deviation = deviation_of(hidden)};
    fill(options.seed, slice, out, stride);
  };
  const auto rows = [&](MatrixName name, size_t mine, float* out) {
    const Slice slice{.matrix = set * matrices_per_block + name,
                      .columns_total = hidden,
                      .first_row = mine * part_.index,
                      .rows = mine,
                      .columns = hidden,
                      .deviation = deviation_of(mine * part_.count),
                      .outlier = options.outlier};
    fill(options.seed, slice, out, hidden);
  };
  for (const auto name : {query, key, value}) columns(name, width_, w.qkv.data() + (name - query) * width_, 3 * width_);
  for (const auto name : {gate, up}) columns(name, inner_, w.gate_up.data() + (name - gate) * inner_, 2 * inner_);
  rows(mix, width_, w.mix.data());
  rows(down, inner_, w.down.data());
}

size_t Transformer::weight_bytes() const {
  size_t count = 0;
  for (const Weights& w : weights_) count += w.qkv.size() + w.mix.size() + w.gate_up.size() + w.down.size();
  return count * sizeof(float);
}

void Transformer::reserve(size_t tokens) {
  if (inverse_rms_.size() >= tokens) return;
  inverse_rms_.resize(tokens);
  for (Buffer* buffer : {&stream_, &normed_, &partial_}) buffer->resize(tokens * shape_.hidden);
  qkv_.resize(tokens * 3 * width_);
  mixed_.resize(tokens * width_);
  gate_up_.resize(tokens * 2 * inner_);
  gated_.resize(tokens * inner_);
  scores_.resize(query_block * shape_.context);
}

void Transformer::norm(size_t tokens) {
  kernels_.rms_norm({tokens, shape_.hidden, stream_.data(), gain_.data(), normed_.data(), inverse_rms_.data()});
}

void Transformer::attention(Cache& cache, size_t tokens) {
  const size_t head_width = shape_.head_width();
  const size_t stride = 3 * width_;
  for (const size_t part : {0, 1}) {
    kernels_.rotate({.heads = {qkv_.data() + part * width_, tokens, width_, stride},
                     .head_width = head_width,
                     .context = tokens,
                     .cosine = cosine_.data() + position_ * (head_width / 2),
                     .sine = sine_.data() + position_ * (head_width / 2)});
  }
  for (size_t token = 0; token < tokens; ++token) {
    const float* const row = qkv_.data() + token * stride;
    std::copy_n(row + width_, width_, cache.keys.data() + (position_ + token) * width_);
    std::copy_n(row + 2 * width_, width_, cache.values.data() + (position_ + token) * width_);
  }
  const float scale = deviation_of(head_width);
  for (size_t column = 0; column < width_; column += head_width) {
    for (size_t first = 0; first < tokens; first += query_block) {
      const size_t count = std::min(query_block, tokens - first);
      const size_t keys = position_ + first + count;
      const Matrix<float> scores{scores_.data(), count, keys, shape_.context};
      const Matrix<const float> probabilities{scores_.data(), count, keys, shape_.context};
      kernels_.multiply({.a = {qkv_.data() + first * stride + column, count, head_width, stride},
                         .b = {cache.keys.data() + column, keys, head_width, width_},
                         .out = scores,
                         .transpose_b = true,
                         .scale = scale});
      kernels_.causal_softmax(scores, position_ + first);
      kernels_.multiply({.a = probabilities,
                         .b = {cache.values.data() + column, keys, head_width, width_},
                         .out = {mixed_.data() + first * width_ + column, count, head_width, width_}});
    }
  }
}

void Transformer::add_to_stream(size_t tokens) {
  for (size_t i = 0; i < tokens * shape_.hidden; ++i) stream_[i] += partial_[i];
}

Result<std::span<const float>> Transformer::forward(std::span<const float> embedded, Reducer& reducer) {
  const size_t hidden = shape_.hidden;
  const size_t tokens = embedded.size() / hidden;
  if (tokens == 0 || embedded.size() % hidden != 0)
    return Status(Code::invalid, fmt::format("{} values are not a multiple of the row size {}", embedded.size(), hidden));
  if (position_ + tokens > shape_.context)
    return Status(Code::invalid,
                  fmt::format("{} + {} tokens exceed the cache of {} tokens", position_, tokens, shape_.context));
  reserve(tokens);
  std::copy(embedded.begin(), embedded.end(), stream_.begin());
  const auto multiply = [&](const Buffer& a, size_t inside, const Buffer& b, Buffer& out, size_t columns) {
    kernels_.multiply({.a = {a.data(), tokens, inside, inside},
                       .b = {b.data(), inside, columns, columns},
                       .out = {out.data(), tokens, columns, columns}});
  };
  const std::span<float> partial(partial_.data(), tokens * hidden);
  for (size_t block = 0; block < shape_.blocks; ++block) {
    const Weights& w = weights_[block % weights_.size()];
    norm(tokens);
    multiply(normed_, hidden, w.qkv, qkv_, 3 * width_);
    attention(caches_[block], tokens);
    multiply(mixed_, width_, w.mix, partial_, hidden);
    if (auto summed = reducer.sum(partial); !summed.ok()) return summed.status();
    add_to_stream(tokens);
    norm(tokens);
    multiply(normed_, hidden, w.gate_up, gate_up_, 2 * inner_);
    kernels_.swiglu({tokens, inner_, gate_up_.data(), gated_.data()});
    multiply(gated_, inner_, w.down, partial_, hidden);
    if (auto summed = reducer.sum(partial); !summed.ok()) return summed.status();
    add_to_stream(tokens);
  }
  norm(tokens);
  position_ += tokens;
  return std::span<const float>(normed_.data(), tokens * hidden);
}

}  // namespace tensor_parallel

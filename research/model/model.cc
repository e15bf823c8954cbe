#include "research/model/model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "base/concat.h"

namespace language_model {

using unisono::Code;
using unisono::Status;

namespace {

// Queries are processed in blocks of this size. Most of the scores above the diagonal (those of later keys) are then not
// computed.
constexpr size_t query_block = 32;

template <typename T>
Matrix<T> rows_of(T* data, size_t rows, size_t columns) {
  return {data, rows, columns, columns};
}

template <typename T>
Matrix<const T> constant(Matrix<T> m) {
  return {m.data, m.rows, m.columns, m.stride};
}

template <typename T>
Matrix<T> some_rows(Matrix<T> m, size_t first, size_t count) {
  return {m.data + first * m.stride, count, m.columns, m.stride};
}

}  // namespace

Status ModelShape::validate() const {
  const auto refuse = [](std::string why) { return Status(Code::invalid, "model shape: " + std::move(why)); };
  if (layers == 0 || layers > 256) return refuse(unisono::concat("layers is ", layers, ", must be 1 to 256"));
  if (width == 0 || width > 8192) return refuse(unisono::concat("width is ", width, ", must be 1 to 8192"));
  if (heads == 0 || width % (2 * heads) != 0) {
    return refuse(unisono::concat("width ", width, " is no even multiple of heads ", heads));
  }
  if (hidden == 0 || hidden > 65536) return refuse(unisono::concat("hidden is ", hidden, ", must be 1 to 65536"));
  if (context == 0 || context > 4096) return refuse(unisono::concat("context is ", context, ", must be 1 to 4096"));
  return {};
}

ParameterLayout::ParameterLayout(const ModelShape& shape) {
  const auto add = [this](std::string name, size_t rows, size_t columns, double deviation) {
    const size_t offset = count;
    regions.push_back({std::move(name), offset, rows, columns, static_cast<float>(deviation)});
    count += rows * columns;
    return offset;
  };
  // Most matrices keep the scale of their input. The 2 * layers matrices that write to the residual stream are scaled by 1 /
  // sqrt(2 * layers). Therefore the scale of the stream does not depend on the depth (as in GPT-2).
  const double from_width = 1 / std::sqrt(static_cast<double>(shape.width));
  const double from_hidden = 1 / std::sqrt(static_cast<double>(shape.hidden));
  const double per_writer = 1 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  embedding = add("embedding", vocabulary_size, shape.width, 0.5);
  for (size_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = unisono::concat("layer ", i, " ");
    LayerOffsets at;
    at.norm_1 = add(prefix + "norm 1", 1, shape.width, 0);
    at.qkv = add(prefix + "query key value", shape.width, 3 * shape.width, from_width);
    at.mix = add(prefix + "mix", shape.width, shape.width, from_width * per_writer);
    at.norm_2 = add(prefix + "norm 2", 1, shape.width, 0);
    at.gate_up = add(prefix + "gate up", shape.width, 2 * shape.hidden, from_width);
    at.down = add(prefix + "down", shape.hidden, shape.width, from_hidden * per_writer);
    layers.push_back(at);
  }
  norm = add("norm", 1, shape.width, 0);
  head = add("head", shape.width, vocabulary_size, 0.1 * from_width);
}

void initialise(const ParameterLayout& layout, uint64_t seed, std::span<float> parameters) {
  std::mt19937_64 generator(seed);
  for (const Region& region : layout.regions) {
    std::normal_distribution<double> normal(0, region.deviation > 0 ? region.deviation : 1);
    for (float& value : parameters.subspan(region.offset, region.count())) {
      value = region.deviation > 0 ? static_cast<float>(normal(generator)) : 1.0f;
    }
  }
}

template <typename T>
Model<T>::Model(const ModelShape& shape, size_t sequences_max, const Kernels<T>& chosen)
    : shape_(shape), layout_(shape), kernels_(chosen) {
  const size_t tokens = sequences_max * shape.context;
  const size_t scores = sequences_max * shape.heads * shape.context * shape.context;
  const size_t half = shape.width / shape.heads / 2;
  for (size_t position = 0; position < shape.context; ++position) {
    for (size_t i = 0; i < half; ++i) {
      const double turns = std::pow(10'000.0, -static_cast<double>(i) / static_cast<double>(half));
      cosine_.push_back(static_cast<T>(std::cos(static_cast<double>(position) * turns)));
      sine_.push_back(static_cast<T>(std::sin(static_cast<double>(position) * turns)));
    }
  }
  layers_.resize(shape.layers);
  for (Activations& a : layers_) {
    for (Buffer<T>* buffer : {&a.in, &a.normed_1, &a.mixed, &a.middle, &a.normed_2}) buffer->resize(tokens * shape.width);
    for (Buffer<T>* buffer : {&a.inverse_rms_1, &a.inverse_rms_2}) buffer->resize(tokens);
    a.qkv.resize(tokens * 3 * shape.width);
    a.probabilities.resize(scores);
    a.gate_up.resize(tokens * 2 * shape.hidden);
    a.gated.resize(tokens * shape.hidden);
  }
  for (Buffer<T>* buffer : {&final_in_, &final_normed_, &stream_gradient_, &width_gradient_})
    buffer->resize(tokens * shape.width);
  final_inverse_rms_.resize(tokens);
  logits_.resize(tokens * vocabulary_size);
  qkv_gradient_.resize(tokens * 3 * shape.width);
  gated_gradient_.resize(tokens * shape.hidden);
  gate_up_gradient_.resize(tokens * 2 * shape.hidden);
  score_gradient_.resize(query_block * shape.context);
}

// Returns a part of one head of one sequence. Part 0 has the queries, part 1 the keys, part 2 the values.
template <typename T>
Matrix<T> Model<T>::head_block(Buffer<T>& qkv, size_t part, size_t sequence, size_t head, size_t rows) {
  const size_t head_width = shape_.width / shape_.heads;
  const size_t stride = 3 * shape_.width;
  return {qkv.data() + sequence * shape_.context * stride + part * shape_.width + head * head_width, rows, head_width, stride};
}

template <typename T>
void Model<T>::attention(Activations& saved) {
  const size_t context = shape_.context;
  const size_t head_width = shape_.width / shape_.heads;
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(head_width)));
  for (size_t sequence = 0; sequence < sequences_; ++sequence) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      const auto queries = head_block(saved.qkv, 0, sequence, head, context);
      T* const probabilities = saved.probabilities.data() + (sequence * shape_.heads + head) * context * context;
      T* const out = saved.mixed.data() + sequence * context * shape_.width + head * head_width;
      for (size_t first = 0; first < context; first += query_block) {
        const size_t count = std::min(query_block, context - first);
        const size_t keys = first + count;
        const Matrix<T> scores{probabilities + first * context, count, keys, context};
        kernels_.multiply({.a = constant(some_rows(queries, first, count)),
                           .b = constant(head_block(saved.qkv, 1, sequence, head, keys)),
                           .out = scores,
                           .transpose_b = true,
                           .scale = scale});
        kernels_.causal_softmax(scores, first);
        kernels_.multiply({.a = constant(scores),
                           .b = constant(head_block(saved.qkv, 2, sequence, head, keys)),
                           .out = {out + first * shape_.width, count, head_width, shape_.width}});
      }
    }
  }
}

// Before the call, width_gradient_ has the gradient of the attention's output. The function writes the gradient of saved.qkv to
// qkv_gradient_.
template <typename T>
void Model<T>::attention_backward(Activations& saved) {
  const size_t context = shape_.context;
  const size_t head_width = shape_.width / shape_.heads;
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(head_width)));
  std::fill_n(qkv_gradient_.begin(), tokens_ * 3 * shape_.width, T(0));
  for (size_t sequence = 0; sequence < sequences_; ++sequence) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      T* const all = saved.probabilities.data() + (sequence * shape_.heads + head) * context * context;
      T* const out = width_gradient_.data() + sequence * context * shape_.width + head * head_width;
      for (size_t first = 0; first < context; first += query_block) {
        const size_t count = std::min(query_block, context - first);
        const size_t keys = first + count;
        const Matrix<const T> probabilities{all + first * context, count, keys, context};
        const Matrix<const T> out_gradient{out + first * shape_.width, count, head_width, shape_.width};
        const Matrix<T> scores{score_gradient_.data(), count, keys, context};
        kernels_.multiply({.a = probabilities,
                           .b = out_gradient,
                           .out = head_block(qkv_gradient_, 2, sequence, head, keys),
                           .transpose_a = true,
                           .accumulate = true});
        kernels_.multiply({.a = out_gradient,
                           .b = constant(head_block(saved.qkv, 2, sequence, head, keys)),
                           .out = scores,
                           .transpose_b = true});
        kernels_.causal_softmax_backward(probabilities, scores, first);
        kernels_.multiply({.a = constant(scores),
                           .b = constant(head_block(saved.qkv, 1, sequence, head, keys)),
                           .out = some_rows(head_block(qkv_gradient_, 0, sequence, head, context), first, count),
                           .scale = scale});
        kernels_.multiply({.a = constant(scores),
                           .b = constant(some_rows(head_block(saved.qkv, 0, sequence, head, context), first, count)),
                           .out = head_block(qkv_gradient_, 1, sequence, head, keys),
                           .transpose_a = true,
                           .accumulate = true,
                           .scale = scale});
      }
    }
  }
}

template <typename T>
void Model<T>::forward_layer(const T* parameters, const LayerOffsets& at, Activations& saved, T* out) {
  const size_t width = shape_.width;
  const size_t hidden = shape_.hidden;
  kernels_.rms_norm(
      {tokens_, width, saved.in.data(), parameters + at.norm_1, saved.normed_1.data(), saved.inverse_rms_1.data()});
  const auto qkv = rows_of(saved.qkv.data(), tokens_, 3 * width);
  kernels_.multiply({.a = rows_of<const T>(saved.normed_1.data(), tokens_, width),
                     .b = rows_of(parameters + at.qkv, width, 3 * width),
                     .out = qkv});
  kernels_.rotate({.heads = {qkv.data, tokens_, 2 * width, 3 * width},
                   .head_width = width / shape_.heads,
                   .context = shape_.context,
                   .cosine = cosine_.data(),
                   .sine = sine_.data()});
  attention(saved);
  std::copy_n(saved.in.data(), tokens_ * width, saved.middle.data());
  kernels_.multiply({.a = rows_of<const T>(saved.mixed.data(), tokens_, width),
                     .b = rows_of(parameters + at.mix, width, width),
                     .out = rows_of(saved.middle.data(), tokens_, width),
                     .accumulate = true});
  kernels_.rms_norm(
      {tokens_, width, saved.middle.data(), parameters + at.norm_2, saved.normed_2.data(), saved.inverse_rms_2.data()});
  kernels_.multiply({.a = rows_of<const T>(saved.normed_2.data(), tokens_, width),
                     .b = rows_of(parameters + at.gate_up, width, 2 * hidden),
                     .out = rows_of(saved.gate_up.data(), tokens_, 2 * hidden)});
  kernels_.swiglu({tokens_, hidden, saved.gate_up.data(), saved.gated.data()});
  std::copy_n(saved.middle.data(), tokens_ * width, out);
  kernels_.multiply({.a = rows_of<const T>(saved.gated.data(), tokens_, hidden),
                     .b = rows_of(parameters + at.down, hidden, width),
                     .out = rows_of(out, tokens_, width),
                     .accumulate = true});
}

template <typename T>
double Model<T>::run_forward(std::span<const T> parameters, const Batch& batch, T gradient_scale) {
  const size_t width = shape_.width;
  sequences_ = batch.sequences;
  tokens_ = batch.sequences * shape_.context;
  const T* const p = parameters.data();
  T* const first = layers_.front().in.data();
  for (size_t token = 0; token < tokens_; ++token) {
    std::copy_n(p + layout_.embedding + batch.inputs[token] * width, width, first + token * width);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    forward_layer(p, layout_.layers[i], layers_[i], i + 1 < layers_.size() ? layers_[i + 1].in.data() : final_in_.data());
  }
  kernels_.rms_norm({tokens_, width, final_in_.data(), p + layout_.norm, final_normed_.data(), final_inverse_rms_.data()});
  const auto logits = rows_of(logits_.data(), tokens_, vocabulary_size);
  kernels_.multiply({.a = rows_of<const T>(final_normed_.data(), tokens_, width),
                     .b = rows_of(p + layout_.head, width, vocabulary_size),
                     .out = logits});
  return kernels_.cross_entropy({logits, batch.targets.data(), gradient_scale}) / static_cast<double>(tokens_);
}

template <typename T>
double Model<T>::loss(std::span<const T> parameters, const Batch& batch) {
  return run_forward(parameters, batch, T(0));
}

template <typename T>
double Model<T>::forward(std::span<const T> parameters, const Batch& batch) {
  return run_forward(parameters, batch, static_cast<T>(1.0 / static_cast<double>(batch.sequences * shape_.context)));
}

// Before the call, stream_gradient_ has the gradient of the layer's output. Afterwards it has the gradient of the layer's
// input.
template <typename T>
void Model<T>::backward_layer(const T* p, const LayerOffsets& at, Activations& saved, T* gradients, const Ready& ready) {
  const size_t width = shape_.width;
  const size_t hidden = shape_.hidden;
  const auto stream = rows_of<const T>(stream_gradient_.data(), tokens_, width);
  const auto narrow = rows_of(width_gradient_.data(), tokens_, width);
  const auto gated = rows_of(gated_gradient_.data(), tokens_, hidden);
  const auto gate_up = rows_of(gate_up_gradient_.data(), tokens_, 2 * hidden);
  const auto qkv = rows_of(qkv_gradient_.data(), tokens_, 3 * width);
  // The gradient of a matrix is the product of the transposed input and the gradient of the output.
  const auto matrix_gradient = [&](Buffer<T>& in, size_t in_width, Matrix<const T> out_gradient, size_t offset) {
    kernels_.multiply({.a = rows_of<const T>(in.data(), tokens_, in_width),
                       .b = out_gradient,
                       .out = rows_of(gradients + offset, in_width, out_gradient.columns),
                       .transpose_a = true});
    ready(offset);
  };
  const auto norm_backward = [&](Buffer<T>& in, Buffer<T>& inverse_rms, size_t offset) {
    std::fill_n(gradients + offset, width, T(0));
    kernels_.rms_norm_backward({{tokens_, width, in.data(), p + offset, nullptr, inverse_rms.data()},
                                narrow.data,
                                stream_gradient_.data(),
                                gradients + offset});
    ready(offset);
  };
  matrix_gradient(saved.gated, hidden, stream, at.down);
  kernels_.multiply({.a = stream, .b = rows_of(p + at.down, hidden, width), .out = gated, .transpose_b = true});
  kernels_.swiglu_backward({{tokens_, hidden, saved.gate_up.data(), nullptr}, gated.data, gate_up.data});
  matrix_gradient(saved.normed_2, width, constant(gate_up), at.gate_up);
  kernels_.multiply(
      {.a = constant(gate_up), .b = rows_of(p + at.gate_up, width, 2 * hidden), .out = narrow, .transpose_b = true});
  norm_backward(saved.middle, saved.inverse_rms_2, at.norm_2);

  matrix_gradient(saved.mixed, width, stream, at.mix);
  kernels_.multiply({.a = stream, .b = rows_of(p + at.mix, width, width), .out = narrow, .transpose_b = true});
  attention_backward(saved);
  kernels_.rotate({.heads = {qkv.data, tokens_, 2 * width, 3 * width},
                   .head_width = width / shape_.heads,
                   .context = shape_.context,
                   .cosine = cosine_.data(),
                   .sine = sine_.data(),
                   .inverse = true});
  matrix_gradient(saved.normed_1, width, constant(qkv), at.qkv);
  kernels_.multiply({.a = constant(qkv), .b = rows_of(p + at.qkv, width, 3 * width), .out = narrow, .transpose_b = true});
  norm_backward(saved.in, saved.inverse_rms_1, at.norm_1);
}

template <typename T>
void Model<T>::backward(std::span<const T> parameters, const Batch& batch, std::span<T> gradients, const Ready& ready) {
  const size_t width = shape_.width;
  const T* const p = parameters.data();
  T* const g = gradients.data();
  // logits_ now has the gradient of the logits. forward() has written it there.
  const auto logits = rows_of<const T>(logits_.data(), tokens_, vocabulary_size);
  kernels_.multiply({.a = rows_of<const T>(final_normed_.data(), tokens_, width),
                     .b = logits,
                     .out = rows_of(g + layout_.head, width, vocabulary_size),
                     .transpose_a = true});
  ready(layout_.head);
  kernels_.multiply({.a = logits,
                     .b = rows_of(p + layout_.head, width, vocabulary_size),
                     .out = rows_of(width_gradient_.data(), tokens_, width),
                     .transpose_b = true});
  std::fill_n(stream_gradient_.begin(), tokens_ * width, T(0));
  std::fill_n(g + layout_.norm, width, T(0));
  kernels_.rms_norm_backward({{tokens_, width, final_in_.data(), p + layout_.norm, nullptr, final_inverse_rms_.data()},
                              width_gradient_.data(),
                              stream_gradient_.data(),
                              g + layout_.norm});
  ready(layout_.norm);
  for (size_t i = layers_.size(); i-- > 0;) backward_layer(p, layout_.layers[i], layers_[i], g, ready);
  std::fill_n(g + layout_.embedding, vocabulary_size * width, T(0));
  for (size_t token = 0; token < tokens_; ++token) {
    T* const row = g + layout_.embedding + batch.inputs[token] * width;
    const T* const stream = stream_gradient_.data() + token * width;
    for (size_t i = 0; i < width; ++i) row[i] += stream[i];
  }
  ready(layout_.embedding);
}

template <typename T>
void Model<T>::next_probabilities(size_t last, std::span<double> probabilities) const {
  const T* const logits = logits_.data() + last * vocabulary_size;
  const double largest = static_cast<double>(*std::max_element(logits, logits + vocabulary_size));
  double total = 0;
  for (size_t i = 0; i < vocabulary_size; ++i) total += probabilities[i] = std::exp(static_cast<double>(logits[i]) - largest);
  for (double& probability : probabilities) probability /= total;
}

template class Model<float>;
template class Model<double>;

}  // namespace language_model

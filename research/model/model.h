// A byte-level transformer language model: pre-norm blocks (RMSNorm, rotary causal attention, SwiGLU), untied embeddings,
// forward and backward pass written out by hand. Model<float> trains; Model<double> checks the gradients.
//
// All parameters lie in one array, in the order of the forward pass, and gradients in another of the same layout. The
// backward pass completes gradients from the end of the array towards its start and says how far it has come, so that
// what is complete can already travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "research/model/kernels.h"
#include "unisono/status.h"

namespace language_model {

inline constexpr size_t vocabulary_size = 256;  // a token is a byte

struct ModelShape {
  size_t layers = 4;
  size_t width = 160;
  size_t heads = 5;
  size_t hidden = 432;  // of the SwiGLU
  size_t context = 64;  // tokens per sequence
  unisono::Status validate() const;
};

// One named piece of the parameter array.
struct Region {
  std::string name;
  size_t offset = 0;
  size_t rows = 0;
  size_t columns = 0;
  float deviation = 0;  // of the normal distribution of its first values; 0 for gains, which start at 1
  size_t count() const { return rows * columns; }
};

struct LayerOffsets {
  size_t norm_1 = 0;   // width
  size_t qkv = 0;      // width × 3 width
  size_t mix = 0;      // width × width, behind the attention
  size_t norm_2 = 0;   // width
  size_t gate_up = 0;  // width × 2 hidden
  size_t down = 0;     // hidden × width
};

struct ParameterLayout {
  explicit ParameterLayout(const ModelShape& shape);
  size_t embedding = 0;  // vocabulary × width
  std::vector<LayerOffsets> layers;
  size_t norm = 0;  // width
  size_t head = 0;  // width × vocabulary
  size_t count = 0;
  std::vector<Region> regions;
};

// sequences × context tokens and, for each, the byte that follows it.
struct Batch {
  size_t sequences = 0;
  std::vector<uint8_t> inputs;
  std::vector<uint8_t> targets;
};

template <typename T>
class Model {
 public:
  // Called with the offset from which on every gradient is final.
  using Ready = std::function<void(size_t)>;

  // shape must have passed validate(). A batch may have up to sequences_max sequences.
  Model(const ModelShape& shape, size_t sequences_max, const Kernels<T>& chosen = kernels<T>());
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelShape& shape() const { return shape_; }
  const ParameterLayout& layout() const { return layout_; }

  // The mean loss of the batch in nats per token, without gradients.
  double loss(std::span<const T> parameters, const Batch& batch);
  // Like loss(), but keeps what backward() needs. Call backward() next, with the same arguments.
  double forward(std::span<const T> parameters, const Batch& batch);
  // Writes the gradient of the mean loss.
  void backward(std::span<const T> parameters, const Batch& batch, std::span<T> gradients, const Ready& ready);
  // The probabilities of the byte after position `last` of the first sequence, to generate text. Call loss() before.
  void next_probabilities(size_t last, std::span<double> probabilities) const;

 private:
  // One layer's values that the backward pass needs.
  struct Activations {
    Buffer<T> in, normed_1, inverse_rms_1, qkv, probabilities, mixed, middle, normed_2, inverse_rms_2, gate_up, gated;
  };
  double run_forward(std::span<const T> parameters, const Batch& batch, T gradient_scale);
  void forward_layer(const T* parameters, const LayerOffsets& at, Activations& saved, T* out);
  void backward_layer(const T* parameters, const LayerOffsets& at, Activations& saved, T* gradients, const Ready& ready);
  void attention(Activations& saved);
  void attention_backward(Activations& saved);
  Matrix<T> head_block(Buffer<T>& qkv, size_t part, size_t sequence, size_t head, size_t rows);

  ModelShape shape_;
  ParameterLayout layout_;
  const Kernels<T>& kernels_;
  size_t tokens_ = 0;  // of the batch in work
  size_t sequences_ = 0;
  Buffer<T> cosine_, sine_;
  std::vector<Activations> layers_;
  Buffer<T> final_in_, final_normed_, final_inverse_rms_, logits_;
  // Gradients during the backward pass: the residual stream's, and scratch memory of every width.
  Buffer<T> stream_gradient_, width_gradient_, qkv_gradient_, gated_gradient_, gate_up_gradient_, score_gradient_;
};

extern template class Model<float>;
extern template class Model<double>;

// Sets gains to 1 and draws matrices from the normal distributions of the layout. The same seed gives the same values.
void initialise(const ParameterLayout& layout, uint64_t seed, std::span<float> parameters);

}  // namespace language_model

// A transformer language model whose tokens are bytes. Its blocks normalize their input (pre-norm), and consist of RMSNorm,
// rotary causal attention and SwiGLU. Input and output embeddings are separate matrices. The forward and the backward pass are
// written by hand. Model<float> is for training; Model<double> serves to check the gradients.
//
// All parameters are in one array, in the order in which the forward pass uses them. The gradients are in another array with
// the same layout. The backward pass completes the gradients from the end of the array towards its start. It reports its
// progress, so that complete gradients can be sent early.
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
  size_t hidden = 432;  // width of the SwiGLU layer
  size_t context = 64;  // tokens per sequence
  unisono::Status validate() const;
};

// A part of the parameter array that has a name: one matrix or one vector.
struct Region {
  std::string name;
  size_t offset = 0;
  size_t rows = 0;
  size_t columns = 0;
  float deviation = 0;  // standard deviation of the region's initial values; 0 for gains, which start at 1
  size_t count() const { return rows * columns; }
};

struct LayerOffsets {
  size_t norm_1 = 0;   // offset of the gains of the first norm, which are `width` values
  size_t qkv = 0;      // matrix of width × 3 width
  size_t mix = 0;      // matrix of width × width; the attention's output is multiplied by it
  size_t norm_2 = 0;   // offset of the gains of the second norm, which are `width` values
  size_t gate_up = 0;  // matrix of width × 2 hidden
  size_t down = 0;     // matrix of hidden × width
};

struct ParameterLayout {
  explicit ParameterLayout(const ModelShape& shape);
  size_t embedding = 0;  // matrix of vocabulary × width
  std::vector<LayerOffsets> layers;
  size_t norm = 0;  // the gains of the last norm, which are `width` values
  size_t head = 0;  // matrix of width × vocabulary
  size_t count = 0;
  std::vector<Region> regions;
};

// A batch has sequences × context tokens. `targets` has, for each token, the byte that follows it.
struct Batch {
  size_t sequences = 0;
  std::vector<uint8_t> inputs;
  std::vector<uint8_t> targets;
};

template <typename T>
class Model {
 public:
  // This function is called with an index. All gradients from this index on are final.
  using Ready = std::function<void(size_t)>;

  // `shape` must have passed validate(). No batch may have more than `sequences_max` sequences.
  Model(const ModelShape& shape, size_t sequences_max, const Kernels<T>& chosen = kernels<T>());
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelShape& shape() const { return shape_; }
  const ParameterLayout& layout() const { return layout_; }

  // Returns the mean loss of the batch, in nats per token. Computes no gradients.
  double loss(std::span<const T> parameters, const Batch& batch);
  // Returns the mean loss, and keeps the values that backward() needs. Call backward() next, with the same arguments.
  double forward(std::span<const T> parameters, const Batch& batch);
  // Writes the gradients of the mean loss to `gradients`. Call forward() before.
  void backward(std::span<const T> parameters, const Batch& batch, std::span<T> gradients, const Ready& ready);
  // Writes the probabilities of the byte that follows position `last` of the first sequence. They serve to generate text. Call
  // loss() before.
  void next_probabilities(size_t last, std::span<double> probabilities) const;

 private:
  // The values of one layer that the backward pass needs.
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
  size_t tokens_ = 0;  // number of tokens in the current batch
  size_t sequences_ = 0;
  Buffer<T> cosine_, sine_;
  std::vector<Activations> layers_;
  Buffer<T> final_in_, final_normed_, final_inverse_rms_, logits_;
  // Memory of the backward pass. stream_gradient_ is the gradient of the residual stream. The others are used for one layer
  // after another.
  Buffer<T> stream_gradient_, width_gradient_, qkv_gradient_, gated_gradient_, gate_up_gradient_, score_gradient_;
};

extern template class Model<float>;
extern template class Model<double>;

// Sets gains to 1, and draws the values of matrices from normal distributions with the layout's deviations. The same seed gives
// the same values.
void initialise(const ParameterLayout& layout, uint64_t seed, std::span<float> parameters);

}  // namespace language_model

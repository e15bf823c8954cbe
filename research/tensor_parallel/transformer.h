// The part of a transformer that one rank computes. The model is split as in Megatron (Shoeybi et al., 2019): each rank has
// some of the attention's heads and some of the columns of the gated MLP. Therefore each block needs two sums over the ranks. A
// sum has tokens × hidden values.
//
// The blocks are like those of Llama: RMSNorm, rotary causal attention with a cache of keys and values, RMSNorm, SwiGLU. Every
// rank computes the norms and the residual stream itself. Ranks whose machines are of the same kind get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "research/model/kernels.h"
#include "unisono/report.h"
#include "unisono/status.h"

namespace tensor_parallel {

struct Shape {
  size_t blocks = 2;
  // Block i has the weights of block i % weight_sets. A model may therefore have more blocks than fit into memory.
  size_t weight_sets = 2;
  size_t hidden = 4096;
  size_t heads = 32;
  size_t inner = 11008;  // width of the MLP
  size_t context = 0;    // number of tokens for which the cache has space
  // Returns invalid, with the wrong number, if the shape is impossible, or if it cannot be split over `world_size` ranks.
  unisono::Status validate(uint32_t world_size) const;
  size_t head_width() const { return hidden / heads; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

struct WeightOptions {
  uint64_t seed = 1;
  float outlier = 20;  // the weights of outlier channels are multiplied by this, see weights.h
};

// Says which part of the model this process computes: part `index` (the rank) of `count` parts (the world size).
struct Part {
  uint32_t index = 0;
  uint32_t count = 1;
};

// Replaces the partial results of each rank by their sum over the ranks. The sums must have the same bits on all ranks.
class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual unisono::Result<unisono::Report> sum(std::span<float> values) = 0;
};

// Returns the model's input for `tokens` tokens. The first of them is token number `first`. Each token is a row of `hidden`
// values.
std::vector<float> embeddings(const Shape& shape, const WeightOptions& options, size_t first, size_t tokens);

class Transformer {
 public:
  // Generates the weights. `shape` must have passed validate().
  Transformer(const Shape& shape, const WeightOptions& options, Part part);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Computes the next tokens. `embedded` has tokens × hidden values. Returns the same number of values; they are the output of
  // the last norm. They stay valid until the next call.
  unisono::Result<std::span<const float>> forward(std::span<const float> embedded, Reducer& reducer);
  // Empties the cache, so that the next token is the first one.
  void clear_cache() { position_ = 0; }

  const Shape& shape() const { return shape_; }
  size_t weight_bytes() const;

 private:
  using Buffer = language_model::Buffer<float>;
  struct Weights {
    Buffer qkv;      // matrix of hidden × 3 width; it computes the queries, keys and values of this rank
    Buffer mix;      // matrix of width × hidden
    Buffer gate_up;  // matrix of hidden × 2 inner
    Buffer down;     // matrix of inner × hidden
  };
  struct Cache {
    Buffer keys, values;  // matrices of context × width
  };
  void make_weights(size_t set, const WeightOptions& options);
  void reserve(size_t tokens);
  void norm(size_t tokens);
  void attention(Cache& cache, size_t tokens);
  void add_to_stream(size_t tokens);

  Shape shape_;
  Part part_;
  size_t width_;  // total width of the heads of this rank
  size_t inner_;  // width of the part of the MLP that this rank has
  const language_model::Kernels<float>& kernels_;
  std::vector<Weights> weights_;
  std::vector<Cache> caches_;
  Buffer gain_;  // the gains of all norms
  Buffer cosine_, sine_;
  size_t position_ = 0;
  Buffer stream_, normed_, inverse_rms_, qkv_, mixed_, gate_up_, gated_, partial_, scores_;
};

}  // namespace tensor_parallel

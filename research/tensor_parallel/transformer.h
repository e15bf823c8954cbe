// One rank's part of a transformer, split as Megatron does (Shoeybi et al., 2019): each rank has some of the attention's heads
// and some of the columns of the gated MLP, so that a block needs two sums over the ranks, each of tokens × hidden values.
//
// Blocks are those of Llama: RMSNorm, rotary causal attention with a cache of keys and values, RMSNorm, SwiGLU. Norms and the
// residual stream are computed by every rank and not sent; ranks on machines of one kind get the same bits.
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
  size_t weight_sets = 2;  // block i has the weights of block i % weight_sets: more blocks than memory has weights for
  size_t hidden = 4096;
  size_t heads = 32;
  size_t inner = 11008;  // of the MLP
  size_t context = 0;    // tokens that the cache holds
  // invalid: names the number that is impossible or cannot be split over this many ranks.
  unisono::Status validate(uint32_t world_size) const;
  size_t head_width() const { return hidden / heads; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

struct WeightOptions {
  uint64_t seed = 1;
  float outlier = 20;  // see weights.h
};

// Rank and world size.
struct Part {
  uint32_t index = 0;
  uint32_t count = 1;
};

// Turns partial sums into sums. Every rank ends with the same bits.
class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual unisono::Result<unisono::Report> sum(std::span<float> values) = 0;
};

// The model's input for the tokens first, first + 1, …: rows of `hidden` values.
std::vector<float> embeddings(const Shape& shape, const WeightOptions& options, size_t first, size_t tokens);

class Transformer {
 public:
  // shape must have passed validate(). Makes the weights.
  Transformer(const Shape& shape, const WeightOptions& options, Part part);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Computes the next tokens: tokens × hidden values in, as many out, after the last norm. The result stays valid until the
  // next call.
  unisono::Result<std::span<const float>> forward(std::span<const float> embedded, Reducer& reducer);
  // Empties the cache: the next token is the first.
  void forget() { position_ = 0; }

  const Shape& shape() const { return shape_; }
  size_t weight_bytes() const;

 private:
  using Buffer = language_model::Buffer<float>;
  struct Weights {
    Buffer qkv;      // hidden × 3 width: this rank's queries, keys and values
    Buffer mix;      // width × hidden
    Buffer gate_up;  // hidden × 2 inner
    Buffer down;     // inner × hidden
  };
  struct Cache {
    Buffer keys, values;  // context × width
  };
  void make_weights(size_t set, const WeightOptions& options);
  void reserve(size_t tokens);
  void norm(size_t tokens);
  void attention(Cache& cache, size_t tokens);
  void add_to_stream(size_t tokens);

  Shape shape_;
  Part part_;
  size_t width_;  // of this rank's heads together
  size_t inner_;  // of this rank
  const language_model::Kernels<float>& kernels_;
  std::vector<Weights> weights_;
  std::vector<Cache> caches_;
  Buffer gain_;  // of every norm
  Buffer cosine_, sine_;
  size_t position_ = 0;
  Buffer stream_, normed_, inverse_rms_, qkv_, mixed_, gate_up_, gated_, partial_, scores_;
};

}  // namespace tensor_parallel

// A small language model: it predicts a byte of text from the bytes before it (Bengio et al., "A Neural Probabilistic Language
// Model", 2003). Forward and backward pass are written out by hand; Eigen multiplies the matrices.
//
//   embedding of each of the last `context` bytes  ->  one hidden layer, tanh  ->  softmax over the 256 bytes
//
// All parameters lie in one array, and the gradients in another of the same layout. The backward pass completes the gradients
// from the end of that array to its start, and says so piece by piece: a complete piece can travel while the rest is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

inline constexpr size_t vocabulary = 256;  // a token is a byte

struct Shape {
  size_t context = 16;    // bytes that the model sees
  size_t embedding = 24;  // values per byte
  size_t hidden = 256;    // width of the hidden layer
};

class Model {
 public:
  // Random parameters: the same seed gives the same ones.
  Model(const Shape& shape, uint64_t seed);

  // Where each example's target stands in the text: the model sees the `context` bytes before it. Every position must be at
  // least `context`.
  using Positions = std::span<const size_t>;
  // Called when the gradients [first, first + count) are final.
  using Ready = std::function<void(size_t first, size_t count)>;

  // The mean loss of the examples in nats per byte.
  float loss(std::string_view text, Positions positions);
  // The same, and the gradient of that loss.
  float loss_and_gradients(std::string_view text, Positions positions, std::span<float> gradients, const Ready& ready);
  // The probabilities of the byte that follows the text, whose length must be at least `context`.
  std::vector<float> next_byte(std::string_view text);

  std::span<float> parameters() { return parameters_; }
  const Shape& shape() const { return shape_; }

 private:
  float forward(std::string_view text, Positions positions);

  Shape shape_;
  size_t inputs_;                        // context * embedding
  size_t hidden_weights_, hidden_bias_;  // offsets into the parameters; the embedding stands first
  size_t output_weights_, output_bias_;
  std::vector<float> parameters_;
  // Values that the forward pass keeps for the backward pass, a row for each example.
  std::vector<float> input_, hidden_, probabilities_;
};

// Adam (Kingma and Ba, 2015). Every rank applies the same averaged gradients to the same parameters, so they stay the same.
class Adam {
 public:
  explicit Adam(size_t count) : mean_(count), square_(count) {}
  void step(std::span<float> parameters, std::span<const float> gradients, float learning_rate);

 private:
  std::vector<float> mean_, square_;
  float mean_decay_ = 1, square_decay_ = 1;  // powers of the two decays: means start at zero, and are corrected for that
};

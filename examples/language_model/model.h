// A small language model. It predicts a byte of text from the bytes before it (Bengio et al., "A Neural Probabilistic Language
// Model", 2003). The forward and the backward pass are written out by hand; Eigen multiplies the matrices.
//
//   embedding of each of the last `context` bytes  ->  one hidden layer, tanh  ->  softmax over the 256 bytes
//
// All parameters are in one array. The gradients are in a second array with the same layout. The backward pass computes the
// gradients piece by piece, from the end of the array to its start. When a piece is complete, it calls `ready`. So the caller
// can send this piece while the next one is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

inline constexpr size_t vocabulary = 256;  // a token is one byte

struct Shape {
  size_t context = 16;    // how many bytes before the target the model sees
  size_t embedding = 24;  // how many numbers describe one byte
  size_t hidden = 256;    // width of the hidden layer
};

class Model {
 public:
  // Starts with random parameters. Equal seeds give equal parameters.
  Model(const Shape& shape, uint64_t seed);

  // Where the target byte of each example is in the text. The model sees the `context` bytes before the target, so every
  // position must be at least `context`.
  using Positions = std::span<const size_t>;
  // Is called when the gradients [first, first + count) are final.
  using Ready = std::function<void(size_t first, size_t count)>;

  // Returns the mean loss over the examples, in nats per byte.
  float loss(std::string_view text, Positions positions);
  // Returns the mean loss, and computes the gradients of this loss.
  float loss_and_gradients(std::string_view text, Positions positions, std::span<float> gradients, const Ready& ready);
  // Returns, for each byte value, the probability that it follows the text. The text must have at least `context` bytes.
  std::vector<float> next_byte(std::string_view text);

  std::span<float> parameters() { return parameters_; }
  const Shape& shape() const { return shape_; }

 private:
  float forward(std::string_view text, Positions positions);

  Shape shape_;
  size_t inputs_;                        // context * embedding
  size_t hidden_weights_, hidden_bias_;  // offsets into the parameters; the embedding is at offset 0
  size_t output_weights_, output_bias_;
  std::vector<float> parameters_;
  // The forward pass keeps these values for the backward pass. They have one row per example.
  std::vector<float> input_, hidden_, probabilities_;
};

// The optimizer Adam (Kingma and Ba, 2015). Every rank has equal parameters and applies equal averaged gradients to them, so
// the parameters stay equal.
class Adam {
 public:
  explicit Adam(size_t count) : mean_(count), square_(count) {}
  void step(std::span<float> parameters, std::span<const float> gradients, float learning_rate);

 private:
  std::vector<float> mean_, square_;
  float mean_decay_ = 1, square_decay_ = 1;  // decay rate ^ number of steps; they correct the means, which start at zero
};

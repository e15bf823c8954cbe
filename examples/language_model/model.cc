#include "model.h"

#include <Eigen/Core>
#include <cmath>
#include <random>

namespace {

// These types show plain arrays as matrices in row-major order.
using Matrix = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Row = Eigen::Map<Eigen::Matrix<float, 1, Eigen::Dynamic>>;

Matrix matrix(float* data, size_t rows, size_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}
Row row(float* data, size_t count) { return {data, static_cast<Eigen::Index>(count)}; }

size_t token(std::string_view text, size_t position) { return static_cast<uint8_t>(text[position]); }

}  // namespace

Model::Model(const Shape& shape, uint64_t seed)
    : shape_(shape),
      inputs_(shape.context * shape.embedding),
      hidden_weights_(vocabulary * shape.embedding),
      hidden_bias_(hidden_weights_ + inputs_ * shape.hidden),
      output_weights_(hidden_bias_ + shape.hidden),
      output_bias_(output_weights_ + shape.hidden * vocabulary),
      parameters_(output_bias_ + vocabulary) {
  std::mt19937_64 random(seed);
  const auto fill = [&](size_t first, size_t count, double deviation) {
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    for (size_t i = 0; i < count; ++i) parameters_[first + i] = normal(random);
  };
  fill(0, hidden_weights_, 1);
  fill(hidden_weights_, inputs_ * shape.hidden, 1 / std::sqrt(static_cast<double>(inputs_)));
  fill(output_weights_, shape.hidden * vocabulary, 0.1 / std::sqrt(static_cast<double>(shape.hidden)));
}

float Model::forward(std::string_view text, Positions positions) {
  const size_t examples = positions.size();
  input_.resize(examples * inputs_);
  hidden_.resize(examples * shape_.hidden);
  probabilities_.resize(examples * vocabulary);
  for (size_t i = 0; i < examples; ++i) {
    for (size_t back = 0; back < shape_.context; ++back) {
      const size_t byte = token(text, positions[i] - shape_.context + back);
      row(&input_[i * inputs_ + back * shape_.embedding], shape_.embedding) =
          row(&parameters_[byte * shape_.embedding], shape_.embedding);
    }
  }
  auto hidden = matrix(hidden_.data(), examples, shape_.hidden);
  hidden.noalias() = matrix(input_.data(), examples, inputs_) * matrix(&parameters_[hidden_weights_], inputs_, shape_.hidden);
  hidden.rowwise() += row(&parameters_[hidden_bias_], shape_.hidden);
  hidden = hidden.array().tanh();
  auto out = matrix(probabilities_.data(), examples, vocabulary);
  out.noalias() = hidden * matrix(&parameters_[output_weights_], shape_.hidden, vocabulary);
  out.rowwise() += row(&parameters_[output_bias_], vocabulary);
  // Computes the softmax. The largest value is subtracted first, so that no exponential overflows.
  out.colwise() -= out.rowwise().maxCoeff().eval();
  out = out.array().exp();
  out.array().colwise() /= out.rowwise().sum().array().eval();
  double loss = 0;
  for (size_t i = 0; i < examples; ++i) {
    if (positions[i] < text.size()) loss -= std::log(probabilities_[i * vocabulary + token(text, positions[i])]);
  }
  return static_cast<float>(loss / static_cast<double>(examples));
}

float Model::loss(std::string_view text, Positions positions) { return forward(text, positions); }

std::vector<float> Model::next_byte(std::string_view text) {
  const size_t end[] = {text.size()};
  forward(text, end);
  return probabilities_;
}

float Model::loss_and_gradients(std::string_view text, Positions positions, std::span<float> gradients, const Ready& ready) {
  const float loss = forward(text, positions);
  const size_t examples = positions.size();
  // The gradient of softmax and cross-entropy together is (probability - (1 if the byte is the target, else 0)) / examples.
  auto out_gradient = matrix(probabilities_.data(), examples, vocabulary);
  for (size_t i = 0; i < examples; ++i) probabilities_[i * vocabulary + token(text, positions[i])] -= 1;
  out_gradient /= static_cast<float>(examples);

  auto hidden = matrix(hidden_.data(), examples, shape_.hidden);
  matrix(&gradients[output_weights_], shape_.hidden, vocabulary).noalias() = hidden.transpose() * out_gradient;
  row(&gradients[output_bias_], vocabulary) = out_gradient.colwise().sum();
  ready(output_weights_, parameters_.size() - output_weights_);

  Eigen::MatrixXf hidden_gradient = out_gradient * matrix(&parameters_[output_weights_], shape_.hidden, vocabulary).transpose();
  hidden_gradient.array() *= 1 - hidden.array().square();  // the derivative of tanh
  auto input = matrix(input_.data(), examples, inputs_);
  matrix(&gradients[hidden_weights_], inputs_, shape_.hidden).noalias() = input.transpose() * hidden_gradient;
  row(&gradients[hidden_bias_], shape_.hidden) = hidden_gradient.colwise().sum();
  ready(hidden_weights_, output_weights_ - hidden_weights_);

  // The values of the input are no longer needed. So their memory is used again for the gradient.
  input.noalias() = hidden_gradient * matrix(&parameters_[hidden_weights_], inputs_, shape_.hidden).transpose();
  row(gradients.data(), hidden_weights_).setZero();
  for (size_t i = 0; i < examples; ++i) {
    for (size_t back = 0; back < shape_.context; ++back) {
      const size_t byte = token(text, positions[i] - shape_.context + back);
      row(&gradients[byte * shape_.embedding], shape_.embedding) +=
          row(&input_[i * inputs_ + back * shape_.embedding], shape_.embedding);
    }
  }
  ready(0, hidden_weights_);
  return loss;
}

void Adam::step(std::span<float> parameters, std::span<const float> gradients, float learning_rate) {
  constexpr float keep_mean = 0.9f, keep_square = 0.99f;
  mean_decay_ *= keep_mean, square_decay_ *= keep_square;
  const float mean_scale = learning_rate / (1 - mean_decay_), square_scale = 1 / (1 - square_decay_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    mean_[i] += (1 - keep_mean) * (gradients[i] - mean_[i]);
    square_[i] += (1 - keep_square) * (gradients[i] * gradients[i] - square_[i]);
    parameters[i] -= mean_scale * mean_[i] / (std::sqrt(square_scale * square_[i]) + 1e-8f);
  }
}

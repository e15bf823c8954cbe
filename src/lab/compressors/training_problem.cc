#include "lab/compressors/training_problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "compressors/counter_random.h"

namespace unisono::sim {
namespace {

constexpr ProblemFacts facts[] = {
    {.name = "quadratic",
     .measure = "|W - W*| / |W*|",
     .matrix = {64, 16},
     .seed = 3,
     .steps = 300,
     .step_size = .02,
     .averaged = 1},
    {.name = "softmax",
     .measure = "mean loss of all samples",
     .matrix = {64, 32},
     .seed = 31,
     .steps = 1000,
     .step_size = .5,
     .averaged = 8},
};

std::vector<float> normals(uint64_t seed, uint32_t tensor, size_t count) {
  std::vector<float> values(count);
  RandomStream{.seed = seed, .tensor = tensor, .purpose = RandomStream::Purpose::test_data}.normals(0, values);
  return values;
}

// Loss of rank i: f_i(W) = .5 |W - W* - B_i|^2. The mean of all B_i is 0.
class Quadratic final : public TrainingProblem {
 public:
  Quadratic(uint32_t ranks, uint64_t seed) : goal_(normals(seed, 10, size)) {
    std::vector<std::vector<float>> z;
    for (uint32_t i = 0; i < ranks; ++i) z.push_back(normals(seed, 20 + i, size));
    std::vector<double> mean(size);
    for (const auto& values : z) {
      for (size_t k = 0; k < size; ++k) mean[k] += double{values[k]} / ranks;
    }
    for (const auto& values : z) {
      auto& shift = shifts_.emplace_back(size);
      for (size_t k = 0; k < size; ++k) shift[k] = 3 * (values[k] - mean[k]);
    }
  }

  void gradient(std::span<const double> weights, uint64_t, uint32_t rank, std::span<double> out) const override {
    for (size_t k = 0; k < size; ++k) out[k] = weights[k] - goal_[k] - shifts_[rank][k];
  }
  double measure(std::span<const double> weights) const override {
    double off = 0, all = 0;
    for (size_t k = 0; k < size; ++k) {
      off += (weights[k] - goal_[k]) * (weights[k] - goal_[k]);
      all += double{goal_[k]} * goal_[k];
    }
    return std::sqrt(off / all);
  }

 private:
  static constexpr size_t size = facts[0].matrix.rows * facts[0].matrix.columns;
  std::vector<float> goal_;
  std::vector<std::vector<double>> shifts_;
};

// The labels come from a teacher: a sample's label is the class with the highest score, after noise is added to the teacher's
// scores. Samples are sorted by label, so each rank has samples of few classes only.
class Softmax final : public TrainingProblem {
 public:
  Softmax(uint32_t ranks, uint64_t seed) : samples_(ranks * local) {
    const auto teacher = normals(seed, 1, size), x = normals(seed, 2, samples_ * features),
               noise = normals(seed, 3, samples_ * classes);
    std::vector<size_t> labels(samples_), order(samples_);
    for (size_t s = 0; s < samples_; ++s) {
      double best = -std::numeric_limits<double>::infinity();
      for (size_t c = 0; c < classes; ++c) {
        double score = 2.0 * noise[s * classes + c];
        for (size_t f = 0; f < features; ++f) score += double{teacher[c * features + f]} * x[s * features + f];
        if (score > best) best = score, labels[s] = c;
      }
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return labels[a] < labels[b]; });
    for (const size_t s : order) {
      labels_.push_back(labels[s]);
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(s * features);
      x_.insert(x_.end(), first, first + features);
    }
  }

  void gradient(std::span<const double> weights, uint64_t step, uint32_t rank, std::span<double> out) const override {
    for (size_t k = 0; k < size; ++k) out[k] = decay * weights[k];
    for (size_t j = 0; j < batch; ++j) {
      const size_t s = rank * local + (batch * step + j) % local;
      Logits logits{weights, sample(s)};
      for (size_t c = 0; c < classes; ++c) {
        const double by = (std::exp(logits.values[c] - logits.largest) / logits.total - (c == labels_[s] ? 1 : 0)) / batch;
        for (size_t f = 0; f < features; ++f) out[c * features + f] += by * sample(s)[f];
      }
    }
  }
  double measure(std::span<const double> weights) const override {
    double sum = 0, squares = 0;
    for (size_t s = 0; s < samples_; ++s) {
      const Logits logits{weights, sample(s)};
      sum += (std::log(logits.total) + logits.largest - logits.values[labels_[s]]) / static_cast<double>(samples_);
    }
    for (const double value : weights) squares += value * value;
    return sum + decay / 2 * squares;
  }

 private:
  static constexpr size_t classes = facts[1].matrix.rows, features = facts[1].matrix.columns, size = classes * features;
  // number of samples that a rank has, and number of samples that it uses in one step
  static constexpr size_t local = 64, batch = 8;
  static constexpr double decay = 1e-3;

  struct Logits {
    std::array<double, classes> values{};
    // largest: the largest of all values. total: the sum of exp(value - largest).
    double largest = -std::numeric_limits<double>::infinity(), total = 0;

    Logits(std::span<const double> weights, const float* x) {
      for (size_t c = 0; c < classes; ++c) {
        for (size_t f = 0; f < features; ++f) values[c] += weights[c * features + f] * x[f];
        largest = std::max(largest, values[c]);
      }
      for (const double value : values) total += std::exp(value - largest);
    }
  };
  const float* sample(size_t s) const { return x_.data() + s * features; }

  const size_t samples_;
  std::vector<size_t> labels_;
  std::vector<float> x_;
};

}  // namespace

const ProblemFacts& facts_of(ProblemKind kind) { return facts[static_cast<size_t>(kind)]; }

std::unique_ptr<TrainingProblem> make_problem(ProblemKind kind, uint32_t ranks, uint64_t seed) {
  if (kind == ProblemKind::quadratic) return std::make_unique<Quadratic>(ranks, seed);
  return std::make_unique<Softmax>(ranks, seed);
}

}  // namespace unisono::sim

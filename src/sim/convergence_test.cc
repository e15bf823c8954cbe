// Training with compressed gradients ends where the specification of ARC-Top-K says (acceptance checks 18, 25 and 26).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "compressors/row_selection.h"
#include "training/training_test_support.h"

namespace unisono {
namespace {

using namespace test;
constexpr size_t ranks = 8;

enum class Rows : uint8_t { arc, exact, random };

ArcOptions options_of(Rows rows, uint32_t rank, uint64_t seed) {
  auto options = arc_options(100'000, rank, seed);
  options.exact = rows == Rows::exact;
  options.random = rows == Rows::random;
  return options;
}

// What is chosen, kept and sent depends on the mean alone where everything is linear: exact rows are those of one rank that has the mean.
Trainers trainers_for(Rows rows, uint32_t rank, uint64_t seed, const FeedbackOptions& feedback, uint64_t m, uint64_t n) {
  return {rows == Rows::exact ? 1 : ranks, options_of(rows, rank, seed), feedback, 1, m, n};
}

template <typename Ranks>
void set_gradients(const std::vector<std::vector<double>>& gradients, Ranks& trainers) {
  for (auto& values : trainers.gradients) values.assign(gradients[0].size(), 0);
  for (size_t i = 0; i < ranks; ++i) {
    for (size_t k = 0; k < gradients[i].size(); ++k) {
      if (trainers.size() == 1) trainers.gradients[0][k] += static_cast<float>(gradients[i][k] / ranks);
      else trainers.gradients[i][k] = static_cast<float>(gradients[i][k]);
    }
  }
}

// Local Top-K: each rank sends its own largest entries, as many as K rows have, and others elsewhere. What it is compared with.
class LocalTopK {
 public:
  LocalTopK(const FeedbackOptions& feedback, size_t kept, size_t elements) : gradients(ranks, Values(elements)), feedback_(feedback), kept_(kept), residual_(ranks, Values(elements)), momentum_(residual_), known_(residual_), mean_(elements), out_(elements) {}
  size_t size() const { return ranks; }
  const Values& step(uint64_t number) {
    std::fill(out_.begin(), out_.end(), 0.0f);
    for (size_t r = 0; r < ranks; ++r) {
      if (feedback_.kind == Feedback::ef21m) add_difference(r, number == 0);
      else add_largest(r);
    }
    if (feedback_.kind != Feedback::ef21m) return out_;
    for (size_t k = 0; k < out_.size(); ++k) mean_[k] += out_[k];
    return mean_;
  }

  std::vector<Values> gradients;

 private:
  void add_largest(size_t r) {
    auto& p = gradients[r];
    for (size_t k = 0; k < p.size(); ++k) p[k] += residual_[r][k];
    select_entries(p, kept_, chosen_);
    for (const auto k : chosen_) out_[k] += p[k] / ranks;
    if (feedback_.kind == Feedback::none) return;
    residual_[r] = p;
    for (const auto k : chosen_) residual_[r][k] = 0;
  }
  // The first step is dense.
  void add_difference(size_t r, bool first) {
    auto& h = momentum_[r];
    Values difference(h.size());
    for (size_t k = 0; k < h.size(); ++k) {
      h[k] = first ? gradients[r][k] : (1 - feedback_.eta) * h[k] + feedback_.eta * gradients[r][k];
      difference[k] = h[k] - known_[r][k];
    }
    select_entries(difference, first ? h.size() : kept_, chosen_);
    for (const auto k : chosen_) known_[r][k] += difference[k], out_[k] += difference[k] / ranks;
  }

  const FeedbackOptions feedback_;
  const size_t kept_;
  std::vector<Values> residual_, momentum_, known_;
  Values mean_, out_;
  std::vector<uint32_t> chosen_;
};

// ---- a shifted quadratic: the ranks' minima lie apart, and their mean at W*

class Quadratic {
 public:
  static constexpr size_t m = 64, n = 16, size = m * n;

  Quadratic() : goal_(normals(3, 0, 10, size)) {
    std::vector<Values> z;
    for (uint32_t i = 0; i < ranks; ++i) z.push_back(normals(3, 0, 20 + i, size));
    for (size_t i = 0; i < ranks; ++i) {
      auto& shift = shifts_.emplace_back(size);
      for (size_t k = 0; k < size; ++k) {
        double mean = 0;
        for (const auto& other : z) mean += double{other[k]} / ranks;
        shift[k] = 3 * (z[i][k] - mean);
      }
    }
  }
  // ||W - W*|| / ||W*|| after 300 steps. worst: the largest residual of the mean by the largest mean gradient so far.
  template <typename Ranks>
  double distance(Ranks trainers, double* worst = nullptr) const {
    std::vector<double> w(size);
    std::vector<std::vector<double>> gradients(ranks, std::vector<double>(size));
    double largest_gradient = 0;
    for (uint64_t step = 0; step < 300; ++step) {
      for (size_t i = 0; i < ranks; ++i) {
        for (size_t k = 0; k < size; ++k) gradients[i][k] = w[k] - goal_[k] - shifts_[i][k];
      }
      set_gradients(gradients, trainers);
      if (worst != nullptr) largest_gradient = std::max(largest_gradient, std::sqrt(squared(trainers.gradients[0])));
      const auto& out = trainers.step(step);
      for (size_t k = 0; k < size; ++k) w[k] -= .02 * out[k];
      if constexpr (std::is_same_v<Ranks, Trainers>) {
        if (worst != nullptr) *worst = std::max(*worst, std::sqrt(squared(trainers.state(0).residual)) / largest_gradient);
      }
    }
    double off = 0, all = 0;
    for (size_t k = 0; k < size; ++k) off += (w[k] - goal_[k]) * (w[k] - goal_[k]), all += double{goal_[k]} * goal_[k];
    return std::sqrt(off / all);
  }

 private:
  Values goal_;
  std::vector<std::vector<double>> shifts_;
};

// 25.
TEST(Convergence, on_a_quadratic) {
  const Quadratic quadratic;
  const auto distance = [&](Rows rows, Feedback kind) { return quadratic.distance(trainers_for(rows, 4, 3, {.kind = kind, .eta = 1}, Quadratic::m, Quadratic::n)); };
  struct Case {
    Feedback kind;
    double arc, exact, random, local;
  };
  for (const auto& [kind, arc, exact, random, local] : {Case{Feedback::none, .4953, .4947, .5174, .7983}, {Feedback::ef14, 1.474e-3, 1.512e-3, 7.78e-4, .04159}, {Feedback::ef21m, 1.360e-3, 1.392e-3, 6.39e-4, 1.782e-3}}) {
    EXPECT_NEAR(distance(Rows::arc, kind), arc, .01 * arc) << static_cast<int>(kind);
    EXPECT_NEAR(distance(Rows::exact, kind), exact, .01 * exact) << static_cast<int>(kind);
    EXPECT_NEAR(distance(Rows::random, kind), random, .01 * random) << static_cast<int>(kind);
    EXPECT_NEAR(quadratic.distance(LocalTopK({.kind = kind, .eta = 1}, 7 * Quadratic::n, Quadratic::size)), local, .01 * local) << static_cast<int>(kind);
  }
  EXPECT_NEAR(quadratic.distance(Trainers{ranks, arc_options(1'000'000, 4, 3), {.kind = Feedback::none}, 1, Quadratic::m, Quadratic::n}), 2.3325e-3, 2.4e-5);  // dense
}

// 18.
TEST(Convergence, residual_of_the_mean_is_bounded) {
  double worst = 0;
  Quadratic().distance(trainers_for(Rows::exact, 4, 3, {.kind = Feedback::ef14}, Quadratic::m, Quadratic::n), &worst);
  EXPECT_LE(worst, 16.7712);
  EXPECT_NEAR(worst, 4.730, .0473);
}

// ---- softmax regression of 64 classes, each rank with its own

class Softmax {
 public:
  static constexpr size_t classes = 64, features = 32, samples = 512, local = samples / ranks, size = classes * features;

  Softmax() {
    const auto teacher = normals(31, 0, 1, size), x = normals(31, 0, 2, samples * features), noise = normals(31, 0, 3, samples * classes);
    std::vector<size_t> labels(samples), order(samples);
    for (size_t s = 0; s < samples; ++s) {
      double best = -INFINITY;
      for (size_t c = 0; c < classes; ++c) {
        double score = 2.0 * noise[s * classes + c];
        for (size_t f = 0; f < features; ++f) score += double{teacher[c * features + f]} * x[s * features + f];
        if (score > best) best = score, labels[s] = c;
      }
    }
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return labels[a] < labels[b]; });
    for (const size_t s : order) {
      labels_.push_back(labels[s]);
      x_.insert(x_.end(), x.begin() + static_cast<std::ptrdiff_t>(s * features), x.begin() + static_cast<std::ptrdiff_t>((s + 1) * features));
    }
  }
  // Mean of the losses after 930, 940, ..., 1000 steps.
  template <typename Ranks>
  double loss_after_training(Ranks trainers) const {
    std::vector<double> w(size);
    std::vector<std::vector<double>> gradients(ranks, std::vector<double>(size));
    double sum = 0;
    for (uint64_t step = 0; step < 1000; ++step) {
      for (size_t i = 0; i < ranks; ++i) {
        for (size_t k = 0; k < size; ++k) gradients[i][k] = 1e-3 * w[k];
        for (size_t j = 0; j < 8; ++j) add_sample(w, i * local + (8 * step + j) % local, 1.0 / 8, &gradients[i]);
      }
      set_gradients(gradients, trainers);
      const auto& out = trainers.step(step);
      for (size_t k = 0; k < size; ++k) w[k] -= .5 * out[k];
      if (step + 1 >= 930 && (step + 1) % 10 == 0) sum += loss(w) / 8;
    }
    return sum;
  }

 private:
  // Its cross entropy; its gradient, times `weight`, is added.
  double add_sample(const std::vector<double>& w, size_t s, double weight, std::vector<double>* gradient) const {
    const float* const x = x_.data() + s * features;
    double logits[classes], largest = -INFINITY, total = 0;
    for (size_t c = 0; c < classes; ++c) {
      logits[c] = 0;
      for (size_t f = 0; f < features; ++f) logits[c] += w[c * features + f] * x[f];
      largest = std::max(largest, logits[c]);
    }
    for (const double logit : logits) total += std::exp(logit - largest);
    for (size_t c = 0; gradient != nullptr && c < classes; ++c) {
      const double by = weight * (std::exp(logits[c] - largest) / total - (c == labels_[s] ? 1 : 0));
      for (size_t f = 0; f < features; ++f) (*gradient)[c * features + f] += by * x[f];
    }
    return std::log(total) + largest - logits[labels_[s]];
  }
  double loss(const std::vector<double>& w) const {
    double sum = 0, squares = 0;
    for (size_t s = 0; s < samples; ++s) sum += add_sample(w, s, 0, nullptr) / samples;
    for (const double value : w) squares += value * value;
    return sum + .5e-3 * squares;
  }

  std::vector<size_t> labels_;
  Values x_;
};

// 26. Together with its numbers, how far off they may be.
struct SoftmaxCase {
  const char* name;
  FeedbackOptions feedback;
  double arc4, arc1, arc16, exact, random, local, off;
};
void PrintTo(const SoftmaxCase& c, std::ostream* out) { *out << c.name; }

class LongConvergence : public testing::TestWithParam<SoftmaxCase> {};

TEST_P(LongConvergence, of_a_softmax_regression) {
  const Softmax softmax;
  const auto& [name, feedback, arc4, arc1, arc16, exact, random, local, off] = GetParam();
  const auto loss = [&, kind = feedback](Rows rows, uint32_t rank) { return softmax.loss_after_training(trainers_for(rows, rank, 31, kind, Softmax::classes, Softmax::features)); };
  EXPECT_NEAR(loss(Rows::arc, 4), arc4, off);
  EXPECT_NEAR(loss(Rows::arc, 1), arc1, off);
  EXPECT_NEAR(loss(Rows::arc, 16), arc16, off);
  EXPECT_NEAR(loss(Rows::exact, 4), exact, off);
  EXPECT_NEAR(loss(Rows::random, 4), random, off);
  EXPECT_NEAR(softmax.loss_after_training(LocalTopK(feedback, 7 * Softmax::features, Softmax::size)), local, off);
}

INSTANTIATE_TEST_SUITE_P(With, LongConvergence,
                         testing::Values(SoftmaxCase{"ef14", {.kind = Feedback::ef14}, .5809, .5810, .5809, .5808, .5811, .5804, .001},
                                         SoftmaxCase{"ef21m", {.kind = Feedback::ef21m, .eta = .1f}, .5787, .5787, .5800, .5833, .5810, .5836, .001},
                                         SoftmaxCase{"ef21", {.kind = Feedback::ef21m, .eta = 1}, .678, .629, .740, .893, .846, .792, .01},
                                         SoftmaxCase{"none", {.kind = Feedback::none}, .673, .647, .694, .714, 1.321, .629, .01}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(LongDenseConvergence, of_a_softmax_regression_with_dense_gradients) {
  EXPECT_NEAR(Softmax().loss_after_training(Trainers{ranks, arc_options(1'000'000, 4, 31), {.kind = Feedback::none}, 1, Softmax::classes, Softmax::features}), .5804, .001);
}

}  // namespace
}  // namespace unisono

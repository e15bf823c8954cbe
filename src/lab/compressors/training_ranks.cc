#include "lab/compressors/training_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compressors/arc_top_k.h"
#include "compressors/finite.h"
#include "compressors/top_k.h"

namespace unisono::sim {
namespace {

using Values = std::vector<float>;
constexpr uint32_t tensor_number = 1;  // the checks of docs/design/methods/arc_top_k.md use this number for the tensor

// With these limits every tensor is compressed, as the checks of docs/design/methods/arc_top_k.md require.
RowRule rule_of(const TrainingRanksOptions& options) {
  const auto ratio_ppm = options.method == Method::dense ? 1'000'000 : options.ratio_ppm;
  return {.ratio_ppm = ratio_ppm, .rank = options.sketch_rank, .max_payload_ppm = UINT32_MAX, .min_elements = 0};
}

// Replaces each buffer by the mean of all buffers. As after an all-reduce, all ranks have the same bits.
void average(std::vector<std::span<float>>& buffers) {
  for (size_t k = 0; k < buffers[0].size(); ++k) {
    float sum = 0;
    for (const auto& buffer : buffers) sum += buffer[k];
    for (auto& buffer : buffers) buffer[k] = sum / static_cast<float>(buffers.size());
  }
}

class CompressedRanks final : public TrainingRanks {
 public:
  // Method::exact chooses rows by the mean gradient. The steps of this method are linear, so one simulated rank that has the
  // mean gradient can stand for all ranks.
  explicit CompressedRanks(const TrainingRanksOptions& options)
      : ranks_(options.ranks),
        stores_(options.method == Method::exact ? 1 : options.ranks),
        gradients_(stores_.size(), Values(options.matrix.elements())) {}

  Status open(const TrainingRanksOptions& options) {
    const ArcOptions arc{.rule = rule_of(options),
                         .seed = options.seed,
                         .random = options.method == Method::random_k,
                         .exact = options.method == Method::exact};
    const FeedbackOptions feedback =
        options.method == Method::dense ? FeedbackOptions{.kind = Feedback::none} : options.feedback;
    for (auto& store : stores_) {
      auto compressor =
          make_arc_top_k(arc, 0, {{.number = tensor_number, .shape = {options.matrix.rows, options.matrix.columns}}});
      if (!compressor.ok()) return compressor.status();
      auto made = ErrorFeedback::make(feedback, *std::move(compressor), {tensor_name}, store);
      if (!made.ok()) return made.status();
      feedbacks_.push_back(*std::move(made));
    }
    return {};
  }

  void set_gradient(uint32_t rank, std::span<const double> gradient) override {
    auto& values = gradients_[stores_.size() == 1 ? 0 : rank];
    const bool adds = stores_.size() < ranks_;
    for (size_t k = 0; k < values.size(); ++k) {
      if (adds) values[k] = (rank == 0 ? 0 : values[k]) + static_cast<float>(gradient[k] / ranks_);
      else values[k] = static_cast<float>(gradient[k]);
    }
  }

  Result<std::span<const float>> step(uint64_t number) override {
    std::vector<std::span<float>> buffers;
    for (size_t r = 0; r < feedbacks_.size(); ++r) {
      float* const values[] = {gradients_[r].data()};
      buffers.push_back(feedbacks_[r]->begin(number, values));
    }
    average(buffers);
    for (size_t r = 0; r < feedbacks_.size(); ++r) {
      const auto buffer = feedbacks_[r]->next();
      if (!buffer.ok()) return buffer.status();
      buffers[r] = *buffer;
    }
    average(buffers);
    for (auto& feedback : feedbacks_) {
      if (auto status = feedback->finish(); !status.ok()) return status;
    }
    return std::span<const float>(gradients_[0]);
  }

  std::span<const float> residual(uint32_t rank) const override {
    if (rank < feedbacks_.size()) feedbacks_[rank]->settle();
    return rank < stores_.size() ? std::span<const float>(stores_[rank].at(tensor_name).residual) : std::span<const float>();
  }

 private:
  static constexpr const char* tensor_name = "weights";
  const uint32_t ranks_;
  std::vector<FeedbackStore> stores_;
  std::vector<Values> gradients_;
  std::vector<std::unique_ptr<ErrorFeedback>> feedbacks_;
};

// Rank i sends C_i, which contains the largest entries of its vector V_i. All ranks get the mean of all C_i.
// - EF14: V_i = gradient + residual. The entries of V_i that are not sent become the new residual.
// - EF21M: V_i = momentum_ - known_. Afterwards C_i is added to known_, the part of the momentum that was already sent.
class TopKRanks final : public TrainingRanks {
 public:
  explicit TopKRanks(const TrainingRanksOptions& options)
      : feedback_(options.feedback),
        kept_(kept_entries(rule_of(options), options.matrix)),
        gradients_(options.ranks, Values(options.matrix.elements())),
        residual_(gradients_),
        momentum_(gradients_),
        known_(gradients_),
        mean_(options.matrix.elements()),
        out_(options.matrix.elements()) {}

  void set_gradient(uint32_t rank, std::span<const double> gradient) override {
    std::transform(gradient.begin(), gradient.end(), gradients_[rank].begin(),
                   [](double value) { return static_cast<float>(value); });
  }

  Result<std::span<const float>> step(uint64_t number) override {
    std::fill(out_.begin(), out_.end(), 0.0f);
    for (size_t r = 0; r < gradients_.size(); ++r) {
      if (!all_finite(gradients_[r])) return not_finite("a gradient");
      if (feedback_.kind == Feedback::ef21m) send_difference(r, number == 0);
      else send_sum(r);
    }
    if (!all_finite(out_)) return not_finite("the average");
    if (feedback_.kind != Feedback::ef21m) return std::span<const float>(out_);
    for (size_t k = 0; k < out_.size(); ++k) mean_[k] += out_[k];
    return std::span<const float>(mean_);
  }

  std::span<const float> residual(uint32_t rank) const override {
    return feedback_.kind == Feedback::ef14 ? std::span<const float>(residual_[rank]) : std::span<const float>();
  }

 private:
  void send_sum(size_t r) {
    auto& p = gradients_[r];
    for (size_t k = 0; k < p.size(); ++k) p[k] += residual_[r][k];
    send(p, kept_);
    if (feedback_.kind == Feedback::ef14) residual_[r] = p;
  }
  // first: true in the first step, in which all entries are sent.
  void send_difference(size_t r, bool first) {
    auto& h = momentum_[r];
    Values difference(h.size());
    for (size_t k = 0; k < h.size(); ++k) {
      h[k] = first ? gradients_[r][k] : (1 - feedback_.eta) * h[k] + feedback_.eta * gradients_[r][k];
      difference[k] = h[k] - known_[r][k];
    }
    send(difference, first ? h.size() : kept_);
    for (const auto& entry : taken_) known_[r][entry.index] += entry.value;
  }
  void send(Values& values, size_t kept) {
    take_largest(values, kept, taken_);
    for (const auto& entry : taken_) out_[entry.index] += entry.value / static_cast<float>(gradients_.size());
  }

  const FeedbackOptions feedback_;
  const size_t kept_;
  std::vector<Values> gradients_, residual_, momentum_, known_;
  Values mean_, out_;
  std::vector<TopKEntry> taken_;
};

}  // namespace

Result<std::unique_ptr<TrainingRanks>> make_training_ranks(const TrainingRanksOptions& options) {
  // CompressedRanks::open() also checks the options of TopKRanks.
  auto ranks = std::make_unique<CompressedRanks>(options);
  if (auto status = ranks->open(options); !status.ok()) return status;
  if (options.method == Method::top_k) return std::unique_ptr<TrainingRanks>(std::make_unique<TopKRanks>(options));
  return std::unique_ptr<TrainingRanks>(std::move(ranks));
}

uint64_t sent_elements(const TrainingRanksOptions& options) {
  const auto rule = rule_of(options);
  const uint64_t shape[] = {options.matrix.rows, options.matrix.columns};
  const auto decision = decide(rule, shape);
  return decision.value_elements() + (options.method == Method::arc ? decision.sketch_elements(rule) : 0);
}

}  // namespace unisono::sim

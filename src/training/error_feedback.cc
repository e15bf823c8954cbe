#include "training/error_feedback.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "compressors/finite.h"

namespace unisono {

ErrorFeedback::ErrorFeedback(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<FeedbackState*> states)
    : options_(options), compressor_(std::move(compressor)), states_(std::move(states)) {}

Result<std::unique_ptr<ErrorFeedback>> ErrorFeedback::make(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor, std::vector<std::string> names, FeedbackStore& store) {
  UNISONO_CHECK(names.size() == compressor->decisions().size());
  if (!(options.eta > 0 && options.eta <= 1)) return Status(Code::invalid, "bad_option: eta = " + std::to_string(options.eta) + " is not in (0, 1]");
  std::vector<FeedbackState*> states;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto elements = compressor->decisions()[i].matrix.elements();
    auto& state = store.try_emplace(names[i], FeedbackState{.elements = elements}).first->second;
    if (state.elements != elements) {
      return Status(Code::invalid, "state_shape_mismatch: " + names[i] + " has " + std::to_string(elements) + " elements, and what was kept of it " + std::to_string(state.elements));
    }
    states.push_back(&state);
  }
  return std::unique_ptr<ErrorFeedback>(new ErrorFeedback(options, std::move(compressor), std::move(states)));
}

bool ErrorFeedback::started() const {
  if (options_.kind != Feedback::ef21m) return true;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (elements(i) > 0 && (states_[i]->momentum.empty() || (compressed(i) && states_[i]->known.empty()))) return false;
  }
  return true;
}

// A running mean takes the gradient's place until it is known whether the step counts. (Residuals are added where the sketch is made.)
void ErrorFeedback::add_up() {
  if (options_.kind != Feedback::ef21m) return;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto& momentum = states_[i]->momentum;
    for (size_t k = 0; k < momentum.size(); ++k) gradients_[i][k] = (1 - options_.eta) * momentum[k] + options_.eta * gradients_[i][k];
  }
}

std::span<float> ErrorFeedback::pack_whole() {
  is_whole_ = true;
  whole_.clear();
  for (size_t i = 0; i < gradients_.size(); ++i) whole_.insert(whole_.end(), gradients_[i], gradients_[i] + elements(i));
  return whole_;
}

std::span<float> ErrorFeedback::begin(uint64_t step, std::span<float* const> gradients, bool whole) {
  UNISONO_CHECK(gradients.size() == states_.size());
  gradients_.assign(gradients.begin(), gradients.end());
  is_whole_ = false;
  add_up();
  std::vector<CompressorInput> inputs;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto& kept = options_.kind == Feedback::ef21m ? states_[i]->known : states_[i]->residual;
    inputs.push_back({.values = gradients_[i], .residual = kept.empty() ? nullptr : kept.data(), .difference = options_.kind == Feedback::ef21m});
  }
  if (!whole && started()) return compressor_->begin(step, inputs);
  for (size_t i = 0; i < states_.size(); ++i) {
    for (size_t k = 0; inputs[i].residual != nullptr && !inputs[i].difference && k < elements(i); ++k) gradients_[i][k] += inputs[i].residual[k];
  }
  return pack_whole();
}

Result<std::span<float>> ErrorFeedback::next() {
  if (is_whole_) return std::span<float>();
  const std::vector<const float*> values(gradients_.begin(), gradients_.end());
  return compressor_->next(values);
}

void ErrorFeedback::commit() {
  std::vector<float*> outputs(gradients_);
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    float* const values = gradients_[i];
    if (options_.kind == Feedback::ef21m) state.momentum.assign(values, values + elements(i));
    if (!compressed(i)) {
      std::fill(state.residual.begin(), state.residual.end(), 0.0f);  // of one that was compressed before
      continue;
    }
    const size_t columns = compressor_->decisions()[i].matrix.columns;
    if (options_.kind == Feedback::ef14) state.residual.assign(values, values + elements(i));
    for (const size_t row : compressor_->rows(i)) {
      if (options_.kind == Feedback::ef14) std::fill_n(state.residual.begin() + static_cast<std::ptrdiff_t>(row * columns), columns, 0.0f);
      if (options_.kind == Feedback::ef21m) std::copy_n(values + row * columns, columns, state.known.begin() + static_cast<std::ptrdiff_t>(row * columns));
    }
    if (options_.kind == Feedback::ef21m) outputs[i] = state.mean.data();
    else std::fill_n(values, elements(i), 0.0f);
  }
  compressor_->unpack(outputs);
  for (size_t i = 0; i < states_.size(); ++i) {
    if (outputs[i] != gradients_[i]) std::copy_n(outputs[i], elements(i), gradients_[i]);
  }
}

void ErrorFeedback::commit_whole() {
  const float* mean = whole_.data();
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    const size_t count = elements(i);
    std::fill(state.residual.begin(), state.residual.end(), 0.0f);
    if (options_.kind == Feedback::ef21m) {
      state.momentum.assign(gradients_[i], gradients_[i] + count);
      if (compressed(i)) state.known = state.momentum, state.mean.assign(mean, mean + count);
    }
    std::copy_n(mean, count, gradients_[i]);
    mean += count;
  }
}

Status ErrorFeedback::finish() {
  if (!is_whole_) {
    if (auto status = compressor_->accept(); !status.ok()) return status;
    commit();
    return {};
  }
  if (!all_finite(whole_)) return not_finite("the average");
  commit_whole();
  return {};
}

std::span<float> ErrorFeedback::begin_again() { return pack_whole(); }

void ErrorFeedback::abandon() {
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    float* const values = gradients_[i];
    // A rank whose numbers are not finite would keep them for ever.
    if (!all_finite({values, elements(i)})) continue;
    if (options_.kind == Feedback::ef14) state.residual.assign(values, values + elements(i));
    if (options_.kind == Feedback::ef21m && !state.momentum.empty()) state.momentum.assign(values, values + elements(i));
  }
}

void ErrorFeedback::step_skipped() {
  if (options_.kind != Feedback::ef14) return;
  // Of what was sent nothing is left over: now each rank keeps the mean of what all had.
  const float* mean = whole_.data();
  for (size_t i = 0; is_whole_ && i < states_.size(); mean += elements(i), ++i) {
    if (!states_[i]->residual.empty()) states_[i]->residual.assign(mean, mean + elements(i));
  }
  if (is_whole_) return;
  std::vector<float*> outputs;
  for (size_t i = 0; i < states_.size(); ++i) outputs.push_back(compressed(i) ? states_[i]->residual.data() : nullptr);
  compressor_->unpack(outputs);
}

}  // namespace unisono

#include "training/reducer/error_feedback.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "compressors/energy.h"
#include "compressors/finite.h"

namespace unisono {
namespace {

// If a group has more bytes than this, its residuals are written past the caches, because they are not read again before
// the next step.
constexpr size_t near_bytes = 1u << 20;

// Copies `values` to `to`. If memory runs out, returns false and leaves `to` unchanged. This cannot happen if the capacity of
// `to` is large enough.
bool try_assign(std::vector<float>& to, std::span<const float> values) try {
  to.assign(values.begin(), values.end());
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace

size_t Spares::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::vector<float> Spares::take(size_t count) {
  const std::lock_guard lock(mutex_);
  auto& list = by_size_[count];
  // Reserves a list entry for every buffer that may be given back, so that give() does not allocate.
  list.buffers.reserve(list.buffers.size() + list.taken + 1);
  auto memory = list.buffers.empty() ? std::vector<float>(count) : std::move(list.buffers.back());
  if (!list.buffers.empty()) list.buffers.pop_back(), bytes_ -= sizeof(float) * count;
  ++list.taken;
  return memory;
}

void Spares::give(std::vector<float> memory) {
  const std::lock_guard lock(mutex_);
  const auto found = by_size_.find(memory.size());
  if (found == by_size_.end() || found->second.taken == 0) return;
  --found->second.taken;
  bytes_ += sizeof(float) * memory.size();
  found->second.buffers.push_back(std::move(memory));
}

ErrorFeedback::ErrorFeedback(const FeedbackOptions& options, std::unique_ptr<Compressor> compressor,
                             std::vector<FeedbackState*> states, Spares* spares)
    : options_(options),
      compressor_(std::move(compressor)),
      states_(std::move(states)),
      spares_(spares != nullptr ? *spares : own_spares_),
      next_residuals_(states_.size()),
      gradients_(states_.size()),
      outputs_(states_.size()),
      cleared_(states_.size()) {}

ErrorFeedback::~ErrorFeedback() {
  settle();
  for (auto& memory : next_residuals_) spares_.give(std::move(memory));
}

size_t ErrorFeedback::buffer_bytes() const {
  size_t numbers = encode_errors_.capacity() + copies_.capacity();
  for (const auto& memory : next_residuals_) numbers += memory.capacity();
  return compressor_->buffer_bytes() + own_spares_.bytes() + sizeof(float) * numbers;
}

Result<std::unique_ptr<ErrorFeedback>> ErrorFeedback::make(const FeedbackOptions& options,
                                                           std::unique_ptr<Compressor> compressor,
                                                           std::vector<std::string> names, FeedbackStore& store,
                                                           Spares* spares) {
  UNISONO_CHECK(names.size() == compressor->decisions().size());
  if (!(options.eta > 0 && options.eta <= 1))
    return Status(Code::invalid, concat("bad_option: eta = ", options.eta, " is not in (0, 1]"));
  if (!compressor->sends_rows() && (options.kind == Feedback::ef21m || options.lossy))
    return Status(Code::invalid, "bad_option: ef21, ef21m and encoded values need a compressor that sends rows");
  std::vector<FeedbackState*> states;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto elements = compressor->decisions()[i].matrix.elements();
    auto& state = store.try_emplace(names[i], FeedbackState{.elements = elements}).first->second;
    if (state.elements != elements) {
      return Status(Code::invalid, concat("state_shape_mismatch: ", names[i], " has ", elements,
                                          " elements, but its error feedback state has ", state.elements));
    }
    states.push_back(&state);
  }
  return std::unique_ptr<ErrorFeedback>(new ErrorFeedback(options, std::move(compressor), std::move(states), spares));
}

bool ErrorFeedback::started() const {
  if (options_.kind != Feedback::ef21m) return true;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (elements(i) > 0 && (states_[i]->momentum.empty() || (tracked(i) && states_[i]->known.empty()))) return false;
  }
  return true;
}

// Allocates all memory that the step needs before anything changes. If memory runs out here, the step can still be abandoned.
void ErrorFeedback::reserve() {
  inputs_.clear();
  inputs_.reserve(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    if (options_.kind == Feedback::ef21m) {
      state.momentum.reserve(elements(i));
      if (tracked(i)) state.known.reserve(elements(i)), state.mean.reserve(elements(i));
    } else if (options_.kind == Feedback::ef14 && !is_whole()) {
      if (uses_next_residual(i) && next_residuals_[i].empty()) next_residuals_[i] = spares_.take(elements(i));
      if (options_.lossy && decision(i).treatment == Treatment::dense) state.residual.reserve(elements(i));
      cleared_[i].reserve(decision(i).matrix.rows);
    }
    state.warm.reserve(decision(i).factors * decision(i).matrix.columns);
  }
}

// EF21M: replaces each gradient with its new running mean. finish() or abandon() stores this mean in the state. (EF14 adds its
// residuals later, while the compressor computes the sketch.)
void ErrorFeedback::apply_momentum() {
  if (options_.kind != Feedback::ef21m) return;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto& momentum = states_[i]->momentum;
    for (size_t k = 0; k < momentum.size(); ++k)
      gradients_[i][k] = (1 - options_.eta) * momentum[k] + options_.eta * gradients_[i][k];
  }
}

// If the tensors are adjacent in memory, they are averaged in place. But if the step includes residuals or running means,
// copies are averaged, because a failed all-reduce would destroy the originals.
std::span<float> ErrorFeedback::pack_whole() {
  with_residual_ = sending_ != Sending::plain &&
                   std::any_of(states_.begin(), states_.end(), [](const auto* state) { return !state->residual.empty(); });
  const float* next = nullptr;
  bool neighbours = true;
  size_t all = 0;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (elements(i) == 0) continue;
    neighbours = neighbours && (next == nullptr || next == gradients_[i]);
    if (all == 0) whole_ = {gradients_[i], 0};
    next = gradients_[i] + elements(i);
    all += elements(i);
  }
  if (all == 0) return whole_ = {};
  in_place_ = neighbours && (sending_ == Sending::plain || options_.kind != Feedback::ef21m) && !with_residual_;
  if (in_place_) return whole_ = {whole_.data(), all};
  copies_.clear();
  copies_.reserve(all);
  for (size_t i = 0; i < gradients_.size(); ++i) copies_.insert(copies_.end(), gradients_[i], gradients_[i] + elements(i));
  return whole_ = copies_;
}

std::span<float> ErrorFeedback::begin(uint64_t step, std::span<float* const> gradients, Sending sending) {
  UNISONO_CHECK(gradients.size() == states_.size());
  std::copy(gradients.begin(), gradients.end(), gradients_.begin());
  in_place_ = false;
  sending_ = sending == Sending::compressed && !started() ? Sending::whole : sending;
  if (is_whole() || options_.lossy || !compressor_->sends_rows()) settle();
  // A compressed step frees the copies that an uncompressed step made, because they are large and uncompressed steps are rare.
  if (!is_whole()) copies_ = std::vector<float>(), whole_ = {};
  // From here on, the last step can no longer be taken back.
  unsettled_ = false;
  added_ = committed_ = finished_ = false;
  if (sending_ == Sending::plain) return pack_whole();
  reserve();
  apply_momentum();
  size_t all = 0;
  for (size_t i = 0; i < states_.size(); ++i) all += sizeof(float) * elements(i);
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto& residual = options_.kind == Feedback::ef21m ? states_[i]->known : states_[i]->residual;
    inputs_.push_back({.values = gradients_[i],
                       .moved = uses_next_residual(i) ? next_residuals_[i].data() : nullptr,
                       .far = all > near_bytes,
                       .residual = residual.empty() ? nullptr : residual.data(),
                       .difference = options_.kind == Feedback::ef21m,
                       .cleared = cleared_[i].empty() ? nullptr : cleared_[i].data(),
                       .warm = &states_[i]->warm});
  }
  added_ = true;
  if (!is_whole()) return compressor_->begin(step, inputs_);
  for (size_t i = 0; i < states_.size(); ++i) {
    for (size_t k = 0; inputs_[i].residual != nullptr && !inputs_[i].difference && k < elements(i); ++k)
      gradients_[i][k] += inputs_[i].residual[k];
  }
  return pack_whole();
}

Status ErrorFeedback::choose() { return is_whole() ? Status() : compressor_->choose(); }

std::span<float> ErrorFeedback::pack() {
  if (is_whole()) return {};
  std::vector<const float*> values;
  for (size_t i = 0; i < gradients_.size(); ++i)
    values.push_back(uses_next_residual(i) ? next_residuals_[i].data() : gradients_[i]);
  packed_ = compressor_->pack(values);
  if (options_.lossy && options_.kind == Feedback::ef21m) {
    for_each_piece([&](size_t i, size_t offset, std::span<float> piece) {
      for (size_t k = 0; tracked(i) && k < piece.size(); ++k) piece[k] -= states_[i]->known[offset + k];
    });
  }
  return packed_;
}

Result<std::span<float>> ErrorFeedback::next() {
  if (auto status = choose(); !status.ok()) return status;
  return pack();
}

std::span<float> ErrorFeedback::encode_errors() {
  if (is_whole() || !options_.lossy || options_.kind == Feedback::none) return {};
  encode_errors_.resize(packed_.size());
  return encode_errors_;
}

// Calls does(tensor, offset, piece) for each piece of the second buffer that holds elements of a tensor. A piece is one row of
// a compressed tensor, or all of a dense tensor. `offset` is where the piece begins in the tensor.
template <typename Does>
void ErrorFeedback::for_each_piece(Does does) const {
  float* at = packed_.data();
  for (size_t i = 0; i < states_.size(); ++i) {
    const size_t columns = decision(i).matrix.columns;
    for (const size_t row : compressor_->rows(i)) does(i, row * columns, std::span(at, columns)), at += columns;
  }
  at = packed_.data() + compressor_->dense_offset();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (decision(i).treatment == Treatment::dense) does(i, 0, std::span(at, elements(i))), at += elements(i);
  }
}

// EF21M: updates `known` and `mean`. `known` is the copy of this rank's running mean that the other ranks hold. `mean` is the
// mean of `known` over all ranks.
void ErrorFeedback::commit_difference() {
  output_energy_ = 0;
  for_each_piece([&](size_t i, size_t offset, std::span<float> piece) {
    auto& state = *states_[i];
    const float* const values = gradients_[i] + offset;
    if (!tracked(i)) return;
    if (options_.lossy) {
      const float* const lost = encode_errors_.data() + (piece.data() - packed_.data());
      for (size_t k = 0; k < piece.size(); ++k) {
        float& known = state.known[offset + k];
        known += (values[k] - known) - lost[k];
        state.mean[offset + k] += piece[k];
      }
    } else {
      std::copy_n(values, piece.size(), state.known.begin() + static_cast<std::ptrdiff_t>(offset));
      std::copy(piece.begin(), piece.end(), state.mean.begin() + static_cast<std::ptrdiff_t>(offset));
    }
  });
  for (size_t i = 0; i < states_.size(); ++i) states_[i]->momentum.assign(gradients_[i], gradients_[i] + elements(i));
  for_each_piece([&](size_t i, size_t offset, std::span<float> piece) {
    if (!tracked(i)) std::copy(piece.begin(), piece.end(), gradients_[i] + offset);
  });
  for (size_t i = 0; i < states_.size(); ++i) {
    if (tracked(i)) std::copy(states_[i]->mean.begin(), states_[i]->mean.end(), gradients_[i]);
    output_energy_ += energy({gradients_[i], elements(i)});
  }
}

// Ends a step with EF14 or without feedback. With EF14, the step can still be taken back until settle(), so all values are
// kept, even those that were sent.
void ErrorFeedback::commit_values() {
  // With PowerSGD, this is the energy of the average: the first factor is orthonormal, so the second factor has all the energy.
  output_energy_ = energy(packed_);
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    if (uses_next_residual(i)) {
      state.residual.swap(next_residuals_[i]);
      spares_.give(std::exchange(next_residuals_[i], {}));
      if (!compressor_->sends_rows()) continue;
      cleared_[i].assign(decision(i).matrix.rows, 0);
      for (const size_t row : compressor_->rows(i)) cleared_[i][row] = 1;
    } else if (options_.kind == Feedback::ef14 && options_.lossy && decision(i).treatment == Treatment::dense) {
      state.residual.assign(gradients_[i], gradients_[i] + elements(i));
      cleared_[i].assign(decision(i).matrix.rows, 1);
    } else {
      state.residual = std::vector<float>();  // If the tensor was compressed in an earlier step, this frees its residual.
      if (compressed(i)) std::fill_n(gradients_[i], elements(i), 0.0f);
    }
  }
  unsettled_ = committed_ = options_.kind == Feedback::ef14;
  for (size_t i = 0; i < states_.size(); ++i) outputs_[i] = compressed(i) ? gradients_[i] : nullptr;
  compressor_->unpack(outputs_);
  // For each dense tensor, swaps its averages with this rank's contributions. The contributions stay in the buffer until the
  // next step, because abandon() may need them.
  for_each_piece([&](size_t i, size_t, std::span<float> piece) {
    if (!compressed(i)) std::swap_ranges(piece.begin(), piece.end(), gradients_[i]);
  });
}

void ErrorFeedback::commit_whole() {
  const float* mean = whole_.data();
  output_energy_ = sending_ == Sending::whole ? energy(whole_) : 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    const size_t count = elements(i);
    if (sending_ == Sending::whole) state.residual = std::vector<float>();
    if (sending_ == Sending::whole && options_.kind == Feedback::ef21m) {
      state.momentum.assign(gradients_[i], gradients_[i] + count);
      if (tracked(i)) state.known = state.momentum, state.mean.assign(mean, mean + count);
    }
    if (mean != gradients_[i]) std::copy_n(mean, count, gradients_[i]);
    mean += count;
  }
}

Status ErrorFeedback::finish() {
  if (is_whole()) {
    // Like an ordinary all-reduce, a `plain` step accepts values that are not finite.
    if (sending_ == Sending::whole && !all_finite(whole_)) return not_finite("the average");
    commit_whole();
  } else {
    if (auto status = compressor_->accept(); !status.ok()) return status;
    if (options_.kind == Feedback::ef21m) commit_difference();
    else commit_values();
  }
  finished_ = true;
  return {};
}

void ErrorFeedback::abandon() {
  // If the step fails, some ranks may have its averages while others do not, so their warm starts would differ. Therefore every
  // rank that sees the failure drops its warm start.
  for (size_t i = 0; !is_whole() && i < states_.size(); ++i) states_[i]->warm.clear();
  if (finished_) {
    step_skipped();
    if (options_.kind != Feedback::ef14 || is_whole() || options_.lossy) return;
    return for_each_piece([&](size_t i, size_t, std::span<float> piece) {
      if (!compressed(i)) try_assign(states_[i]->residual, piece);
    });
  }
  if (sending_ == Sending::plain || (is_whole() && in_place_)) return;
  if (!added_) settle(), apply_momentum();
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& state = *states_[i];
    float* const values = gradients_[i];
    const bool moved = added_ && uses_next_residual(i);
    for (size_t k = 0; !added_ && k < state.residual.size(); ++k) values[k] += state.residual[k];
    // If a residual contained a value that is not finite, it would never become finite again. Therefore such values are not
    // kept.
    if (!all_finite({moved ? next_residuals_[i].data() : values, elements(i)})) continue;
    if (options_.kind == Feedback::ef14) {
      if (moved) state.residual.swap(next_residuals_[i]);
      if (moved || try_assign(state.residual, {values, elements(i)})) cleared_[i].clear();
    }
    if (options_.kind == Feedback::ef21m && !state.momentum.empty()) try_assign(state.momentum, {values, elements(i)});
  }
}

void ErrorFeedback::step_skipped() {
  if (options_.kind != Feedback::ef14) return;
  if (unsettled_) {
    for (auto& rows : cleared_) rows.clear();
    unsettled_ = false;
    return;
  }
  const float* mean = whole_.data();
  for (size_t i = 0; is_whole() && with_residual_ && i < states_.size(); mean += elements(i), ++i) {
    if (compressed(i)) states_[i]->residual.assign(mean, mean + elements(i));
  }
}

void ErrorFeedback::used_by_others() {
  if (options_.kind != Feedback::ef14 || sending_ == Sending::plain) return;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (is_whole()) states_[i]->residual = std::vector<float>();
    cleared_[i].clear();
    if (states_[i]->residual.empty()) continue;
    if (compressed(i) && !compressor_->sends_rows()) {
      if (!committed_ && !is_whole()) compressor_->subtract_sent(i, states_[i]->residual.data(), false);
      continue;
    }
    cleared_[i].assign(decision(i).matrix.rows, compressed(i) ? 0 : 1);
    for (const size_t row : compressor_->rows(i)) cleared_[i][row] = 1;
  }
  unsettled_ = committed_;  // settle() needs the encoding errors. They are known only if finish() has run.
}

void ErrorFeedback::settle() {
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& residual = states_[i]->residual;
    const size_t columns = decision(i).matrix.columns;
    for (size_t row = 0; row < cleared_[i].size(); ++row) {
      if (cleared_[i][row] != 0) std::fill_n(residual.begin() + static_cast<std::ptrdiff_t>(row * columns), columns, 0.0f);
    }
    cleared_[i].clear();
    if (unsettled_ && !compressor_->sends_rows() && !residual.empty()) compressor_->subtract_sent(i, residual.data(), true);
  }
  if (unsettled_ && options_.lossy) {
    for_each_piece([&](size_t i, size_t offset, std::span<float> piece) {
      std::copy_n(encode_errors_.data() + (piece.data() - packed_.data()), piece.size(),
                  states_[i]->residual.begin() + static_cast<std::ptrdiff_t>(offset));
    });
  }
  unsettled_ = false;
}

void ErrorFeedback::forget() {
  for (auto* state : states_) *state = {.elements = state->elements};
  for (auto& rows : cleared_) rows.clear();
  unsettled_ = false;
}

}  // namespace unisono

#include "training/reducer/reducer.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"
#include "base/random.h"
#include "compressors/energy.h"
#include "training/reducer/compression_rules.h"
#include "training/reducer/feedback_checkpoint.h"

namespace unisono::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Method = Compression::Method;

constexpr uint64_t growth_period = 64;  // Gradient norms are measured once in this many steps.
// The ranks decide together whether to switch compression off (auto_off). This decision needs its own all-reduce. The call id
// of this all-reduce contains the number below, which is larger than the number of any bucket.
constexpr uint64_t decision_id = 0xFFFFF;

// The text is so short that it needs no allocation.
Status no_memory() { return {Code::unavailable, "out of memory"}; }

int64_t us_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
}

}  // namespace

// Returns the next bucket of the step. If the last step had a bucket with this number and the same tensors, it is used again.
// Otherwise the function makes a new one.
Result<Bucket*> Reducer::bucket_of(std::vector<uint32_t> tensors) {
  const auto number = static_cast<uint32_t>(submitted_.size());
  if (const auto found = buckets_.find(number); found != buckets_.end() && found->second.tensors == tensors)
    return &found->second;
  // Buckets of earlier steps may contain these tensors. When such a bucket is destroyed, it writes its residuals to the store.
  // The new bucket finds them there by the names of the tensors.
  buckets_.erase(buckets_.lower_bound(number), buckets_.end());
  std::vector<GroupTensor> members;
  std::vector<std::string> names;
  const auto rule = row_rule(compression_, bucket_ratio_);
  uint64_t digest = mix64(static_cast<uint64_t>(rule.ratio_ppm));
  for (const auto tensor : tensors) {
    members.push_back({.number = tensor, .shape = parameters_[tensor].shape});
    names.push_back(parameters_[tensor].name);
    digest = mix64(digest ^ tensor);
  }
  const uint32_t side_value_count = compression_.sketch.is_plain() ? side_values_per_rank * world_ : 0;
  auto compressor = make_compressor(compression_, bucket_ratio_, number, std::move(members), side_value_count);
  if (!compressor.ok()) return compressor.status();
  auto feedback =
      ErrorFeedback::make(feedback_options(compression_), *std::move(compressor), std::move(names), store_, &spares_);
  if (!feedback.ok()) return feedback.status();
  Bucket bucket;
  bucket.number = number;
  bucket.tensors = std::move(tensors);
  bucket.digest = digest;
  bucket.feedback = *std::move(feedback);
  const auto decisions = bucket.feedback->compressor().decisions();
  if (uses_auto_off())
    bucket.off =
        !predict(rates_, rule, decisions, compression_.method != Method::random_k, bytes_per_value(compression_.values)).pays();
  return &(buckets_[number] = std::move(bucket));
}

void Reducer::begin_step() {
  started_ = Clock::now();
  last_buckets_.clear(), failed_buckets_.clear();
  const double ratio = ratio_at(compression_, step_);
  if (ratio != bucket_ratio_) buckets_.clear();
  bucket_ratio_ = ratio;
  sending_ = compression_.method == Method::dense ? Sending::plain : flush_ ? Sending::whole : auto_off_.next(step_);
  flush_ = false;
  pipeline_->begin_step(step_, ++round_);
}

void Reducer::add_side_values(Bucket& bucket) {
  if (bucket.sending != Sending::compressed || !compression_.sketch.is_plain()) return;
  bucket.side_values.assign(size_t{side_values_per_rank} * world_, 0.0f);
  if (step_ % growth_period != 0) return;
  double all = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i)
    all += energy({bucket.gradients[i], bucket.feedback->compressor().decisions()[i].matrix.elements()});
  bucket.side_values[2 * rank_ + 1] = static_cast<float>(all);
}

Status Reducer::reduce(std::span<const Gradient> bucket) {
  try {
    return add_bucket(bucket);
  } catch (const std::bad_alloc&) {
    refused_ = pipeline_ != nullptr;
    return no_memory();
  }
}

Status Reducer::add_bucket(std::span<const Gradient> bucket) {
  std::vector<uint32_t> tensors;
  std::vector<float*> values;
  for (const auto& gradient : bucket) {
    const auto found = numbers_.find(gradient.name);
    const std::string name(gradient.name);
    if (found == numbers_.end()) return {Code::invalid, "bad_option: there is no parameter " + name};
    if (seen_[found->second] || std::count(tensors.begin(), tensors.end(), found->second) > 0)
      return {Code::invalid, "bad_option: the gradient of " + name + " was given twice in one step"};
    if (gradient.values == nullptr && matrix_of(parameters_[found->second].shape).elements() > 0)
      return {Code::invalid, "bad_option: the gradient of " + name + " is a null pointer"};
    tensors.push_back(found->second);
    values.push_back(gradient.values);
  }
  if (pipeline_ == nullptr) return reduce_alone(tensors, values), Status();
  if (tensors.empty()) return {};
  if (submitted_.size() >= decision_id / 2)
    return {Code::invalid, concat("bad_option: more than ", decision_id / 2, " buckets in a step")};
  if (!std::exchange(begun_, true)) begin_step();
  auto found = bucket_of(std::move(tensors));
  if (!found.ok()) return found.status();
  submit(**found, std::move(values));
  return {};
}

void Reducer::submit(Bucket& next, std::vector<float*> values) {
  submitted_.reserve(submitted_.size() + 1);
  next.sending = !next.off ? sending_ : first_after_resume_ ? Sending::whole : Sending::plain;
  next.gradients = std::move(values);
  next.side_values.clear();
  next.status = {};
  next.finite = true;
  next.costs = {};
  add_side_values(next);
  pipeline_->submit(next);
  submitted_.push_back(&next);
  for (const auto tensor : next.tensors) seen_[tensor] = true;
}

// Returns 0 if the method does not send rows.
double Reducer::reported_ratio() const { return compression_.method == Method::power_sgd ? 0 : ratio_at(compression_, step_); }

CompressionReport Reducer::report_of(const std::vector<Bucket*>& buckets) {
  CompressionReport report{.step = step_, .ratio = reported_ratio(), .rank = compression_.rank};
  double captured = 0, out = 0;
  size_t known = 0, off = 0;
  for (const auto* bucket : buckets) {
    add(report.costs, bucket->costs);
    const bool compresses = !bucket->feedback->is_whole();
    for (const auto& decision : bucket->feedback->compressor().decisions()) {
      if (decision.treatment == Treatment::skipped) continue;
      report.elements += decision.matrix.elements();
      ++(compresses && decision.treatment == Treatment::compressed ? report.compressed : report.whole);
    }
    off += bucket->off;
    out += bucket->feedback->output_energy();
    if (const double share = bucket->feedback->compressor().captured(); compresses && bucket->finite && share >= 0)
      captured += share, ++known;
  }
  report.output_norm = std::sqrt(out);
  if (known > 0) report.captured = captured / static_cast<double>(known);
  auto norms = exchanged_norms(buckets, world_);
  for (const double norm : norms.residual)
    report.residual_norm_mean += norm / world_, report.residual_norm_max = std::max(report.residual_norm_max, norm);
  if (!norms.residual.empty()) residual_norms_ = std::move(norms.residual);
  for (const auto& [name, state] : store_) report.state_bytes += state.bytes();
  report.buffer_bytes = spares_.bytes();
  for (const auto& [number, bucket] : buckets_) report.buffer_bytes += bucket.feedback->buffer_bytes();
  if (auto_off_.off()) report.off = auto_off_.reason();
  else if (off > 0)
    report.off =
        concat(off, " of ", buckets.size(),
               " buckets are sent whole: by the measured rates of links and memory, compression would take more than 0.97 of "
               "the time without it");
  warnings_.add_warnings(report, compression_, norms.longest_gradient);
  return report;
}

// Returns a report in which only the fields are set that are known without looking at buckets.
CompressionReport Reducer::brief_report() const {
  return {.step = step_, .ratio = reported_ratio(), .rank = compression_.rank, .off = {}};
}

Result<CompressionReport> Reducer::finish() {
  const bool refused = std::exchange(refused_, false);
  begun_ = false;
  if (submitted_.empty() && refused) return no_memory();
  if (submitted_.empty()) {
    auto report = brief_report();
    parameter_steps_ = static_cast<int64_t>(++step_);
    ++total_.step;
    return report;
  }
  const auto entered = Clock::now();
  auto buckets = wait_for_buckets();
  Status failure = refused ? no_memory() : Status();
  bool finite = true;
  for (auto* bucket : buckets) {
    if (failure.ok() && !bucket->status.ok()) failure = std::move(bucket->status);
    finite = finite && bucket->finite;
  }
  if (!failure.ok()) return abort_step(std::move(buckets)), failure;
  if (!finite) undo_step(buckets, false);
  auto report = brief_report();
  try {
    report = report_of(buckets);
    // Out of memory: the brief report is kept. The step itself succeeded, and the other ranks continue from its result, so it
    // must not fail here.
  } catch (const std::bad_alloc&) {}
  report.applied = finite;
  report.wait_us = us_since(entered);
  report.total_us = us_since(started_);
  if (auto status = end_step(report); !status.ok()) {
    if (finite) abort_step(std::move(buckets));
    return status;
  }
  if (finite) last_buckets_ = std::move(buckets), used_step_ = report.step;
  return report;
}

// Waits until all all-reduces have ended, and returns the buckets of the step.
std::vector<Bucket*> Reducer::wait_for_buckets() {
  pipeline_->finish();
  seen_.assign(seen_.size(), false);
  return std::exchange(submitted_, {});
}

void Reducer::abort_step(std::vector<Bucket*> buckets) {
  undo_step(buckets, true);
  failed_buckets_ = std::move(buckets);
}

// Undoes the step in all its buckets. If `failed` is true, some bucket failed. If it is false, some bucket has values that are
// not finite.
void Reducer::undo_step(const std::vector<Bucket*>& buckets, bool failed) {
  for (auto* bucket : buckets) {
    if (!failed && bucket->finite) bucket->feedback->step_skipped();
    else if (bucket->finite) bucket->feedback->abandon();
    else if (!failed && compression_.on_nonfinite == Compression::OnNonfinite::poison) {
      for (size_t i = 0; i < bucket->gradients.size(); ++i)
        std::fill_n(bucket->gradients[i], bucket->feedback->compressor().decisions()[i].matrix.elements(), NAN);
    }
  }
}

Status Reducer::end_step(CompressionReport& report) try {
  const auto us = static_cast<double>(last_end_ ? us_since(*last_end_) : report.total_us);
  if (const auto own_medians = auto_off_.record_step(step_, sending_, us)) {
    float medians[] = {static_cast<float>(own_medians->whole_us), static_cast<float>(own_medians->compressed_us)};
    const auto averaged = pipeline_->group().all_reduce(
        std::span<float>(medians), {.op = ReduceOp::avg, .id = round_ << 20 | decision_id, .codec = Codec{}});
    if (!averaged.ok()) return averaged.status();
    auto_off_.decide({.whole_us = medians[0], .compressed_us = medians[1]});
    if (auto_off_.off()) report.off = auto_off_.reason(), forget_ = true, flush_ = sending_ == Sending::compressed;
  } else if (forget_ && sending_ != Sending::compressed) {
    forget_ = false;
    for (auto& [number, bucket] : buckets_) bucket.feedback->forget();
  }
  last_end_ = Clock::now();
  parameter_steps_ = static_cast<int64_t>(++step_);
  first_after_resume_ = false;
  add_to_total(report);
  return {};
} catch (const std::bad_alloc&) {  // Out of memory: the ranks could not decide whether compression goes on.
  return no_memory();
}

void Reducer::add_to_total(const CompressionReport& report) try {
  auto total = report;
  total.step = total_.step + 1;
  total.elements += total_.elements;
  total.total_us += total_.total_us;
  total.wait_us += total_.wait_us;
  add(total.costs, total_.costs);
  total.warnings.insert(total.warnings.begin(), total_.warnings.begin(), total_.warnings.end());
  total_ = std::move(total);
} catch (const std::bad_alloc&) {  // Out of memory: the totals do not include the numbers of this step.
  ++total_.step;
}

void Reducer::step_skipped() {
  used_step_.reset();
  // A bucket that was not part of the last step stays unchanged, because the averages of its own last step were used.
  for (auto* bucket : std::exchange(last_buckets_, {})) {
    if (bucket->sending != Sending::plain) bucket->feedback->step_skipped();
  }
}

// Returns a hash of the options, for checkpoints. It does not depend on the step.
uint64_t Reducer::options_digest() const {
  const auto feedback = feedback_options(compression_);
  return compression_.method == Method::power_sgd ? digest(power_options(compression_), feedback)
                                                  : digest(arc_options(compression_, compression_.ratio), feedback);
}

// Used if this rank is the only one: adds the residuals that remain from an earlier, larger group to the gradients.
void Reducer::reduce_alone(const std::vector<uint32_t>& tensors, const std::vector<float*>& values) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = store_.find(parameters_[tensors[i]].name);
    if (found == store_.end()) continue;
    auto& residual = found->second.residual;
    for (size_t k = 0; k < residual.size(); ++k) values[i][k] += residual[k];
    residual = std::vector<float>();
  }
}

Bytes Reducer::save() {
  if (begun_) return {};
  for (auto& [number, bucket] : buckets_) bucket.feedback->settle();
  FeedbackCheckpoint checkpoint{.world = world_, .rank = rank_, .options = options_digest(), .step = step_, .store = {}};
  // Swaps the store with the empty store of the checkpoint, so that the store need not be copied. The destructor swaps them
  // back, even if encode() throws std::bad_alloc.
  struct ScopedSwap {
    FeedbackStore &store, &to;
    ScopedSwap(FeedbackStore& owner, FeedbackStore& borrower) : store(owner), to(borrower) { to.swap(store); }
    ~ScopedSwap() { to.swap(store); }
  };
  const ScopedSwap swapped(store_, checkpoint.store);
  return encode(checkpoint);
}

Status Reducer::load(ByteView bytes) {
  if (begun_) return {Code::invalid, "load() in the middle of a step: call finish() first"};
  auto checkpoint = decode_checkpoint(bytes);
  if (!checkpoint.ok()) return checkpoint.status();
  if (auto status = unisono::check(*checkpoint, world_, rank_, options_digest()); !status.ok()) return status;
  for (const auto& [name, state] : checkpoint->store) {
    const auto found = numbers_.find(name);
    const uint64_t elements = found == numbers_.end() ? 0 : matrix_of(parameters_[found->second].shape).elements();
    if (state.elements != elements)
      return {Code::invalid,
              concat("state_shape_mismatch: ", name, " has ", elements, " elements, but the checkpoint has ", state.elements)};
    if (state.warm.empty()) continue;
    const auto decision =
        found == numbers_.end() ? Decision{} : decide(compression_, compression_.ratio, parameters_[found->second].shape);
    const uint64_t factor = decision.factors * decision.matrix.columns;
    if (state.warm.size() != factor)
      return {Code::invalid, concat("state_shape_mismatch: ", name, " has a factor of ", factor,
                                    " elements, but the checkpoint has ", state.warm.size())};
  }
  last_buckets_.clear(), failed_buckets_.clear();
  buckets_.clear();
  store_ = std::move(checkpoint->store);
  step_ = checkpoint->step;
  parameter_steps_ = static_cast<int64_t>(step_);
  return {};
}

}  // namespace unisono::internal

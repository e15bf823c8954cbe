#include "training/reducer/reducer.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "compressors/energy.h"
#include "training/reducer/compression_rules.h"
#include "training/reducer/feedback_checkpoint.h"

namespace unisono::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Method = Compression::Method;

constexpr uint64_t growth_period = 64;     // steps between two looks at how long gradients are
constexpr uint64_t decision_id = 0xFFFFF;  // beyond the buckets of a round

// Short enough to need no memory itself.
Status no_memory() { return {Code::unavailable, "out of memory"}; }

int64_t us_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
}

}  // namespace

// The next one of the step: as in the last one, or made anew.
Result<Bucket*> Reducer::bucket_of(std::vector<uint32_t> tensors) {
  const auto number = static_cast<uint32_t>(present_.size());
  if (const auto found = buckets_.find(number); found != buckets_.end() && found->second.tensors == tensors)
    return &found->second;
  // Others may have had these tensors: what they kept is settled before it is looked for by name.
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
  const uint32_t notes = compression_.sketch.is_plain() ? notes_per_rank * world_ : 0;
  auto compressor = make_compressor(compression_, bucket_ratio_, number, std::move(members), notes);
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
  if (weighs())
    bucket.off =
        !predict(rates_, rule, decisions, compression_.method != Method::random_k, bytes_per_value(compression_.values)).pays();
  return &(buckets_[number] = std::move(bucket));
}

void Reducer::begin_step() {
  started_ = Clock::now();
  last_.clear(), failed_.clear();
  const double ratio = ratio_at(compression_, step_);
  if (ratio != bucket_ratio_) buckets_.clear();
  bucket_ratio_ = ratio;
  sending_ = compression_.method == Method::dense ? Sending::plain : flush_ ? Sending::whole : auto_off_.next(step_);
  flush_ = false;
  pipeline_->begin_step(step_, ++round_);
}

void Reducer::add_notes(Bucket& bucket) {
  if (bucket.sending != Sending::compressed || !compression_.sketch.is_plain()) return;
  bucket.notes.assign(size_t{notes_per_rank} * world_, 0.0f);
  if (step_ % growth_period != 0) return;
  double all = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i)
    all += energy({bucket.gradients[i], bucket.feedback->compressor().decisions()[i].matrix.elements()});
  bucket.notes[2 * rank_ + 1] = static_cast<float>(all);
}

Status Reducer::reduce(std::span<const Gradient> bucket) {
  try {
    return give(bucket);
  } catch (const std::bad_alloc&) {
    refused_ = pipeline_ != nullptr;
    return no_memory();
  }
}

Status Reducer::give(std::span<const Gradient> bucket) {
  std::vector<uint32_t> tensors;
  std::vector<float*> values;
  for (const auto& gradient : bucket) {
    const auto found = numbers_.find(gradient.name);
    const std::string name(gradient.name);
    if (found == numbers_.end()) return {Code::invalid, "bad_option: there is no parameter " + name};
    if (seen_[found->second] || std::count(tensors.begin(), tensors.end(), found->second) > 0)
      return {Code::invalid, "bad_option: the gradient of " + name + " comes twice in a step"};
    if (gradient.values == nullptr && matrix_of(parameters_[found->second].shape).elements() > 0)
      return {Code::invalid, "bad_option: the gradient of " + name + " is nowhere"};
    tensors.push_back(found->second);
    values.push_back(gradient.values);
  }
  if (pipeline_ == nullptr) return deliver_alone(tensors, values), Status();
  if (tensors.empty()) return {};
  if (present_.size() >= decision_id / 2)
    return {Code::invalid, "bad_option: more than " + std::to_string(decision_id / 2) + " buckets in a step"};
  if (!std::exchange(begun_, true)) begin_step();
  auto found = bucket_of(std::move(tensors));
  if (!found.ok()) return found.status();
  submit(**found, std::move(values));
  return {};
}

void Reducer::submit(Bucket& next, std::vector<float*> values) {
  present_.reserve(present_.size() + 1);
  next.sending = !next.off ? sending_ : settling_ ? Sending::whole : Sending::plain;
  next.gradients = std::move(values);
  next.notes.clear();
  next.status = {};
  next.finite = true;
  next.costs = {};
  add_notes(next);
  pipeline_->submit(next);
  present_.push_back(&next);
  for (const auto tensor : next.tensors) seen_[tensor] = true;
}

// 0: no rows are sent.
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
  auto norms = noted_norms(buckets, world_);
  for (const double norm : norms.kept)
    report.residual_norm_mean += norm / world_, report.residual_norm_max = std::max(report.residual_norm_max, norm);
  if (!norms.kept.empty()) kept_norms_ = std::move(norms.kept);
  for (const auto& [name, state] : store_) report.state_bytes += state.bytes();
  report.buffer_bytes = spares_.bytes();
  for (const auto& [number, bucket] : buckets_) report.buffer_bytes += bucket.feedback->buffer_bytes();
  if (auto_off_.off()) report.off = auto_off_.reason();
  else if (off > 0)
    report.off = std::to_string(off) + " of " + std::to_string(buckets.size()) +
                 " buckets are sent whole: by what links and memory are measured to do, compression would take more than 0.97 "
                 "of the time";
  warnings_.look(report, compression_, norms.longest_gradient);
  return report;
}

// The fields of a report that are always known.
CompressionReport Reducer::brief_report() const {
  return {.step = step_, .ratio = reported_ratio(), .rank = compression_.rank, .off = {}};
}

Result<CompressionReport> Reducer::finish() {
  const bool refused = std::exchange(refused_, false);
  begun_ = false;
  if (present_.empty() && refused) return no_memory();
  if (present_.empty()) {
    auto report = brief_report();
    holds_ = static_cast<int64_t>(++step_);
    ++total_.step;
    return report;
  }
  const auto entered = Clock::now();
  auto buckets = end_buckets();
  Status failure = refused ? no_memory() : Status();
  bool finite = true;
  for (auto* bucket : buckets) {
    if (failure.ok() && !bucket->status.ok()) failure = std::move(bucket->status);
    finite = finite && bucket->finite;
  }
  if (!failure.ok()) return give_up(std::move(buckets)), failure;
  if (!finite) take_back(buckets, false);
  auto report = brief_report();
  try {
    report = report_of(buckets);
  } catch (const std::bad_alloc&) {  // the step is done all the same: other ranks go on from it
  }
  report.applied = finite;
  report.wait_us = us_since(entered);
  report.total_us = us_since(started_);
  if (auto status = end_step(report); !status.ok()) {
    if (finite) give_up(std::move(buckets));
    return status;
  }
  if (finite) last_ = std::move(buckets), used_ = report.step;
  return report;
}

// Waits for what is in flight.
std::vector<Bucket*> Reducer::end_buckets() {
  pipeline_->finish();
  seen_.assign(seen_.size(), false);
  return std::exchange(present_, {});
}

void Reducer::give_up(std::vector<Bucket*> buckets) {
  take_back(buckets, true);
  failed_ = std::move(buckets);
}

// A step that has failed in some of its buckets, or was not finite in some, is none in the others either.
void Reducer::take_back(const std::vector<Bucket*>& buckets, bool failed) {
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
  if (const auto question = auto_off_.took(step_, sending_, us)) {
    float medians[] = {static_cast<float>(question->whole_us), static_cast<float>(question->compressed_us)};
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
  holds_ = static_cast<int64_t>(++step_);
  settling_ = false;
  add_to_total(report);
  return {};
} catch (const std::bad_alloc&) {  // whether to go on compressing could not be settled
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
} catch (const std::bad_alloc&) {  // one step is missing in it
  ++total_.step;
}

void Reducer::step_skipped() {
  used_.reset();
  // Not of buckets that the last step did not have: theirs was an earlier one, and was used.
  for (auto* bucket : std::exchange(last_, {})) {
    if (bucket->sending != Sending::plain) bucket->feedback->step_skipped();
  }
}

// A checkpoint is compared by it. It does not depend on the step.
uint64_t Reducer::options_digest() const {
  const auto feedback = feedback_options(compression_);
  return compression_.method == Method::power_sgd ? digest(power_options(compression_), feedback)
                                                  : digest(arc_options(compression_, compression_.ratio), feedback);
}

// Nobody to average with: what is left over from a larger group joins the gradients.
void Reducer::deliver_alone(const std::vector<uint32_t>& tensors, const std::vector<float*>& values) {
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
  // No copy: the states stay where they are, also if there is no memory for the bytes.
  struct Lent {
    FeedbackStore &store, &to;
    Lent(FeedbackStore& owner, FeedbackStore& borrower) : store(owner), to(borrower) { to.swap(store); }
    ~Lent() { to.swap(store); }
  };
  const Lent lent(store_, checkpoint.store);
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
      return {Code::invalid, "state_shape_mismatch: " + name + " has " + std::to_string(elements) +
                                 " elements, and what was kept of it " + std::to_string(state.elements)};
    if (state.warm.empty()) continue;
    const auto decision =
        found == numbers_.end() ? Decision{} : decide(compression_, compression_.ratio, parameters_[found->second].shape);
    const uint64_t factor = decision.factors * decision.matrix.columns;
    if (state.warm.size() != factor)
      return {Code::invalid, "state_shape_mismatch: " + name + " has a factor of " + std::to_string(factor) +
                                 " elements, and what was kept of it " + std::to_string(state.warm.size())};
  }
  last_.clear(), failed_.clear();
  buckets_.clear();
  store_ = std::move(checkpoint->store);
  step_ = checkpoint->step;
  holds_ = static_cast<int64_t>(step_);
  return {};
}

}  // namespace unisono::internal

#include "training/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "compressors/energy.h"
#include "kernels/sketch.h"
#include "training/feedback_checkpoint.h"

namespace unisono {
namespace {

using Clock = std::chrono::steady_clock;
using Method = Compression::Method;

constexpr uint64_t growth_period = 64;     // steps between two looks at how long gradients are
constexpr double growth_limit = 100;       // a residual as many times as long as a gradient is told of
constexpr uint64_t decision_id = 0xFFFFF;  // beyond the buckets of a round

int64_t us_since(Clock::time_point start) { return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count(); }

// What a rank reads and writes in a second while it makes sketches, all ranks at once.
double memory_rate() {
  constexpr size_t rows = 1024, columns = 2048;
  constexpr uint32_t rank = 4;
  std::vector<float> values(rows * columns, 1.0f), residual(rows * columns, 1.0f), directions(rank * columns, 1.0f), sketch(rows * rank);
  const kernels::SketchTask task{.values = values.data(), .residual = residual.data(), .rows = rows, .columns = columns, .directions = directions.data(), .rank = rank, .sketch = sketch.data()};
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    kernels::sketch(task);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 3.0 * sizeof(float) * rows * columns / best;
}

// 0: the system does not say.
uint64_t free_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, rest; file >> key && std::getline(file, rest);) {
    if (key == "MemAvailable:") return std::strtoull(rest.c_str(), nullptr, 10) << 10;
  }
  return 0;
}

// Of one value that travels with the codec.
double bytes_per_value(const Codec& codec) {
  switch (codec.reduce.kind) {
    case StepCodec::Kind::plain: return 4;
    case StepCodec::Kind::quantize: return codec.reduce.bits / 8.0 + 4.0 / codec.reduce.group;
    default: return 2;
  }
}

uint64_t text_hash(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

void add(BucketCosts& to, const BucketCosts& costs) {
  to.sketch_us += costs.sketch_us;
  to.sketch_reduce_us += costs.sketch_reduce_us;
  to.select_us += costs.select_us;
  to.pack_us += costs.pack_us;
  to.value_reduce_us += costs.value_reduce_us;
  to.unpack_us += costs.unpack_us;
  to.payload_elements += costs.payload_elements;
  to.collectives += costs.collectives;
  to.sent_payload += costs.sent_payload;
  to.sent_headers += costs.sent_headers;
}

Status check(const std::vector<Parameter>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.empty()) return {Code::invalid, "bad_option: a parameter without a name"};
    if (i > 0 && parameters[i].name == parameters[i - 1].name) return {Code::invalid, "bad_option: two parameters are called " + parameters[i].name};
  }
  return {};
}

}  // namespace

std::string CompressionReport::to_string() const {
  char text[400];
  std::snprintf(text, sizeof text,
                "step %llu%s: %u compressed, %u whole; %llu of %llu values (%.3f), %llu collectives, %llu bytes sent; %.3f ms, of it %.3f waiting; captured %.3f, |out| %.4g, |e| mean %.4g max %.4g",
                static_cast<unsigned long long>(step), applied ? "" : " (skipped: not finite)", compressed, whole, static_cast<unsigned long long>(costs.payload_elements), static_cast<unsigned long long>(elements),
                payload_ratio(), static_cast<unsigned long long>(costs.collectives), static_cast<unsigned long long>(costs.sent_payload + costs.sent_headers), static_cast<double>(total_us) / 1000,
                static_cast<double>(wait_us) / 1000, captured, output_norm, residual_norm_mean, residual_norm_max);
  return text + (off.empty() ? std::string() : "; off: " + off);
}

GradientReducer::GradientReducer(Group group, std::vector<Parameter> parameters, const Compression& compression)
    : group_(std::move(group)), compression_(compression), parameters_(std::move(parameters)), seen_(parameters_.size()),
      auto_off_({.enabled = compression.auto_off && compression.method != Method::dense && group_.world_size() > 1, .start_step = compression.start_step}) {
  for (uint32_t i = 0; i < parameters_.size(); ++i) numbers_.emplace(parameters_[i].name, i);
}

Result<std::unique_ptr<GradientReducer>> GradientReducer::make(Group group, std::vector<Parameter> parameters, const Compression& compression) {
  if (auto status = compression.check(); !status.ok()) return status;
  std::sort(parameters.begin(), parameters.end(), [](const Parameter& a, const Parameter& b) { return a.name < b.name; });
  if (auto status = check(parameters); !status.ok()) return status;
  std::unique_ptr<GradientReducer> reducer(new GradientReducer(std::move(group), std::move(parameters), compression));
  if (auto status = reducer->meet(); !status.ok()) return status;
  return reducer;
}

// Finds out whether all ranks mean the same, and how quick links and memory are.
Status GradientReducer::meet() {
  if (group_.world_size() == 1) return {};
  std::vector<uint32_t> all(group_.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto group = Group(group_).split(all);
  if (!group.ok()) return group.status();
  auto shared = compression_;
  shared.adaptive_optimizer = false;
  uint64_t digest = text_hash(shared.to_string()) ^ mix64(text_hash(shared.values.to_string()) ^ mix64(text_hash(shared.sketch.to_string())));
  for (const auto& parameter : parameters_) {
    digest = mix64(digest ^ text_hash(parameter.name));
    for (const auto size : parameter.shape) digest = mix64(digest ^ size);
  }
  const auto met = group->barrier({.agreement = std::max<uint64_t>(1, digest)});
  if (!met.ok()) return met.status().code() == Code::invalid ? Status(Code::invalid, "config_mismatch: parameters or options of compression differ: " + met.status().message()) : met.status();
  if (compression_.auto_off && compression_.method != Method::dense) {
    float rate = static_cast<float>(memory_rate());
    if (auto averaged = group->all_reduce(std::span<float>(&rate, 1), {.op = ReduceOp::avg, .codec = Codec{}}); !averaged.ok()) return averaged.status();
    const auto speeds = group_.link_speeds();
    const auto members = group_.members();
    const bool several_hosts = std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.host != members[0].host; });
    const auto& link = several_hosts ? speeds.between_hosts : speeds.inside_hosts;
    rates_ = {.ranks = group_.world_size(), .latency_s = link.latency_us * 1e-6, .link_bytes_per_s = link.bytes_per_us * 1e6, .memory_bytes_per_s = rate};
  }
  ReductionPipeline::Calls calls;
  calls.sketch.codec = compression_.sketch;
  calls.values.codec = compression_.values;
  calls.values.schedule = compression_.values_schedule;
  // All ranks get the same bits in any order, and rings are among the quickest.
  calls.sketch.order = calls.values.order = Order::any;
  pipeline_ = std::make_unique<ReductionPipeline>(*std::move(group), calls);
  return {};
}

double GradientReducer::ratio_now() const {
  double ratio = compression_.ratio;
  for (const auto& entry : compression_.schedule) {
    if (entry.step <= step_) ratio = entry.ratio;
  }
  return ratio;
}

RowRule GradientReducer::rule_now() const {
  return {.ratio_ppm = *parts_per_million(ratio_now()), .rounding = compression_.round_down ? Rounding::down : Rounding::up, .rank = compression_.rank, .max_payload_ppm = *parts_per_million(compression_.max_payload), .min_elements = compression_.min_elements};
}

ArcOptions GradientReducer::arc_now() const { return {.rule = rule_now(), .seed = compression_.seed, .refresh_every = compression_.refresh_every, .random = compression_.method == Method::random_k}; }

FeedbackOptions GradientReducer::feedback_options() const {
  using enum Compression::Feedback;
  const auto kind = compression_.feedback == none ? Feedback::none : compression_.feedback == ef14 ? Feedback::ef14 : Feedback::ef21m;
  return {.kind = kind, .eta = compression_.feedback == ef21 ? 1 : compression_.eta, .lossy = !compression_.values.is_plain() && compression_.absorb_codec_error};
}

Decision GradientReducer::decision(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? Decision() : decide(rule_now(), parameters_[found->second].shape);
}

// The next one of the step: as in the last one, or made anew.
Result<Bucket*> GradientReducer::bucket_of(std::vector<uint32_t> tensors) {
  const auto number = static_cast<uint32_t>(present_.size());
  if (const auto found = buckets_.find(number); found != buckets_.end() && found->second.tensors == tensors) return &found->second;
  // Others may have had these tensors: what they kept is settled before it is looked for by name.
  buckets_.erase(buckets_.lower_bound(number), buckets_.end());
  std::vector<GroupTensor> members;
  std::vector<std::string> names;
  uint64_t digest = mix64(static_cast<uint64_t>(rule_now().ratio_ppm));
  for (const auto tensor : tensors) {
    members.push_back({.number = tensor, .shape = parameters_[tensor].shape});
    names.push_back(parameters_[tensor].name);
    digest = mix64(digest ^ tensor);
  }
  const uint32_t notes = compression_.sketch.is_plain() ? 2 * group_.world_size() : 0;
  auto compressor = make_arc_top_k(arc_now(), number, std::move(members), notes);
  if (!compressor.ok()) return compressor.status();
  auto feedback = ErrorFeedback::make(feedback_options(), *std::move(compressor), std::move(names), store_);
  if (!feedback.ok()) return feedback.status();
  Bucket bucket;
  bucket.number = number;
  bucket.tensors = std::move(tensors);
  bucket.digest = digest;
  bucket.feedback = *std::move(feedback);
  const auto decisions = bucket.feedback->compressor().decisions();
  if (compression_.auto_off && compression_.method != Method::dense) {
    bucket.off = !predict(rates_, rule_now(), decisions, compression_.method == Method::arc_top_k, bytes_per_value(compression_.values)).pays();
  }
  return &(buckets_[number] = std::move(bucket));
}

void GradientReducer::begin_step() {
  started_ = Clock::now();
  last_.clear();
  if (ratio_now() != bucket_ratio_) buckets_.clear();
  bucket_ratio_ = ratio_now();
  sending_ = compression_.method == Method::dense ? Sending::plain : flush_ ? Sending::whole : auto_off_.next(step_);
  flush_ = false;
  pipeline_->begin_step(step_, ++round_);
}

void GradientReducer::add_notes(Bucket& bucket) {
  if (bucket.sending != Sending::compressed || !compression_.sketch.is_plain()) return;
  bucket.notes.assign(size_t{2} * group_.world_size(), 0.0f);
  bucket.notes[2 * group_.rank()] = static_cast<float>(bucket.feedback->kept_energy());
  if (step_ % growth_period != 0) return;
  double all = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) all += energy({bucket.gradients[i], bucket.feedback->compressor().decisions()[i].matrix.elements()});
  bucket.notes[2 * group_.rank() + 1] = static_cast<float>(all);
}

Status GradientReducer::reduce(std::span<const Gradient> bucket) {
  std::vector<uint32_t> tensors;
  std::vector<float*> values;
  for (const auto& gradient : bucket) {
    const auto found = numbers_.find(gradient.name);
    const std::string name(gradient.name);
    if (found == numbers_.end()) return {Code::invalid, "bad_option: there is no parameter " + name};
    if (seen_[found->second] || std::count(tensors.begin(), tensors.end(), found->second) > 0) return {Code::invalid, "bad_option: the gradient of " + name + " comes twice in a step"};
    if (gradient.values == nullptr && matrix_of(parameters_[found->second].shape).elements() > 0) return {Code::invalid, "bad_option: the gradient of " + name + " is nowhere"};
    tensors.push_back(found->second);
    values.push_back(gradient.values);
  }
  if (pipeline_ == nullptr || tensors.empty()) return {};
  if (present_.size() >= decision_id / 2) return {Code::invalid, "bad_option: more than " + std::to_string(decision_id / 2) + " buckets in a step"};
  if (present_.empty()) begin_step();
  auto found = bucket_of(std::move(tensors));
  if (!found.ok()) return found.status();
  auto& next = **found;
  for (const auto tensor : next.tensors) seen_[tensor] = true;
  next.sending = next.off ? Sending::plain : sending_;
  next.gradients = std::move(values);
  next.notes.clear();
  next.status = {};
  next.finite = true;
  next.costs = {};
  add_notes(next);
  present_.push_back(&next);
  pipeline_->submit(next);
  return {};
}

// Sums over the buckets, of which each rank knows its own.
void GradientReducer::read_notes(const std::vector<Bucket*>& buckets, CompressionReport& report) {
  const size_t world = group_.world_size();
  std::vector<double> kept(world), gradient(world);
  for (const auto* bucket : buckets) {
    for (size_t r = 0; r < world && bucket->notes.size() == 2 * world; ++r) {
      kept[r] += static_cast<double>(bucket->notes[2 * r]) * static_cast<double>(world);
      gradient[r] += static_cast<double>(bucket->notes[2 * r + 1]) * static_cast<double>(world);
    }
  }
  for (auto& each : kept) report.residual_norm_mean += std::sqrt(each) / static_cast<double>(world), report.residual_norm_max = std::max(report.residual_norm_max, std::sqrt(each));
  const double longest = std::sqrt(*std::max_element(gradient.begin(), gradient.end()));
  warn(report, warned_growth_, longest > 0 && report.residual_norm_max > growth_limit * longest,
       "what is left over on a rank is more than 100 times as long as any gradient: rows that cancel out over the ranks are never sent; `refresh` sends each row now and then");
}

void GradientReducer::warn(CompressionReport& report, bool& given, bool when, std::string text) {
  if (given || !when) return;
  given = true;
  report.warnings.push_back(std::move(text));
}

CompressionReport GradientReducer::report_of(const std::vector<Bucket*>& buckets) {
  CompressionReport report{.step = step_, .ratio = ratio_now(), .rank = compression_.rank};
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
    if (const double share = bucket->feedback->compressor().captured(); compresses && bucket->finite && share >= 0) captured += share, ++known;
  }
  report.output_norm = std::sqrt(out);
  if (known > 0) report.captured = captured / static_cast<double>(known);
  read_notes(buckets, report);
  for (const auto& [name, state] : store_) report.state_bytes += sizeof(float) * (state.residual.size() + state.momentum.size() + state.known.size() + state.mean.size());
  if (auto_off_.off()) report.off = auto_off_.reason();
  else if (off > 0) report.off = std::to_string(off) + " of " + std::to_string(buckets.size()) + " buckets are sent whole: by what links and memory are measured to do, compression would take more than 0.97 of the time";
  using enum Compression::Feedback;
  const bool compressing = report.compressed > 0;
  warn(report, warned_none_, compressing && compression_.feedback == none, "without feedback the rows that are not sent are lost");
  warn(report, warned_adaptive_, compressing && compression_.adaptive_optimizer && (compression_.feedback == ef21 || compression_.feedback == ef21m),
       "ef21 and ef21m are for SGD: no theorem covers Adam, and a public run with AdamW (GPT-60M, one seed, eta 1) ended at perplexity 111.90 with EF21 where EF14 had 74.88 and dense 66.04");
  if (!warned_memory_ && report.state_bytes > 0) {
    const auto memory = free_memory_bytes();
    warn(report, warned_memory_, memory > 0 && report.state_bytes > memory / 4, "what is kept from step to step takes " + std::to_string(report.state_bytes >> 20) + " MB, more than a quarter of the memory that is free");
    warned_memory_ = true;
  }
  return report;
}

Result<CompressionReport> GradientReducer::finish() {
  if (present_.empty()) {
    CompressionReport report{.step = step_++, .ratio = ratio_now(), .rank = compression_.rank, .total_us = 0, .off = {}};
    ++total_.step;
    return report;
  }
  const auto entered = Clock::now();
  pipeline_->finish();
  const auto buckets = std::exchange(present_, {});
  seen_.assign(seen_.size(), false);
  Status failure;
  bool finite = true;
  for (const auto* bucket : buckets) {
    if (failure.ok() && !bucket->status.ok()) failure = bucket->status;
    finite = finite && bucket->finite;
  }
  for (auto* bucket : buckets) {
    if (failure.ok() && finite) break;
    if (bucket->status.ok() && bucket->finite) bucket->feedback->step_skipped();
    else if (bucket->finite) bucket->feedback->abandon();
    else if (failure.ok() && compression_.on_nonfinite == Compression::OnNonfinite::poison) {
      for (size_t i = 0; i < bucket->gradients.size(); ++i) std::fill_n(bucket->gradients[i], bucket->feedback->compressor().decisions()[i].matrix.elements(), NAN);
    }
  }
  if (!failure.ok()) return failure;
  auto report = report_of(buckets);
  report.applied = finite;
  if (finite) last_ = buckets;
  report.wait_us = us_since(entered);
  report.total_us = us_since(started_);
  if (auto status = end_step(report); !status.ok()) return status;
  return report;
}

Status GradientReducer::end_step(CompressionReport& report) {
  const auto us = static_cast<double>(last_end_ ? us_since(*last_end_) : report.total_us);
  if (const auto question = auto_off_.took(step_, sending_, us)) {
    float medians[] = {static_cast<float>(question->whole_us), static_cast<float>(question->compressed_us)};
    const auto averaged = pipeline_->group().all_reduce(std::span<float>(medians), {.op = ReduceOp::avg, .id = round_ << 20 | decision_id, .codec = Codec{}});
    if (!averaged.ok()) return averaged.status();
    auto_off_.decide({.whole_us = medians[0], .compressed_us = medians[1]});
    if (auto_off_.off()) report.off = auto_off_.reason(), forget_ = true, flush_ = sending_ == Sending::compressed;
  } else if (forget_ && sending_ != Sending::compressed) {
    forget_ = false;
    for (auto& [number, bucket] : buckets_) bucket.feedback->forget();
  }
  last_end_ = Clock::now();
  ++step_;
  auto total = report;
  total.step = total_.step + 1;
  total.elements += total_.elements;
  total.total_us += total_.total_us;
  total.wait_us += total_.wait_us;
  add(total.costs, total_.costs);
  total.warnings.insert(total.warnings.begin(), total_.warnings.begin(), total_.warnings.end());
  total_ = std::move(total);
  return {};
}

void GradientReducer::step_skipped() {
  // Not of buckets that the last step did not have: theirs was an earlier one, and was used.
  for (auto* bucket : std::exchange(last_, {})) {
    if (bucket->sending != Sending::plain) bucket->feedback->step_skipped();
  }
}

// Whatever the step: what a checkpoint is compared by.
uint64_t GradientReducer::options_digest() const {
  auto arc = arc_now();
  arc.rule.ratio_ppm = *parts_per_million(compression_.ratio);
  return digest(arc, feedback_options());
}

Bytes GradientReducer::save() {
  for (auto& [number, bucket] : buckets_) bucket.feedback->settle();
  FeedbackCheckpoint checkpoint{.world = group_.world_size(), .rank = group_.rank(), .options = options_digest(), .step = step_, .store = {}};
  // No copy: the states stay where they are.
  checkpoint.store.swap(store_);
  auto bytes = encode(checkpoint);
  checkpoint.store.swap(store_);
  return bytes;
}

Status GradientReducer::load(ByteView bytes) {
  auto checkpoint = decode_checkpoint(bytes);
  if (!checkpoint.ok()) return checkpoint.status();
  if (auto status = unisono::check(*checkpoint, group_.world_size(), group_.rank(), options_digest()); !status.ok()) return status;
  for (const auto& [name, state] : checkpoint->store) {
    const auto found = numbers_.find(name);
    const uint64_t elements = found == numbers_.end() ? 0 : matrix_of(parameters_[found->second].shape).elements();
    if (state.elements != elements) return {Code::invalid, "state_shape_mismatch: " + name + " has " + std::to_string(elements) + " elements, and what was kept of it " + std::to_string(state.elements)};
  }
  last_.clear();
  buckets_.clear();
  store_ = std::move(checkpoint->store);
  step_ = checkpoint->step;
  return {};
}

}  // namespace unisono

#include "lab/compressors/training_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace unisono::sim {
namespace {

constexpr uint64_t progress_every = 16;  // TrainingWatch::progress is called once in this many steps

// Decides after which steps to measure a value: for the result, and for the curve.
class Measurements {
 public:
  Measurements(const TrainingSettings& settings, uint64_t curve_points)
      : steps_(settings.steps),
        averaged_(facts_of(settings.problem).averaged),
        curve_every_(curve_points == 0 ? 0 : std::max<uint64_t>(1, settings.steps / curve_points)) {}

  bool counts(uint64_t step) const {
    return step > 0 && (steps_ - step) % averaged_every == 0 && (steps_ - step) / averaged_every < averaged_;
  }
  bool on_curve(uint64_t step) const { return curve_every_ > 0 && (step % curve_every_ == 0 || step == steps_); }

 private:
  const uint64_t steps_, averaged_, curve_every_;
};

}  // namespace

TrainingSettings specified_settings(ProblemKind problem) {
  const auto& facts = facts_of(problem);
  return {.problem = problem, .seed = facts.seed, .steps = facts.steps, .step_size = facts.step_size};
}

TrainingRanksOptions ranks_options(const TrainingSettings& settings) {
  return {.method = settings.method,
          .feedback = settings.feedback,
          .ranks = settings.ranks,
          .matrix = facts_of(settings.problem).matrix,
          .ratio_ppm = settings.ratio_ppm,
          .sketch_rank = settings.sketch_rank,
          .seed = settings.seed};
}

Result<TrainingOutcome> run_training(const TrainingSettings& settings, const TrainingWatch& watch) {
  const auto made = make_training_ranks(ranks_options(settings));
  if (!made.ok()) return made.status();
  auto& ranks = **made;
  const auto problem = make_problem(settings.problem, settings.ranks, settings.seed);
  const Measurements wanted(settings, watch.curve_points);
  std::vector<double> weights(facts_of(settings.problem).matrix.elements()), gradient(weights.size());
  TrainingOutcome outcome;
  double sum = 0;
  uint32_t counted = 0;
  for (uint64_t step = 0;; ++step) {
    if (wanted.counts(step) || wanted.on_curve(step)) {
      const double value = problem->measure(weights);
      if (!std::isfinite(value)) outcome.diverged_in = step;
      else if (wanted.on_curve(step)) outcome.curve.push_back({step, value});
      if (wanted.counts(step)) sum += value, ++counted;
    }
    if (step == settings.steps || outcome.diverged_in) break;
    for (uint32_t i = 0; i < settings.ranks; ++i) {
      problem->gradient(weights, step, i, gradient);
      ranks.set_gradient(i, gradient);
    }
    const auto out = ranks.step(step);
    if (!out.ok()) {
      outcome.diverged_in = step;
      break;
    }
    for (size_t k = 0; k < weights.size(); ++k) weights[k] -= settings.step_size * (*out)[k];
    if (watch.progress && (step + 1) % progress_every == 0) watch.progress(progress_every);
  }
  outcome.value = outcome.diverged_in ? std::numeric_limits<double>::quiet_NaN() : sum / counted;
  return outcome;
}

namespace {

// One column in a table of the values that arc_top_k.md specifies.
struct Column {
  Method method;
  uint32_t sketch_rank = 0;  // only for Method::arc; values are specified only for this sketch rank
};
constexpr Column quadratic_columns[] = {{Method::arc, 4}, {Method::exact}, {Method::random_k}, {Method::top_k}};
constexpr Column softmax_columns[] = {{Method::arc, 4}, {Method::arc, 1},   {Method::arc, 16},
                                      {Method::exact},  {Method::random_k}, {Method::top_k}};

template <size_t columns>
struct Row {
  Feedback kind;
  float eta;
  double tolerance;
  double values[columns];
};
constexpr float any_eta = 0;

// These values are from check 25 of docs/design/methods/arc_top_k.md. The tolerances are relative.
constexpr double quadratic_tolerance = .01;
constexpr double quadratic_dense = 2.3325e-3;
constexpr Row<4> quadratic_rows[] = {{Feedback::none, any_eta, quadratic_tolerance, {.4953, .4947, .5174, .7983}},
                                     {Feedback::ef14, any_eta, quadratic_tolerance, {1.474e-3, 1.512e-3, 7.78e-4, .04159}},
                                     {Feedback::ef21m, 1, quadratic_tolerance, {1.360e-3, 1.392e-3, 6.39e-4, 1.782e-3}}};
// These values are from check 26 of docs/design/methods/arc_top_k.md. The tolerances are absolute. The value .792 (EF21 with
// top_k) holds only if, on each rank, the gradients of all classes without samples are exactly equal. If rounding makes these
// gradients differ, the value is .796 +- .03.
constexpr double softmax_dense = .5804, softmax_dense_tolerance = .001;
constexpr Row<6> softmax_rows[] = {{Feedback::ef14, any_eta, .001, {.5809, .5810, .5809, .5808, .5811, .5804}},
                                   {Feedback::ef21m, .1f, .001, {.5787, .5787, .5800, .5833, .5810, .5836}},
                                   {Feedback::ef21m, 1, .01, {.678, .629, .740, .893, .846, .792}},
                                   {Feedback::none, any_eta, .01, {.673, .647, .694, .714, 1.321, .629}}};

template <size_t rows, size_t columns>
std::optional<SpecifiedValue> find(const TrainingSettings& s, const Row<columns> (&table)[rows],
                                   const Column (&heads)[columns]) {
  for (const auto& row : table) {
    if (row.kind != s.feedback.kind || (row.eta != any_eta && row.eta != s.feedback.eta)) continue;
    for (size_t c = 0; c < columns; ++c) {
      if (heads[c].method == s.method && (s.method != Method::arc || heads[c].sketch_rank == s.sketch_rank))
        return SpecifiedValue{row.values[c], row.tolerance};
    }
  }
  return std::nullopt;
}

uint64_t kept(const TrainingSettings& s) { return kept_rows({.ratio_ppm = s.ratio_ppm}, facts_of(s.problem).matrix.rows); }

}  // namespace

std::optional<SpecifiedValue> specified_value(const TrainingSettings& settings) {
  const auto specified = specified_settings(settings.problem);
  const bool same = settings.ranks == specified.ranks && settings.seed == specified.seed && settings.steps == specified.steps &&
                    settings.step_size == specified.step_size;
  if (!same || (settings.method != Method::dense && kept(settings) != kept(specified))) return std::nullopt;
  if (settings.problem == ProblemKind::softmax) {
    return settings.method == Method::dense ? SpecifiedValue{softmax_dense, softmax_dense_tolerance}
                                            : find(settings, softmax_rows, softmax_columns);
  }
  auto found = settings.method == Method::dense ? SpecifiedValue{quadratic_dense, quadratic_tolerance}
                                                : find(settings, quadratic_rows, quadratic_columns);
  if (found) found->tolerance *= found->value;
  return found;
}

}  // namespace unisono::sim

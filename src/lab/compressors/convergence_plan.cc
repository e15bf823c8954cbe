#include "lab/compressors/convergence_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/common/threads.h"
#include "sim/settings_text.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::check_progress;
using cli::CommandLineText;
using cli::invalid;
using cli::jobs_max;
using cli::parse_between;
using cli::parse_seed_list;
using cli::progress_names;
using cli::set_choices;
using cli::set_word;
using cli::split_list;
using cli::Word;

const CommandLineText convergence_text{
    .name = "unisono-lab simulate arc",
    .usage = "unisono-lab simulate arc [OPTIONS]",
    .description =
        "Trains small problems with compressed gradients, all ranks in this process, with the compressors and the error "
        "feedback\n"
        "that ship. Without options: the tables of checks 25 and 26 of docs/design/methods/arc_top_k.md, each value\n"
        "beside the one that it should be. With options: the trainings that they select.",
    .footer = R"(Examples:
  unisono-lab simulate arc                                          compares every value with the specification
  unisono-lab simulate arc --problem quadratic --plot errors.svg    and draws the errors over the steps
  unisono-lab simulate arc --problem softmax --ranks 16 --ratio 0.05 --rank 2 --feedback ef14,ef21m --seeds 5
  unisono-lab simulate arc --method arc,top-k --feedback ef21m --eta 0.3 --json

Problems: quadratic, a matrix of 64 x 16 whose ranks have different optima, measured by its distance from the goal; softmax, a
regression of 64 classes and 32 features in which each rank knows a few classes, measured by its loss over all samples.

Methods: dense, whole gradients; arc, ARC-Top-K; exact, rows by their true lengths, which only a simulation can know;
random-k, rows drawn at random; top-k, each rank's own largest entries, as many as the kept rows have. Feedback: none;
ef14; ef21; ef21m, with --eta.

A seed decides the data, the sketches and the drawn rows; --seeds 5 takes the specified one and the four after it. Of
several seeds the table has mean and standard deviation. Where settings are those of that page, the table also has its
value, and 'ok' or 'OFF'.

Exit code: 0; 1 if a value is off, or a file cannot be written; 2 for a wrong command line.)"};

void add_convergence_options(CLI::App& app, ConvergenceOptions& o) {
  const auto add_list = [&](const char* names, std::string& target, const char* meaning,
                            const std::vector<std::string>& words) {
    set_choices(
        *app.add_option(names, target, fmt::format("{}: {}, or several between commas [all]", meaning, fmt::join(words, " ")))
             ->type_name("LIST"),
        words);
  };
  add_list("-p,--problem", o.problems, "what is trained", {"quadratic", "softmax"});
  add_list("-m,--method", o.methods, "how gradients are compressed", {"dense", "arc", "exact", "random-k", "top-k"});
  add_list("-f,--feedback", o.feedbacks, "what becomes of the rest", {"none", "ef14", "ef21", "ef21m"});
  app.add_option("-n,--ranks", o.ranks, "ranks of the training, 1 to 1024 [8]")->type_name("N");
  app.add_option("--ratio", o.ratio, "share of the rows that is kept [0.1]")->type_name("SHARE");
  app.add_option("-k,--kept", o.kept, "the same in rows, 1 to 64 [7]")->type_name("ROWS");
  app.add_option("-r,--rank", o.sketch_ranks, "numbers in arc's sketch of a row, or several between commas [4; softmax 4,1,16]")
      ->type_name("LIST");
  app.add_option("--eta", o.eta, "weight of a gradient in the mean that ef21m runs [0.1]")->type_name("WEIGHT");
  app.add_option("-s,--seeds", o.seeds, "number of seeds, or a range of seeds [1: 3 of quadratic, 31 of softmax]")
      ->type_name("COUNT|A-B");
  app.add_option("--steps", o.steps, "steps of a training run [300; softmax 1000]")->type_name("N");
  app.add_option("--step-size", o.step_size, "step size of gradient descent [0.02; softmax 0.5]")->type_name("SIZE");
  app.add_option("--plot", o.plot, "draw what is measured over the steps there, as SVG")->type_name("FILE");
  add_output_options(app, o.results);
  app.add_option("-j,--jobs", o.jobs, "trainings run at the same time [1]")->type_name("N");
  add_choice(
      app, o.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
}

namespace {

using sim::Method;
using sim::ProblemKind;

constexpr uint64_t ranks_limit = 1024, sketch_rank_limit = 1024, steps_limit = 1'000'000, seeds_limit = 1000;
constexpr float eta_default = .1f;

constexpr Word<ProblemKind> problem_words[] = {{"quadratic", ProblemKind::quadratic}, {"softmax", ProblemKind::softmax}};
constexpr Word<Method> method_words[] = {{"dense", Method::dense},
                                         {"arc", Method::arc},
                                         {"exact", Method::exact},
                                         {"random-k", Method::random_k},
                                         {"top-k", Method::top_k}};
// The option --eta has an effect only on ef21m.
constexpr Word<FeedbackOptions> feedback_words[] = {{"none", {.kind = Feedback::none}},
                                                    {"ef14", {.kind = Feedback::ef14}},
                                                    {"ef21", {.kind = Feedback::ef21m, .eta = 1}},
                                                    {"ef21m", {.kind = Feedback::ef21m, .eta = eta_default}}};
// For each problem: the feedbacks and sketch ranks that the tables of docs/design/methods/arc_top_k.md contain.
constexpr std::string_view specified_feedbacks[] = {"none,ef14,ef21", "ef14,ef21m,ef21,none"};
constexpr std::string_view specified_sketch_ranks[] = {"4", "4,1,16"};

bool same(ProblemKind a, ProblemKind b) { return a == b; }
bool same(Method a, Method b) { return a == b; }
bool same(uint32_t a, uint32_t b) { return a == b; }
bool same(const FeedbackOptions& a, const FeedbackOptions& b) {
  return a.kind == b.kind && (a.kind != Feedback::ef21m || a.eta == b.eta);
}

template <typename T>
void add_once(std::vector<T>& all, const T& value) {
  if (std::none_of(all.begin(), all.end(), [&](const T& other) { return same(other, value); })) all.push_back(value);
}

// Parses a list of known words, such as "arc,random-k". In these words, an underscore may stand for a hyphen.
template <typename T, size_t count>
Result<std::vector<T>> parse_words(std::string_view option, std::string_view list, const Word<T> (&known)[count]) {
  std::vector<T> values;
  for (auto typed : split_list(list)) {
    std::replace(typed.begin(), typed.end(), '_', '-');
    T value{};
    if (auto status = set_word(value, option, typed, known); !status.ok()) return status;
    add_once(values, value);
  }
  return values;
}

// Parses a number that must be above 0 and at most `high`.
Result<double> parse_positive(std::string_view option, std::string_view text, double high, std::string_view expected) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc{} && end == text.data() + text.size();
  if (!read || !(value > 0 && value <= high)) return invalid(fmt::format("{} '{}': expected {}", option, text, expected));
  return value;
}

// If an option has no effect in combination with the other options, returns an error text. Otherwise returns "".
std::string useless_option(const ConvergenceOptions& o, const std::vector<Method>& methods) {
  const auto has = [&](Method method) { return std::find(methods.begin(), methods.end(), method) != methods.end(); };
  const bool compresses = methods.size() > 1 || !has(Method::dense);
  for (const auto& [name, text] :
       {std::pair{"--feedback", &o.feedbacks}, {"--ratio", &o.ratio}, {"--kept", &o.kept}, {"--eta", &o.eta}}) {
    if (!compresses && !text->empty())
      return fmt::format("{} does not apply to dense gradients, and --method names no other method", name);
  }
  if (!has(Method::arc) && !o.sketch_ranks.empty()) return "--rank needs --method arc";
  if (!o.ratio.empty() && !o.kept.empty()) return "--ratio and --kept say the same: give one of them";
  return {};
}

Status set_kept(const ConvergenceOptions& o, sim::TrainingSettings& settings) {
  const auto rows = sim::facts_of(settings.problem).matrix.rows;
  if (!o.kept.empty()) {
    const auto kept = parse_between("--kept", o.kept, 1, rows);
    if (!kept.ok()) return kept.status();
    // this is rounded down, because kept_rows() rounds up
    settings.ratio_ppm = static_cast<uint32_t>(*kept * 1'000'000 / rows);
  }
  if (!o.ratio.empty()) {
    constexpr std::string_view expected = "a share of the rows, from 0.000001 to 1";
    const auto share = parse_positive("--ratio", o.ratio, 1, expected);
    if (!share.ok()) return share.status();
    const auto ppm = parts_per_million(*share);
    if (!ppm.ok()) return invalid(fmt::format("--ratio '{}': expected {}", o.ratio, expected));
    settings.ratio_ppm = *ppm;
  }
  return {};
}

// Returns the settings that are the same in all cases of one problem.
Result<sim::TrainingSettings> settings_of(const ConvergenceOptions& o, ProblemKind problem) {
  auto settings = sim::specified_settings(problem);
  if (!o.ranks.empty()) {
    const auto ranks = parse_between("--ranks", o.ranks, 1, ranks_limit);
    if (!ranks.ok()) return ranks.status();
    settings.ranks = static_cast<uint32_t>(*ranks);
  }
  if (!o.steps.empty()) {
    const auto steps = parse_between("--steps", o.steps, 1, steps_limit);
    if (!steps.ok()) return steps.status();
    settings.steps = *steps;
  }
  if (!o.step_size.empty()) {
    const auto size = parse_positive("--step-size", o.step_size, 1e9, "a number above 0, at most 1e9");
    if (!size.ok()) return size.status();
    settings.step_size = *size;
  }
  if (auto status = set_kept(o, settings); !status.ok()) return status;
  return settings;
}

Result<std::vector<FeedbackOptions>> feedbacks_of(const ConvergenceOptions& o, ProblemKind problem) {
  auto parsed = parse_words("--feedback", o.feedbacks.empty() ? specified_feedbacks[static_cast<size_t>(problem)] : o.feedbacks,
                            feedback_words);
  if (!parsed.ok() || o.eta.empty()) return parsed;
  const auto eta = parse_positive("--eta", o.eta, 1, "a weight above 0, at most 1");
  if (!eta.ok()) return eta.status();
  bool is_used = false;
  std::vector<FeedbackOptions> feedbacks;
  for (auto feedback : *parsed) {
    const bool takes_eta = feedback.kind == Feedback::ef21m && feedback.eta == eta_default;
    if (takes_eta) feedback.eta = static_cast<float>(*eta), is_used = true;
    add_once(feedbacks, feedback);
  }
  if (!is_used)
    return invalid(o.feedbacks.empty() ? std::string("--eta is for ef21m: name it with --feedback")
                                       : fmt::format("--eta is for ef21m, and --feedback {} does not name it", o.feedbacks));
  return feedbacks;
}

Result<std::vector<uint32_t>> sketch_ranks_of(const ConvergenceOptions& o, ProblemKind problem) {
  std::vector<uint32_t> ranks;
  for (const auto& word :
       split_list(o.sketch_ranks.empty() ? specified_sketch_ranks[static_cast<size_t>(problem)] : o.sketch_ranks)) {
    const auto rank = parse_between("--rank", word, 1, sketch_rank_limit);
    if (!rank.ok()) return rank.status();
    add_once(ranks, static_cast<uint32_t>(*rank));
  }
  return ranks;
}

Status add_cases(const ConvergenceOptions& o, ProblemKind problem, const std::vector<Method>& methods, ConvergencePlan& plan) {
  const auto settings = settings_of(o, problem);
  const auto feedbacks = feedbacks_of(o, problem);
  const auto sketch_ranks = sketch_ranks_of(o, problem);
  const auto seeds = parse_seed_list(o.seeds.empty() ? "1" : o.seeds, sim::facts_of(problem).seed, seeds_limit);
  for (const auto& status : {settings.status(), feedbacks.status(), sketch_ranks.status(), seeds.status()}) {
    if (!status.ok()) return status;
  }
  const auto add = [&](Method method, const FeedbackOptions& feedback, uint32_t sketch_rank) {
    auto& added = plan.cases.emplace_back(ConvergenceCase{*settings, *seeds});
    added.settings.seed = seeds->front();
    added.settings.method = method;
    added.settings.feedback = feedback;
    added.settings.sketch_rank = sketch_rank;
  };
  if (std::find(methods.begin(), methods.end(), Method::dense) != methods.end())
    add(Method::dense, {.kind = Feedback::none}, 1);
  for (const auto& feedback : *feedbacks) {
    for (const auto method : methods) {
      if (method == Method::dense) continue;
      for (const auto rank : method == Method::arc ? *sketch_ranks : std::vector<uint32_t>{1}) add(method, feedback, rank);
    }
  }
  return {};
}

}  // namespace

uint64_t ConvergencePlan::steps() const {
  uint64_t sum = 0;
  for (const auto& one : cases) sum += one.settings.steps * one.seeds.size();
  return sum;
}

Result<ConvergencePlan> make_convergence_plan(const ConvergenceOptions& options) {
  ConvergencePlan plan{.cases = {}, .jobs = 1, .plot = options.plot, .progress = options.progress, .results = options.results};
  const auto problems =
      parse_words("--problem", options.problems.empty() ? "quadratic,softmax" : options.problems, problem_words);
  const auto methods =
      parse_words("--method", options.methods.empty() ? "dense,arc,exact,random-k,top-k" : options.methods, method_words);
  const auto jobs = parse_between("--jobs", options.jobs, 1, jobs_max);
  for (const auto& status : {problems.status(), methods.status(), jobs.status()}) {
    if (!status.ok()) return status;
  }
  if (auto message = useless_option(options, *methods); !message.empty()) return invalid(std::move(message));
  if (auto status = check_progress(options.progress); !status.ok()) return status;
  for (const auto problem : *problems) {
    if (auto status = add_cases(options, problem, *methods, plan); !status.ok()) return status;
  }
  plan.jobs = static_cast<uint32_t>(*jobs);
  return plan;
}

std::string_view method_name(sim::Method method) { return method_words[static_cast<size_t>(method)].name; }

std::string_view feedback_name(const FeedbackOptions& feedback) {
  switch (feedback.kind) {
    case Feedback::none: return "none";
    case Feedback::ef14: return "ef14";
    case Feedback::ef21m: break;
  }
  return feedback.eta == 1 ? "ef21" : "ef21m";
}

}  // namespace unisono::lab

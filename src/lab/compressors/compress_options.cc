#include "lab/compressors/compress_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/common/option_values.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/launch/launch_links.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_launch_options;
using cli::add_link_options;
using cli::add_output_options;
using cli::check_progress;
using cli::CommandLineText;
using cli::invalid;
using cli::make_limits;
using cli::of_option;
using cli::parse_count;
using cli::parse_duration;
using cli::parse_word;
using cli::progress_names;
using cli::split_list;

const CommandLineText compress_text{.name = "unisono-lab bench compress",
                                    .usage = "unisono-lab bench compress -n COUNT [OPTIONS]",
                                    .description =
                                        "Averages gradients by several methods that send less, and compares what each sends, "
                                        "how long its steps take, and how much of "
                                        "the mean arrives.\n\n"
                                        "Methods: dense (all-reduce), arc (ARC-Top-K), random-k (rows by a shared seed), top-k "
                                        "(each rank's own largest elements, by "
                                        "all-gather), power_sgd (two factors of low rank).",
                                    .footer = R"(Examples:
  unisono-lab bench compress -n 4                                     all methods, 1024 x 1024, on this machine
  unisono-lab bench compress -n 4 --shape 4096x4096 --rate 1G         over links of 1 Gbit/s, which this command emulates
  unisono-lab bench compress -n 4 --method dense,arc --ratio 0.1 --rank 4 --data rank-one
  unisono-lab bench compress -n 4 --shape 4096x11008,4096 --gradients 'layer.{rank}.f32' --feedback none
  unisono-lab bench compress -n 4 --method dense,arc --codec int8 --output result.json --plot result.svg

All methods run in turn in each step, on the same gradients; a barrier stands before each. Gradients are what --data
says, shared by all ranks, plus noise of each rank, or what --gradients has: fp32, little-endian, one tensor of
--shape after the other, {rank} for the number of the rank.

Columns: payload, the bytes of all that a rank gives to collectives; sent, the bytes that it sent, headers included,
mean over ranks; both also as a part of dense. Times are medians over the steps of the mean over ranks: begin, until
something can be sent (adding what was left over, sketch, first factor, selection of elements); first, the average of
sketches or first factors; next, until the values can be sent (selection of rows, orthogonalisation and second
factor); second, the average of values, or the gathering of elements; unpack, until the mean stands where the gradient
was. captured = |out|^2 / |mean|^2 and error = |out - mean|^2 / |mean|^2, of the last step and against the mean of all
that went in, with what was left over from steps before.

--power-sgd-rank auto takes as many columns as have the bytes of arc: (K n + m r) / (m + n). --codec encodes what
dense averages, and the values of arc and random-k; what is lost there is not fed back.

Exit code: 0; 1 if an operation failed or ranks ended with different bits; 2 for a wrong command line; else as for
'unisono launch'.)"};

namespace {

constexpr std::pair<const char*, Method> method_table[] = {{"dense", Method::dense},
                                                           {"arc", Method::arc},
                                                           {"random-k", Method::random_k},
                                                           {"top-k", Method::top_k},
                                                           {"power_sgd", Method::power_sgd}};
constexpr uint32_t rank_max = 65'536, steps_max = 100'000;

Status set_methods(const CompressOptions& options, CompressPlan& plan) {
  std::vector<std::string> names;
  for (const auto& [name, method] : method_table) names.emplace_back(name);
  for (const auto& word : split_list(options.methods)) {
    const auto index = parse_word("--method", word, names);
    if (!index.ok()) return index.status();
    const auto method = method_table[*index].second;
    if (std::find(plan.methods.begin(), plan.methods.end(), method) != plan.methods.end())
      return invalid(fmt::format("--method names {} twice", word));
    plan.methods.push_back(method);
  }
  return plan.methods.empty() ? invalid(fmt::format("--method: one or several of {}", fmt::join(names, ", "))) : Status();
}

Status set_sizes(const CompressOptions& options, CompressPlan& plan) {
  const auto ratio = parts_per_million(options.ratio);
  if (!ratio.ok())
    return invalid(fmt::format("--ratio {}: the share of rows that is kept, above 0 and at most 1", options.ratio));
  plan.rule.ratio_ppm = *ratio;
  if (options.rank == 0 || options.rank > rank_max)
    return invalid(fmt::format("--rank {}: numbers in the sketch of a row, 1 to {}", options.rank, rank_max));
  plan.rule.rank = options.rank;
  if (options.power_rank != "auto") {
    const auto rank = parse_count(options.power_rank, rank_max);
    if (!rank.ok() || *rank == 0)
      return invalid(
          fmt::format("--power-sgd-rank '{}': columns of the factors, 1 to {}, or auto", options.power_rank, rank_max));
    plan.power_rank = static_cast<uint32_t>(*rank);
  }
  if (options.feedback != "ef14" && options.feedback != "none")
    return invalid(fmt::format("--feedback '{}' is none of ef14, none", options.feedback));
  plan.feedback = options.feedback == "ef14";
  return {};
}

Status set_gradients(const CompressOptions& options, CompressPlan& plan) {
  auto shapes = parse_shapes(options.shapes);
  if (!shapes.ok()) return shapes.status();
  plan.gradients.shapes = *std::move(shapes);
  plan.gradients.seed = plan.seed = options.seed;
  plan.gradients.file = options.gradients;
  if (!options.gradients.empty() && (!options.data.empty() || options.noise))
    return invalid("--gradients reads real gradients: leave out --data and --noise");
  if (!options.data.empty()) {
    const auto model = parse_gradient_model(options.data);
    if (!model.ok()) return model.status();
    plan.gradients.model = *model;
  }
  if (!options.noise) return {};
  if (!(*options.noise >= 0) || !std::isfinite(*options.noise))
    return invalid(
        fmt::format("--noise {}: expected a number of 0 or more, relative to the shared part of the row", *options.noise));
  plan.gradients.noise = *options.noise;
  return {};
}

Status set_run(const CompressOptions& options, CompressPlan& plan) {
  if (options.steps == 0 || options.steps > steps_max || options.warmup > steps_max)
    return invalid(
        fmt::format("--steps {} -w {}: at least one step is timed, and at most {}", options.steps, options.warmup, steps_max));
  plan.steps = options.steps;
  plan.warmup = options.warmup;
  const auto timeout = of_option("--timeout", parse_duration(options.timeout));
  if (!timeout.ok()) return timeout.status();
  if (*timeout < millisecond) return invalid(fmt::format("-T {}: an operation needs a millisecond at least", options.timeout));
  plan.timeout = Milliseconds(*timeout / millisecond);
  if (auto status = check_progress(options.progress); !status.ok()) return status;
  const auto limits = make_limits(options.launch);
  if (!limits.ok()) return limits.status();
  plan.limits = *limits;
  if (options.codec.empty()) return {};
  const auto codec = Codec::parse(options.codec);
  if (!codec.ok()) return invalid(fmt::format("--codec {}: {}", options.codec, codec.status().message()));
  plan.codec = *codec;
  if (std::none_of(plan.methods.begin(), plan.methods.end(), takes_codec))
    return invalid(fmt::format("--codec {}: dense, arc and random-k take one; add one of them to --method", options.codec));
  return {};
}

}  // namespace

const char* name(Method method) { return method_table[static_cast<size_t>(method)].first; }

bool takes_codec(Method method) { return method == Method::dense || method == Method::arc || method == Method::random_k; }

void add_compress_options(CLI::App& app, CompressOptions& options) {
  app.add_option("-m,--method", options.methods, "one or several between commas: dense, arc, random-k, top-k, power_sgd [all]")
      ->type_name("LIST");
  app.add_option("-s,--shape", options.shapes, "shapes of the tensors of a group: 4096x4096,512 [1024x1024]")
      ->type_name("LIST");
  app.add_option("--ratio", options.ratio, "share of rows that arc and random-k keep, and of elements that top-k keeps [0.2]")
      ->type_name("SHARE");
  app.add_option("--rank", options.rank, "numbers in arc's sketch of a row [4]")->type_name("N");
  app.add_option("--power-sgd-rank", options.power_rank, "columns of power_sgd's factors [auto: as many bytes as arc]")
      ->type_name("N");
  add_choice(app, options.feedback,
             {.names = "--feedback",
              .value = "KIND",
              .meaning = "error feedback: what happens with values that are not sent",
              .words = {"ef14", "none"},
              .fallback = "ef14"});
  app.add_option("--codec", options.codec,
                 "measure dense, arc and random-k with encoded values, too: int2 to int8, f16, bf16, …")
      ->type_name("CODEC");
  add_choice(app, options.data,
             {.names = "--data",
              .value = "MODEL",
              .meaning = "what the ranks' gradients share",
              .words = gradient_model_names(),
              .fallback = "decay"});
  app.add_option("--noise", options.noise, "noise of each rank, relative to the shared part of the row [0.5]")
      ->type_name("SHARE");
  app.add_option("--gradients", options.gradients, "file of real gradients, fp32; {rank} in the name is the rank's number")
      ->type_name("FILE");
  app.add_option("--seed", options.seed, "seed of data, sketches and rows [0]")->type_name("N");
  app.add_option("--steps", options.steps, "timed steps of each method [20]")->type_name("N");
  app.add_option("-w,--warmup", options.warmup, "steps before the clock starts [2]")->type_name("N");
  app.add_option("-T,--timeout", options.timeout, "deadline of each operation [60s]")->type_name("TIME");
  add_output_options(app, options.results);
  app.add_option("--plot", options.plot, "draw times, and error against bytes, there, as SVG")->type_name("FILE");
  add_choice(
      app, options.progress,
      {.names = "--progress", .value = "STYLE", .meaning = "on standard error", .words = progress_names(), .fallback = "auto"});
  add_link_options(app, options.launch.links);
  add_launch_options(app, options.launch);
}

Result<CompressPlan> make_compress_plan(const CompressOptions& options) {
  CompressPlan plan;
  for (const auto set : {set_methods, set_sizes, set_gradients, set_run}) {
    if (auto status = set(options, plan); !status.ok()) return status;
  }
  return plan;
}

}  // namespace unisono::lab

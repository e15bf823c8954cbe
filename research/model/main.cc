// train_model: trains a small language model, data-parallel over Unisono.
//
//   unisono launch -n 4 -- train_model --text text.txt OPTIONS
//
//   (no option)                               four processes, each with a quarter of every batch
//   --codec int4 --error-feedback             gradients with few bits
//   --compress arc:ratio=0.2,rank=4           compressed gradients: ARC-Top-K sends a fifth of the rows
//   --micro-batches 4 --drop-compute auto     a process that is late skips its last micro-batches
//   --sharded loss_budget=1                   each process owns a shard of the parameters; over UDP, packets may be lost
//
//   train_model --text text.txt --reference parts     one process computes the same parts, one after another
//   train_model --text text.txt --reference whole     one process computes the whole batch at once
//
// The exit status is 0 if all checks passed. It is 1 if the parameters differ between ranks, or if the losses differ from
// those of one process. It is 2 if the training failed; the reason is then on standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "research/drop_compute/drop_settings.h"
#include "research/model/data_parallel.h"
#include "research/model/gathering.h"
#include "research/model/progress.h"
#include "research/model/results.h"
#include "research/model/text.h"
#include "research/model/trainer.h"

namespace language_model {
namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;

struct Settings {
  TrainingOptions training;
  std::string text;
  std::string out = "out/train_model";
  std::string reference;  // "", "parts" or "whole"
  size_t parts = 4;       // number of parts for --reference parts
  size_t reference_steps = 200;
  size_t validation_sequences = 0;
  double held_out = 0.05;
  double tolerance_parts = 0;
  double tolerance_whole = 0.02;
  size_t bucket_kib = 1024;
  std::string codec = "plain";
  bool error_feedback = false;
  std::string compress, feedback, baseline;
  GradientCompression compression;  // It is parsed from `compress`, `feedback` and `baseline`.
  MicroBatchSettings micro_batches;
  std::optional<std::string> sharded;
  std::string ablation;
  size_t sample_bytes = 400;
  bool json = false;
};

void declare_gradient_options(CLI::App& app, Settings& s, CLI::Option* reference) {
  auto* codec =
      app.add_option(
             "--codec", s.codec,
             "the codec of the gradients on the network: plain, bf16, int8 ... int2, or any text of Codec::parse; the loss "
             "stays exact, and differences from one process are reported without a verdict")
          ->capture_default_str();
  app.add_flag("--error-feedback", s.error_feedback,
               "adds the error of the codec to the next gradient (EF14); needs memory as large as the gradients")
      ->needs(codec);
  auto* compress =
      app.add_option("--compress", s.compress,
                     "gradients are reduced by the library's GradientReducer: arc:ratio=0.2,rank=4, random-k:ratio=0.2, or "
                     "any text of Compression::parse; the loss stays exact, and differences from one process are reported "
                     "without a verdict");
  app.add_option("--feedback", s.feedback, "the same as feedback= in --compress: ef14, ef21, ef21m or none");
  auto* baseline =
      app.add_option("--baseline", s.baseline,
                     "a baseline for --compress: top-k:ratio=0.2 (all-gather of each rank's own largest elements) "
                     "or power-sgd:ratio=0.2,rank=4 (sends as many bytes as arc with the same options); both use EF14");
  for (auto* option : {codec, compress, baseline}) option->excludes(reference);
}

void declare_micro_batch_options(CLI::App& app, MicroBatchSettings& s, CLI::Option* reference) {
  auto* count =
      app.add_option("--micro-batches", s.count,
                     "number of equal parts in which each process computes its share of a batch; their gradients are added")
          ->check(CLI::Range(1, 65536));
  auto* drop = app.add_option("--drop-compute", s.drop,
                              "a late process drops its remaining micro-batches: auto, seconds, off, or any text of "
                              "DropOptions::parse, "
                              "such as auto:rule=before; differences from one process are reported without a verdict");
  auto* delay = app.add_option(
      "--delay-model", s.delay,
      "delays each micro-batch by the random part of a delay model (without its base time): L:mu=0.02, R:compute=0.02, or any "
      "text of the simulator's DelayModel; equal for equal seed, step, rank and micro-batch");
  auto* base = app.add_flag("--delay-base", s.delay_base,
                            "delays by the base time of the model, too; for models that compute in much less time than that")
                   ->needs(delay);
  auto* random = app.add_option("--random-drop", s.random_drop,
                                "drops this share of all micro-batches at random, whichever rank is late; for comparison")
                     ->check(CLI::Range(0.0, 1.0));
  auto* record = app.add_option("--record", s.record,
                                "prefix of file names, one file per rank: what the rank computed in each step, and when");
  auto* replay = app.add_option("--replay", s.replay, "prefix of such files: computes what they list, whichever rank is late");
  auto* trace = app.add_option(
      "--trace", s.trace, "file for the times recorded for the threshold, in the format of unisono-lab drop-compute search");
  for (auto* option : {drop, delay, random, record, replay, trace}) option->needs(count);
  for (auto* option : {drop, delay, base, random, record, replay, trace}) option->excludes(reference);
}

void declare_sharded_options(CLI::App& app, Settings& s) {
  auto* sharded = app.add_option(
      "--sharded", s.sharded,
      "each process owns a shard of the parameters, and links may lose packets (UNISONO_TRANSPORT=udp): a text of "
      "ShardedOptions::parse, such as loss_budget=1,drift=50; "
      "without clip=, gradients are clipped as in other trainings; differences from one process are reported without a "
      "verdict");
  app.add_option("--ablation", s.ablation,
                 "breaks one rule on purpose, to show its effect: count or zero_fill (estimators of gradients), "
                 "zero_parameters or differences (for values that are not received)")
      ->needs(sharded);
  for (const char* other :
       {"--reference", "--codec", "--compress", "--baseline", "--drop-compute", "--random-drop", "--replay"})
    sharded->excludes(app.get_option(other));
}

void declare_options(CLI::App& app, Settings& s) {
  TrainingOptions& t = s.training;
  app.add_option("--text", s.text, "the file to learn from, see prepare_text.sh")->required()->check(CLI::ExistingFile);
  app.add_option("--out", s.out, "directory for loss.csv, loss.svg and summary.json")->capture_default_str();
  app.add_option("--steps", t.optimizer.steps, "steps to train")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--batch", t.batch, "sequences per step, over all processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", t.shape.context, "bytes per sequence")->capture_default_str();
  app.add_option("--layers", t.shape.layers, "transformer blocks")->capture_default_str();
  app.add_option("--width", t.shape.width, "width of the residual stream")->capture_default_str();
  app.add_option("--heads", t.shape.heads, "number of attention heads")->capture_default_str();
  app.add_option("--hidden", t.shape.hidden, "width of the SwiGLU")->capture_default_str();
  app.add_option("--lr", t.optimizer.learning_rate, "peak learning rate")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--seed", t.seed, "seed of the initial parameters and of the batches")->capture_default_str();
  app.add_option("--validate-every", t.validation_every, "steps between losses on the held-out text; 0 = never")
      ->capture_default_str();
  app.add_option("--validation-sequences", s.validation_sequences,
                 "sequences of the held-out text per validation; 0 = 64, and 256 at the end")
      ->capture_default_str();
  app.add_option("--held-out", s.held_out, "share of the text that is held out for validation")->capture_default_str();
  app.add_option("--bucket-kib", s.bucket_kib, "gradients are all-reduced in pieces of this size")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  auto* reference = app.add_option("--reference", s.reference,
                                   "do not join a group: train as one process, on the same parts one after another "
                                   "(parts) or on the whole batch at once (whole)")
                        ->check(CLI::IsMember({"parts", "whole"}));
  declare_gradient_options(app, s, reference);
  declare_micro_batch_options(app, s.micro_batches, reference);
  declare_sharded_options(app, s);
  app.add_option("--parts", s.parts, "number of parts for --reference parts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--reference-steps", s.reference_steps,
                 "steps that one process repeats after a data-parallel training, to "
                 "compare the loss; 0 = none")
      ->capture_default_str();
  app.add_option("--tolerance-parts", s.tolerance_parts,
                 "largest difference of the loss, in nats, from one process with the same parts: 0 = the same bits, as "
                 "processes on machines of one kind have them")
      ->capture_default_str();
  app.add_option("--tolerance-whole", s.tolerance_whole,
                 "the same for one process with the whole batch at once, which rounds "
                 "differently; the difference grows with the steps")
      ->capture_default_str();
  app.add_option("--sample", s.sample_bytes, "bytes of text that the trained model writes at the end")->capture_default_str();
  app.add_flag("--json", s.json, "print the summary as JSON on standard output, progress on standard error");
}

// The loss that the progress line shows. It is an average over about the last 20 steps, because the loss of a small batch
// fluctuates.
class LossNote {
 public:
  std::string after(const Trainer::Progress& p) {
    loss_ = p.step <= 1 ? p.loss : loss_ + (p.loss - loss_) * std::max(0.05, 1.0 / static_cast<double>(p.step));
    if (p.validation) validation_ = fmt::format("{:.3f}", p.validation->loss);
    return fmt::format("loss {:.3f}  validation {}{}", loss_, validation_,
                       p.drop ? fmt::format("  left out {:.1f} %", 100 * p.drop->dropped()) : "");
  }

 private:
  double loss_ = 0;
  std::string validation_ = "  -  ";
};

// Runs `steps` steps of a trainer. Shows the progress, and the warnings about compression and from DropCompute. If `title` is
// empty, nothing is shown.
Status run_shown(Trainer& trainer, const Settings& s, size_t steps, const std::string& title,
                 const GradientExchange& exchange) {
  Progress progress({.title = title,
                     .steps = steps,
                     .tokens_per_step = s.training.batch * s.training.shape.context,
                     .out = s.json ? stderr : stdout});
  LossNote note;
  std::vector<size_t> warned(3);
  return trainer.run(steps, [&](const Trainer::Progress& p) {
    if (title.empty()) return;
    progress.show(p.step, note.after(p));
    const auto warn = [&](std::span<const std::string> warnings, size_t& shown) {
      for (; shown < warnings.size(); ++shown) fmt::print(stderr, "train_model: step {}: {}\n", p.step, warnings[shown]);
    };
    warn(exchange.compression().warnings, warned[0]);
    if (p.drop) warn(p.drop->warnings(), warned[1]);
    if (trainer.sharded()) warn(trainer.sharded()->notes().warnings, warned[2]);
  });
}

// micro_batches: number of micro-batches in each part. 0: each part is computed as a whole.
Result<ReferenceRun> run_reference(const Settings& s, const Text& text, Parts parts, uint32_t micro_batches,
                                   const std::string& title) {
  const auto exchange = make_local_exchange();
  TrainingOptions options = s.training;
  options.validation_every = 0;
  options.micro_batches = {.count = micro_batches};
  options.sharded.reset();
  const auto start = std::chrono::steady_clock::now();
  auto trainer = Trainer::make(options, parts, text, *exchange);
  if (!trainer.ok()) return trainer.status();
  if (auto done = run_shown(**trainer, s, s.reference_steps, title, *exchange); !done.ok()) return done;
  return ReferenceRun{.losses = (*trainer)->history().losses,
                      .parameter_hash = hash_of((*trainer)->parameters()),
                      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

// Computes the reference runs of the first steps. Rank 0 computes the parts in order. Rank 1 computes the whole batch; if there
// is no rank 1, rank 0 does this, too. Afterwards all ranks have the losses of both runs.
Status run_references(const Settings& s, const Text& text, GradientExchange& exchange, Results& results) {
  const uint32_t rank = exchange.rank();
  const uint32_t world_size = exchange.world_size();
  const uint32_t whole_rank = world_size > 1 ? 1 : 0;
  const auto share = [&](uint32_t root, std::optional<ReferenceRun>& run) -> Status {
    std::vector<uint64_t> words(s.reference_steps + 2);
    if (run) {
      words[0] = run->parameter_hash;
      words[1] = std::bit_cast<uint64_t>(run->seconds);
      for (size_t i = 0; i < s.reference_steps; ++i) words[i + 2] = std::bit_cast<uint32_t>(run->losses[i]);
    }
    const auto all = gather(exchange, words);
    if (!all.ok()) return all.status();
    const auto from = std::span(*all).subspan(root * words.size(), words.size());
    run = ReferenceRun{.losses = {}, .parameter_hash = from[0], .seconds = std::bit_cast<double>(from[1])};
    for (const uint64_t word : from.subspan(2)) run->losses.push_back(std::bit_cast<float>(static_cast<uint32_t>(word)));
    return {};
  };
  if (rank == 0) {
    auto run =
        run_reference(s, text, {.first = 0, .count = world_size, .total = world_size}, s.micro_batches.count, "one process");
    if (!run.ok()) return run.status();
    results.in_order = std::move(run).value();
  }
  if (rank == whole_rank) {
    auto run = run_reference(s, text, {}, 0, "");
    if (!run.ok()) return run.status();
    results.whole = std::move(run).value();
  }
  if (auto shared = share(0, results.in_order); !shared.ok()) return shared;
  return share(whole_rank, results.whole);
}

// Replaces control characters. A badly trained model can write any byte, and a terminal takes some bytes for commands.
std::string printable(std::string text) {
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  }
  return text;
}

// Prints the results and writes the files. Returns the exit status.
int show(const Settings& s, const Results& results) {
  const auto written = write_files(results, s.out);
  if (s.json) {
    std::fputs(summary_json(results).c_str(), stdout);
  } else {
    std::fputs(table(results).c_str(), stdout);
    if (!results.sample.empty()) fmt::print("\nThe model writes:\n\n{}\n\n", printable(results.sample));
    if (written.ok()) fmt::print("Wrote {0}/loss.svg, {0}/loss.csv and {0}/summary.json\n", s.out);
  }
  std::fflush(stdout);
  const auto faults = results.faults();
  for (const std::string& fault : faults) fmt::print(stderr, "train_model: FAILED: {}\n", fault);
  if (!written.ok()) fmt::print(stderr, "train_model: {}\n", written.to_string());
  return !faults.empty() ? 1 : written.ok() ? 0 : 2;
}

// Checks that all ranks have the same options and the same text. If they had not, they would average gradients of different
// models.
Status check_agreement(const Settings& s, const Text& text, GradientExchange& exchange) {
  const TrainingOptions& t = s.training;
  const uint64_t numbers[] = {t.optimizer.steps,
                              t.batch,
                              t.shape.context,
                              t.shape.layers,
                              t.shape.width,
                              t.shape.heads,
                              t.shape.hidden,
                              std::bit_cast<uint32_t>(t.optimizer.learning_rate),
                              t.seed,
                              t.validation_every,
                              s.bucket_kib,
                              s.error_feedback,
                              s.validation_sequences,
                              s.micro_batches.count,
                              s.micro_batches.delay_base,
                              std::bit_cast<uint64_t>(s.micro_batches.random_drop),
                              s.micro_batches.replay.empty(),
                              s.micro_batches.trace.empty(),
                              s.reference_steps};
  uint64_t options = 0, content = 0;
  for (const uint64_t number : numbers) options = mixed(options, number, 1);
  for (const auto& words : {s.codec, s.micro_batches.drop, s.micro_batches.delay, s.sharded.value_or("none"), s.ablation}) {
    for (const char c : words) options = mixed(options, static_cast<uint8_t>(c), words.size());
  }
  for (const auto part : {text.training(), text.validation()}) {
    for (const uint8_t byte : part) content = (content ^ byte) * 0x100000001B3ull;  // FNV-1a hash
    content = mixed(content, part.size(), 2);
  }
  const auto all = gather<uint64_t>(exchange, {options, content});
  if (!all.ok()) return all.status();
  for (size_t rank = 0; rank < exchange.world_size(); ++rank) {
    for (const size_t i : {0, 1}) {
      if ((*all)[2 * rank + i] == (*all)[i]) continue;
      return Status(Code::invalid,
                    fmt::format("rank {} was started with {} than rank 0", rank, i == 0 ? "other options" : "another text"));
    }
  }
  return {};
}

// Reads --codec, --compress, --feedback and --baseline. At most one of the methods may be selected.
Result<unisono::Codec> choose_gradients(Settings& s) {
  auto compress = parse_compress(s.compress, s.feedback);
  if (!compress.ok()) return compress.status();
  auto baseline = parse_baseline(s.baseline);
  if (!baseline.ok()) return baseline.status();
  auto codec = unisono::Codec::parse(s.codec);
  if (!codec.ok()) return codec.status();
  s.codec = codec->to_string();
  if (!s.compress.empty() && !s.baseline.empty())
    return Status(Code::invalid, "--compress and --baseline exclude each other: give one of them");
  if (!(s.compress + s.baseline).empty() && (!codec->is_plain() || s.error_feedback)) {
    return Status(Code::invalid,
                  "--codec and --error-feedback apply only to uncompressed gradients; --compress sets the codec of its rows "
                  "with values=, "
                  "as in --compress arc:values=int8, and has its own feedback");
  }
  s.compression = s.compress.empty() ? *std::move(baseline) : *std::move(compress);
  return codec;
}

// Makes the exchange that the options ask for. Sets `parts` to the part of the batch that this process computes.
Result<std::unique_ptr<GradientExchange>> make_exchange(const Settings& s, const unisono::Codec& codec, Parts& parts) {
  if (s.reference == "parts") parts = {.first = 0, .count = s.parts, .total = s.parts};
  if (!s.reference.empty()) return make_local_exchange();
  // exact_tail: the loss elements follow the gradients (micro_batches.h), and the codec must not be used for them.
  auto exchange = make_group_exchange({.bucket_bytes = s.bucket_kib << 10,
                                       .codec = codec,
                                       .error_feedback = s.error_feedback,
                                       .exact_tail = loss_elements,
                                       .compression = s.compression,
                                       .parameters = exchanged_parameters(ParameterLayout(s.training.shape))});
  if (exchange.ok()) parts = {.first = (*exchange)->rank(), .count = 1, .total = (*exchange)->world_size()};
  return exchange;
}

// Returns whether micro-batches may be dropped. In that case, the loss differs from the loss of one process that computes the
// whole batch.
bool may_drop(const TrainingOptions& training) {
  const auto& drop = training.micro_batches.drop;
  return drop && (drop->threshold != unisono::DropOptions::Threshold::off || !drop->replay.empty());
}

Result<int> run(Settings s) {
  if (auto shape = s.training.shape.validate(); !shape.ok()) return shape;
  s.reference_steps = std::min(s.reference_steps, s.training.optimizer.steps);
  s.training.optimizer.warm_up_steps = std::max<size_t>(1, s.training.optimizer.steps / 20);
  if (s.validation_sequences > 0)
    s.training.validation_sequences = s.training.final_validation_sequences = s.validation_sequences;
  const auto codec = choose_gradients(s);
  if (!codec.ok()) return codec.status();
  auto micro_batches = parse_micro_batches(s.micro_batches);
  if (!micro_batches.ok()) return micro_batches.status();
  if (s.sharded) {
    auto plan = parse_sharded(*s.sharded, s.ablation, s.training.optimizer.norm_max);
    if (!plan.ok()) return plan.status();
    s.training.sharded = *std::move(plan);
  }
  const auto text = Text::load(s.text, s.held_out, s.training.shape.context);
  if (!text.ok()) return text.status();
  Parts parts;
  auto joined = make_exchange(s, *codec, parts);
  if (!joined.ok()) return joined.status();
  GradientExchange& exchange = **joined;
  if (auto agreed = check_agreement(s, *text, exchange); !agreed.ok()) return agreed;
  const bool speaks = exchange.rank() == 0;
  if (speaks) {
    // Make the directories now. If one of them cannot be written, the user must know it before the training, not after it.
    if (auto made = make_directory(s.out); !made.ok()) return made;
  }
  for (const auto& path : {s.micro_batches.record, s.micro_batches.trace}) {
    const auto folder = std::filesystem::path(path).parent_path();
    if (auto made = folder.empty() ? Status() : make_directory(folder.string()); !made.ok()) return made;
  }
  micro_batches = with_counts(*std::move(micro_batches), s.micro_batches,
                              {.rank = exchange.rank(), .steps = s.training.optimizer.steps, .seed = s.training.seed});
  if (!micro_batches.ok()) return micro_batches.status();
  s.training.micro_batches = *std::move(micro_batches);
  auto made = Trainer::make(s.training, parts, *text, exchange);
  if (!made.ok()) return made.status();
  Trainer& trainer = **made;
  trainer.remember_hash_after(s.reference_steps);
  const std::string title = s.reference.empty() ? fmt::format("{} processes", exchange.world_size()) : "one process";
  if (auto done = run_shown(trainer, s, s.training.optimizer.steps, speaks ? title : "", exchange); !done.ok()) return done;

  Results results{.options = s.training,
                  .text = s.text,
                  .parameter_count = trainer.parameters().size(),
                  .kernels = kernels<float>().name,
                  .codec = s.codec,
                  .error_feedback = s.error_feedback,
                  .compression = exchange.compression(),
                  .history = trainer.history()};
  if (auto done = gather_results(trainer, s.micro_batches, exchange, results); !done.ok()) return done;
  if (s.reference.empty() && s.reference_steps > 0) {
    if (auto done = run_references(s, *text, exchange, results); !done.ok()) return done;
    const uint64_t hash = results.ranks.front().early_hash;
    const bool exact = codec->is_plain() && s.compression.by == GradientCompression::By::nothing && !may_drop(s.training) &&
                       !s.training.sharded;
    const auto judged = [&](double tolerance) { return exact ? std::optional(tolerance) : std::nullopt; };
    results.in_order_comparison = compare(results.history.losses, hash, *results.in_order, judged(s.tolerance_parts));
    results.whole_comparison = compare(results.history.losses, hash, *results.whole, judged(s.tolerance_whole));
  }
  if (!speaks) return results.parameters_identical() ? 0 : 1;
  results.sample = trainer.write_text("\n", s.sample_bytes, s.training.seed);
  return show(s, results);
}

}  // namespace
}  // namespace language_model

int main(int argc, char** argv) {
  language_model::Settings settings;
  CLI::App app(
      "Trains a small language model on a text, data-parallel over Unisono.\n"
      "Start it on several processes with: unisono launch -n 4 -- train_model --text FILE");
  language_model::declare_options(app, settings);
  try {
    app.parse(argc, argv);
    const auto status = language_model::run(settings);
    if (status.ok()) return *status;
    fmt::print(stderr, "train_model: {}\n", status.status().to_string());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "train_model: not enough memory for this model and batch\n");
  }
  return 2;
}

// train_elastic: one peer of a training. Other processes can join and leave while the training runs.
//
//   train_elastic --text text.txt --run demo --found --port 4040              starts the run
//   train_elastic --text text.txt --run demo --join 127.0.0.1:4040            joins the run; start any number of these
//
//   unisono launch -n 4 -- train_elastic --text text.txt --checkpoint last.bin
//                                       the alternative: exact training, restarted when a process is lost
//
// On SIGTERM and SIGINT, the process leaves the run and exits. The exit status is 0 at the end or after a signal. It is 2
// if the training failed; the reason is then on standard error.
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "research/elastic/elastic_view.h"
#include "research/elastic/restartable_training.h"
#include "unisono/elastic.h"

namespace language_model {
namespace {

using unisono::Code;
using unisono::Result;
using unisono::Status;

constexpr const char* optimizer_blob = "language_model.adamw";

volatile sig_atomic_t stop_signal = 0;

struct Settings {
  LocalTrainerOptions training;
  ElasticLoopOptions loop;
  unisono::ElasticOptions elastic;
  std::string text, sgd = "local_steps=8", events, checkpoint, profile = "lan";
  uint64_t checkpoint_every = 50;
  double held_out = 0.05;
  int64_t stream = -1;
  uint32_t gather_ms = 0, stall_ms = 0;
  // With `--events -`, standard output is for events only, so all other output goes to standard error.
  std::FILE* out() const { return events == "-" ? stderr : stdout; }
};

// Installs signal handlers, so that a signal makes the process leave the run. Call it when the process has joined the run.
// Before that, a signal ends the process at once.
void watch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_signal = 1; };
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

void declare_training(CLI::App& app, Settings& s) {
  auto& t = s.training;
  app.add_option("--text", s.text, "the file to learn from, see prepare_text.sh")->required()->check(CLI::ExistingFile);
  app.add_option("--batch", t.batch, "sequences per step of this process")->capture_default_str()->check(CLI::Range(1, 65536));
  app.add_option("--context", t.shape.context, "bytes per sequence")->capture_default_str();
  app.add_option("--layers", t.shape.layers, "transformer blocks")->capture_default_str();
  app.add_option("--width", t.shape.width, "width of the residual stream")->capture_default_str();
  app.add_option("--heads", t.shape.heads, "number of attention heads")->capture_default_str();
  app.add_option("--hidden", t.shape.hidden, "width of the SwiGLU")->capture_default_str();
  app.add_option("--lr", t.optimizer.learning_rate, "learning rate after a warm-up of 50 steps")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", t.seed, "seed of the initial parameters and of the random choices")->capture_default_str();
  app.add_option("--stream", s.stream, "number of the random sequence of this process; none: chosen at random")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--steps", s.loop.steps, "step of the run after which this process ends; 0: no end")->capture_default_str();
  app.add_option("--seconds", s.loop.seconds, "seconds after which this process ends; 0: no end")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--validate-every", s.loop.validate_every,
                 "steps of this process between validations on the held-out text; 0: at the end only")
      ->capture_default_str();
  app.add_option("--validation-sequences", s.loop.final_validation_sequences,
                 "sequences of the held-out text for the final validation")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--held-out", s.held_out, "share of the text that is held out for validation")->capture_default_str();
  app.add_option("--events", s.events,
                 "file for JSON lines, one for each averaging step and each other event; -: standard output");
}

void declare_run(CLI::App& app, Settings& s) {
  auto& e = s.elastic;
  auto* run = app.add_option("--run", e.run_id, "name of the run");
  auto* found = app.add_flag("--found", e.found, "founds the run if no peer answers at --join");
  auto* join =
      app.add_option(
             "--join", e.seeds,
             "addresses of peers of the run: host:port, or file:PATH with one address per line; one reachable peer is enough")
          ->delimiter(',');
  auto* port = app.add_option("--port", e.port, "port to listen at; 0: the kernel chooses")->capture_default_str();
  auto* name = app.add_option("--name", e.name, "name of this peer in messages");
  auto* profile = app.add_option("--profile", s.profile, "how long peers wait for each other: lan or wan")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"lan", "wan"}));
  auto* group = app.add_option("--max-group", e.max_group, "largest number of peers in a group")->capture_default_str();
  auto* peers = app.add_option("--min-peers", e.min_peers, "number of peers that the first averaging step waits for")
                    ->capture_default_str();
  auto* gather = app.add_option("--gather-ms", s.gather_ms, "how long a group waits for absent peers; 0: value of the profile")
                     ->capture_default_str();
  auto* stall = app.add_option("--stall-ms", s.stall_ms, "how long a group waits for a silent peer; 0: value of the profile")
                    ->capture_default_str();
  auto* sgd =
      app.add_option("--sgd", s.sgd, "a text of MoshpitSgdOptions::parse, such as local_steps=16,average=pseudo_gradients")
          ->capture_default_str();
  for (auto* option : {static_cast<CLI::Option*>(found), join, port, name, profile, group, peers, gather, stall, sgd})
    option->needs(run);
  auto* checkpoint =
      app.add_option("--checkpoint", s.checkpoint,
                     "instead of an elastic run: exact data-parallel training in the group of the environment (unisono "
                     "launch), which continues from this file");
  checkpoint->excludes(run);
  app.add_option("--checkpoint-every", s.checkpoint_every, "steps between checkpoints")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->needs(checkpoint);
}

// Shows the progress. On a terminal, it is a page that is drawn again and again. Otherwise it is a line every few seconds.
class Screen {
 public:
  Screen(const Settings& s, size_t tokens_per_step, unisono::Elastic& peer, const unisono::MoshpitSgd& sgd)
      : run_(s.elastic.run_id),
        name_(s.elastic.name.empty() ? "this process" : s.elastic.name),
        tokens_per_step_(tokens_per_step),
        peer_(peer),
        sgd_(sgd),
        out_(s.out()),
        terminal_(isatty(fileno(out_)) == 1) {}

  void show(const TrainingTally& tally, const unisono::AveragingReport* averaging, double now) {
    if (now - drawn_s_ < (terminal_ ? 0.25 : 5.0)) return;
    const double rate = static_cast<double>((tally.steps - drawn_steps_) * tokens_per_step_) / std::max(1e-9, now - drawn_s_);
    drawn_s_ = now, drawn_steps_ = tally.steps;
    const ElasticView view{.run = run_,
                           .name = name_,
                           .status = peer_.status(),
                           .report = sgd_.report(),
                           .averaging = averaging,
                           .tally = tally,
                           .tokens_per_s = rate};
    winsize size{};
    const bool known = terminal_ && ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 10;
    if (terminal_)
      fmt::print(out_, "\033[H\033[J{}", page_of(view, known ? size.ws_col - 1u : 79u, known ? size.ws_row - 9u : 15u));
    else fmt::print(out_, "{}\n", line_of(view));
    std::fflush(out_);
  }

 private:
  const std::string run_, name_;
  const size_t tokens_per_step_;
  unisono::Elastic& peer_;
  const unisono::MoshpitSgd& sgd_;
  std::FILE* const out_;
  const bool terminal_;
  double drawn_s_ = 0;
  uint64_t drawn_steps_ = 0;
};

class RealAveragingSteps final : public AveragingSteps {
 public:
  explicit RealAveragingSteps(unisono::MoshpitSgd& sgd) : sgd_(sgd) {}
  Result<unisono::MoshpitStep> after_step(std::span<float> parameters, uint64_t samples) override {
    return sgd_.after_step(parameters, samples);
  }
  Result<unisono::MoshpitStep> finish(std::span<float> parameters) override { return sgd_.finish(parameters); }
  uint64_t steps() const override { return sgd_.steps(); }
  unisono::MoshpitSgdReport report() const override { return sgd_.report(); }

 private:
  unisono::MoshpitSgd& sgd_;
};

int print_outcome(const Settings& s, const ElasticOutcome& outcome, const std::string& more) {
  if (outcome.held_out) fmt::print(s.out(), "loss {:.4f} on held-out text  ", *outcome.held_out);
  fmt::print(s.out(), "{} steps here, {} of the run; useful {:.1f} % of {:.1f} s{}; ended: {}\n", outcome.tally.steps,
             outcome.tally.run_steps, 100 * outcome.tally.useful_share(), outcome.tally.life_s, more, outcome.why);
  return outcome.why.starts_with("refused") ? 2 : 0;
}

Result<int> run_peer(Settings& s, const Text& text, EventLog& log) {
  const auto sgd_options = unisono::MoshpitSgdOptions::parse(s.sgd);
  if (!sgd_options.ok()) return sgd_options.status();
  LocalTrainer trainer(s.training, text);
  s.elastic.tensor_elements = {trainer.parameters().size()};
  s.elastic.profile = s.profile == "wan" ? unisono::ElasticOptions::Profile::wan : unisono::ElasticOptions::Profile::lan;
  s.elastic.gather_timeout = unisono::Milliseconds{s.gather_ms};
  s.elastic.stall_timeout = unisono::Milliseconds{s.stall_ms};
  auto run = unisono::Elastic::join(s.elastic);
  if (!run.ok()) return run.status();
  watch_signals();
  auto sgd = unisono::MoshpitSgd::make(*run, trainer.parameters(), *sgd_options);
  if (!sgd.ok()) return sgd.status();
  for (const auto& [name, bytes] : run->state().blobs) {
    if (name != optimizer_blob) continue;
    // If the moments of the other peer's optimizer cannot be loaded, this process starts with zeros. The training goes on, but
    // its next steps are a little worse.
    if (auto loaded = trainer.load_optimizer(bytes); !loaded.ok())
      fmt::print(stderr, "train_elastic: {}\n", loaded.to_string());
  }
  sgd->give_state([&trainer] {
    unisono::MoshpitSgd::Blobs blobs;
    // The saved bytes are moved in. An initializer list would copy them.
    blobs.emplace_back(optimizer_blob, trainer.save_optimizer());
    return blobs;
  });
  log.joined(run->state(), {.run_steps = sgd->steps(), .life_s = s.loop.clock()});
  for (const auto& endpoint : run->status().endpoints) fmt::print(s.out(), "listening at {}\n", endpoint);
  std::fflush(s.out());
  RealAveragingSteps averaging_steps(*sgd);
  Screen screen(s, trainer.tokens_per_step(), *run, *sgd);
  const auto outcome = train_elastic(trainer, averaging_steps, s.loop, log,
                                     [&](const TrainingTally& tally, const unisono::AveragingReport* averaging) {
                                       screen.show(tally, averaging, s.loop.clock());
                                     });
  if (outcome.why == "told") sgd->abandon();
  if (auto left = run->leave(); !left.ok()) fmt::print(stderr, "train_elastic: leaving: {}\n", left.to_string());
  return print_outcome(s, outcome, "; " + sgd->report().to_string());
}

Result<int> run_job(Settings& s, const Text& text, EventLog& log) {
  auto exchange = make_group_exchange({.exact_tail = loss_elements});
  if (!exchange.ok()) return exchange.status();
  watch_signals();
  s.training.stream = (*exchange)->rank();
  LocalTrainer trainer(s.training, text);
  const auto outcome = train_restartable(trainer, **exchange,
                                         {.loop = s.loop, .checkpoint = s.checkpoint, .checkpoint_every = s.checkpoint_every},
                                         log, [](const TrainingTally&, const unisono::AveragingReport*) {});
  if (!outcome.ok()) return outcome.status();
  return print_outcome(s, *outcome, "");
}

Result<int> run(Settings& s) {
  if (s.elastic.run_id.empty() && s.checkpoint.empty())
    return Status(Code::invalid,
                  "give --run (a peer of an elastic run) or --checkpoint (exact training that can be restarted)");
  if (auto shape = s.training.shape.validate(); !shape.ok()) return shape;
  const auto text = Text::load(s.text, s.held_out, s.training.shape.context);
  if (!text.ok()) return text.status();
  auto log = EventLog::open(s.events);
  if (!log.ok()) return log.status();
  s.training.optimizer.warm_up_steps = 50;
  // The learning rate stays constant after the warm-up. It cannot fall to 0 at the end, because nobody knows when the run ends.
  s.training.optimizer.steps = std::numeric_limits<uint32_t>::max();
  s.loop.progress_every_s = 1;
  s.training.stream =
      s.stream >= 0 ? static_cast<uint64_t>(s.stream) : mixed(std::random_device{}(), std::random_device{}(), 0);
  s.loop.batch = s.training.batch;
  const auto begun = std::chrono::steady_clock::now();
  s.loop.clock = [begun] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); };
  s.loop.stop_requested = [] { return stop_signal != 0; };
  return s.checkpoint.empty() ? run_peer(s, *text, *log) : run_job(s, *text, *log);
}

}  // namespace
}  // namespace language_model

int main(int argc, char** argv) {
  language_model::Settings settings;
  CLI::App app(
      "Trains the language model in one process of an elastic run; processes join and leave while the training "
      "continues.\nOther processes join with: "
      "train_elastic --text FILE --run NAME --join HOST:PORT");
  language_model::declare_training(app, settings);
  language_model::declare_run(app, settings);
  try {
    app.parse(argc, argv);
    const auto status = language_model::run(settings);
    if (status.ok()) return *status;
    fmt::print(stderr, "train_elastic: {}\n", status.status().to_string());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "train_elastic: not enough memory for this model and batch\n");
  }
  return 2;
}

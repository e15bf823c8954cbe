// language_model: several processes train one small language model together, each on its own part of every batch.
//
//   unisono launch -n 4 -- language_model --text text.txt --out out
//
// This is data-parallel training. Every rank (process) has the same parameters. In each step, every rank computes the gradients
// of its own examples, an all-reduce replaces them by their average over all ranks, and every rank takes the same optimizer
// step. The program prints a table and draws OUT/loss.svg. Exit status: 0; 1 if ranks ended with different parameters; 2 if the
// training could not be done.
#include <unisono/unisono.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numbers>
#include <random>
#include <string>
#include <utility>

#include "model.h"
#include "plot.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Settings {
  std::string text, out = "out";
  size_t steps = 2500;
  size_t batch = 512;  // number of examples per step, on all ranks together
};

// One row of the table, which is also one point of each curve. The losses are averages over all ranks.
struct Row {
  size_t step = 0;
  float training_loss = 0, held_out_loss = 0;
};

class Training {
 public:
  Training(unisono::Group& group, const std::string& text, const Settings& settings)
      : group_(group),
        text_(text),
        settings_(settings),
        training_end_(text.size() - text.size() / 20),
        gradients_(model_.parameters().size()),
        adam_(gradients_.size()),
        random_(1000 + group.rank()) {}

  // Trains one step. Returns the loss of this rank's examples, as it was before the step.
  unisono::Result<float> step(size_t index) {
    // Each rank draws different examples, because its random generator has a different seed.
    std::uniform_int_distribution<size_t> anywhere(model_.shape().context, training_end_ - 1);
    std::vector<size_t> positions(settings_.batch / group_.world_size());
    for (auto& position : positions) position = anywhere(random_);

    // all_reduce_async() starts to average over the ranks, and returns at once. So the gradients of one layer are sent while
    // those of the next layer are computed. The gradients must not be touched before wait() has returned. All ranks start the
    // same operations in the same order.
    std::vector<unisono::Work> works;
    const auto average = [&](size_t first, size_t count) {
      works.push_back(group_.all_reduce_async(std::span(gradients_).subspan(first, count), {.op = unisono::ReduceOp::avg}));
    };
    const float loss = model_.loss_and_gradients(text_, positions, gradients_, average);

    // wait() returns when the average is complete. Its bits are equal on all ranks. If a rank is lost or late, wait() returns a
    // Status that names this rank. The report says how much was sent.
    const auto start = Clock::now();
    unisono::Status failure;
    for (auto& work : works) {
      const auto report = work.wait();
      if (report) sent_bytes_ += report->sent_bytes;
      else failure = report.status();
    }
    waited_s_ += seconds_since(start);
    if (!failure.ok()) return failure;
    adam_.step(model_.parameters(), gradients_, learning_rate(index));
    return loss;
  }

  // Computes one row of the table. Each rank computes the loss of its part of the held-out text. Then one all-reduce averages
  // both losses.
  unisono::Result<Row> row(size_t step, float training_loss) {
    std::vector<size_t> positions;
    const size_t examples = 2048, first = training_end_ + model_.shape().context;
    for (size_t i = group_.rank(); i < examples; i += group_.world_size())
      positions.push_back(first + (text_.size() - first) * i / examples);
    std::vector<float> losses{training_loss, model_.loss(text_, positions)};
    if (auto report = group_.all_reduce(std::span(losses), {.op = unisono::ReduceOp::avg}); !report) return report.status();
    return Row{.step = step, .training_loss = losses[0], .held_out_loss = losses[1]};
  }

  // Returns whether all ranks have bitwise equal parameters. For this, the ranks compare hashes of their parameters.
  unisono::Result<bool> same_on_all_ranks() {
    uint64_t hash = 0xCBF29CE484222325;  // the hash is FNV-1a
    for (const float value : model_.parameters()) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3;
    const std::vector<uint64_t> mine{hash};
    std::vector<uint64_t> all(group_.world_size());
    if (auto report = group_.all_gather(std::span(mine), std::span(all)); !report) return report.status();
    return std::count(all.begin(), all.end(), hash) == static_cast<std::ptrdiff_t>(all.size());
  }

  // Lets the model write text, byte by byte, and returns it. Each byte is drawn from the model's probabilities at temperature
  // 0.8.
  std::string sample(size_t bytes) {
    std::string text = text_.substr(training_end_, model_.shape().context);
    while (text.size() < bytes) {
      auto weights = model_.next_byte(text);
      for (auto& weight : weights) weight = std::pow(weight, 1 / 0.8f);
      const auto byte = std::discrete_distribution<int>(weights.begin(), weights.end())(random_);
      text += byte == '\n' || (byte >= ' ' && byte <= '~') ? static_cast<char>(byte) : '?';
    }
    return text;
  }

  size_t parameter_count() const { return gradients_.size(); }
  double sent_megabytes() const { return static_cast<double>(sent_bytes_) / 1e6; }
  double waited_s() const { return waited_s_; }

 private:
  // The learning rate rises during the first twentieth of the steps. Then it falls to zero along a cosine.
  float learning_rate(size_t index) const {
    const double done = static_cast<double>(index + 1) / static_cast<double>(settings_.steps);
    return static_cast<float>(0.004 * std::min(done / 0.05, 0.5 + 0.5 * std::cos(std::numbers::pi * done)));
  }

  unisono::Group& group_;
  const std::string& text_;
  const Settings& settings_;
  size_t training_end_;      // the last twentieth of the text is held out
  Model model_{Shape{}, 1};  // equal seeds give all ranks the same initial parameters
  std::vector<float> gradients_;
  Adam adam_;
  std::mt19937_64 random_;
  uint64_t sent_bytes_ = 0;
  double waited_s_ = 0;
};

// Draws the curves into a file. Returns false if the file cannot be written.
bool draw(const std::string& folder, const std::vector<Row>& rows) {
  Curve training{"training", "#1f77b4", {}}, held_out{"held-out text", "#d62728", {}};
  for (const Row& row : rows) {
    training.points.emplace_back(row.step, row.training_loss);
    held_out.points.emplace_back(row.step, row.held_out_loss);
  }
  std::filesystem::create_directories(folder);
  std::ofstream file(folder + "/loss.svg");
  file << svg_plot({training, held_out}, "step", "loss in nats per byte", static_cast<double>(rows.back().step), 0.5);
  return file.flush().good();
}

// Trains, and returns the exit status. Only rank 0 prints.
unisono::Result<int> run(const Settings& settings, const std::string& text) {
  // join() reads the rank, the world size and the rendezvous address from the environment. `unisono launch`, torchrun, Slurm or
  // Open MPI put them there. If a rank is missing, join() returns an error that names it.
  auto group = unisono::Group::join();
  if (!group) return group.status();
  if (settings.batch < group->world_size())
    return unisono::Status(unisono::Code::invalid, "--batch: fewer examples than ranks");
  Training training(*group, text, settings);
  const bool speaks = group->rank() == 0;
  if (speaks) {
    std::printf("%zu parameters, %u ranks, %zu examples per step\n\n", training.parameter_count(), group->world_size(),
                settings.batch);
    std::printf("%6s %14s %14s %9s\n", "step", "training loss", "held-out loss", "seconds");
  }
  const auto start = Clock::now();
  const size_t interval = std::max<size_t>(10, settings.steps / 60);  // number of steps between two points of a curve
  std::vector<Row> rows;
  float sum = 0;  // sum of the losses of all steps since the last point
  size_t count = 0;
  for (size_t step = 1; step <= settings.steps; ++step) {
    const auto loss = training.step(step - 1);
    if (!loss) return loss.status();
    sum += *loss, ++count;
    if (step % interval != 0 && step != settings.steps) continue;
    const auto row = training.row(step, std::exchange(sum, 0) / static_cast<float>(std::exchange(count, 0)));
    if (!row) return row.status();
    rows.push_back(*row);
    if (!speaks || (rows.size() % 5 != 1 && step != settings.steps)) continue;
    std::printf("%6zu %14.3f %14.3f %9.1f\n", step, row->training_loss, row->held_out_loss, seconds_since(start));
    std::fflush(stdout);
  }
  const double total = seconds_since(start);
  const auto same = training.same_on_all_ranks();
  if (!same) return same.status();
  if (!speaks) return *same ? 0 : 1;
  std::printf("\n%s\n\n", training.sample(400).c_str());
  std::printf("%zu steps in %.1f s, of which rank 0 waited %.1f s for gradients; it sent %.1f MB.\n", settings.steps, total,
              training.waited_s(), training.sent_megabytes());
  std::printf("Parameters are %s on all ranks.\n", *same ? "the same" : "NOT the same");
  if (!draw(settings.out, rows))
    return unisono::Status(unisono::Code::unavailable, "cannot write " + settings.out + "/loss.svg");
  std::printf("Wrote %s/loss.svg\n", settings.out.c_str());
  return *same ? 0 : 1;
}

int usage() {
  std::fprintf(stderr, "usage: unisono launch -n 4 -- language_model --text FILE [--out FOLDER] [--steps N] [--batch N]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) return usage();
    if (option == "--text") settings.text = argv[i + 1];
    else if (option == "--out") settings.out = argv[i + 1];
    else if (option == "--steps") settings.steps = std::strtoul(argv[i + 1], nullptr, 10);
    else if (option == "--batch") settings.batch = std::strtoul(argv[i + 1], nullptr, 10);
    else return usage();
  }
  if (settings.text.empty() || settings.steps == 0 || settings.batch == 0) return usage();
  std::ifstream file(settings.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() < 10'000)
    return std::fprintf(stderr, "language_model: %s has less than 10,000 bytes, or cannot be read\n", settings.text.c_str()), 2;
  const auto status = run(settings, text);
  if (status) return *status;
  std::fprintf(stderr, "language_model: %s\n", status.status().to_string().c_str());
  return 2;
}

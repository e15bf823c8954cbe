// tensor_parallel: runs the prefill and the decode of a transformer whose weights are split over the ranks. They run once for
// each way to send partial sums.
//
//   unisono launch -n 4 -- tensor_parallel                          inside this machine
//   unisono launch -n 4 --rate 100M -- tensor_parallel              over links that the launcher emulates
//   run_limited --rate 1G -- --repetitions 5 --out out              over links of 1 Gbit/s, see README.md
//
// The exit status is 0 if all ranks ended with the same bits, and 1 if they did not. It is 2 if the run failed; the reason is
// then on standard error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstdio>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "research/model/progress.h"
#include "research/tensor_parallel/results.h"

namespace tensor_parallel {
namespace {

using unisono::Code;
using unisono::Group;
using unisono::Result;
using unisono::Status;

struct Arguments {
  Shape shape;
  MeasureOptions measure;
  std::vector<std::string> settings{"exact", "bf16", "int8", "int5", "int4", "q80"};
  std::string out;
};

void declare_options(CLI::App& app, Arguments& a) {
  app.add_option("--settings", a.settings,
                 "encodings of the partial sums, tried in turn: exact, q80, or a codec of docs/guides/thin_links.md; compared "
                 "with the first one")
      ->capture_default_str()
      ->delimiter(',');
  app.add_option("--blocks", a.shape.blocks, "transformer blocks")->capture_default_str();
  app.add_option("--weight-sets", a.shape.weight_sets,
                 "number of different weight sets in memory; block i uses set i modulo this")
      ->capture_default_str();
  app.add_option("--hidden", a.shape.hidden, "width of the residual stream")->capture_default_str();
  app.add_option("--heads", a.shape.heads, "number of attention heads")->capture_default_str();
  app.add_option("--inner", a.shape.inner, "width of the gated MLP")->capture_default_str();
  app.add_option("--prompt", a.measure.prompt, "tokens of the prefill")->capture_default_str()->check(CLI::Range(1, 1 << 19));
  app.add_option("--tokens", a.measure.tokens, "tokens to decode after the prompt, one at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 19));
  app.add_option("--repetitions", a.measure.repetitions, "repetitions of prefill and decode with every setting")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--seed", a.measure.weights.seed, "seed of weights and tokens")->capture_default_str();
  app.add_option("--outlier", a.measure.weights.outlier, "factor by which one channel in 512 is larger; 1: no such channel")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1000.0));
  app.add_option("--out", a.out, "directory for summary.json, times.svg and alone.svg");
}

// Checks that all ranks have the same options. If they had not, they would add up parts of different models.
Status check_agreement(const Arguments& a, Group& group) {
  const auto& m = a.measure;
  std::vector<uint64_t> numbers{a.shape.blocks, a.shape.weight_sets,
                                a.shape.hidden, a.shape.heads,
                                a.shape.inner,  m.prompt,
                                m.tokens,       m.repetitions,
                                m.weights.seed, std::bit_cast<uint32_t>(m.weights.outlier)};
  uint64_t words = 0xCBF29CE484222325ull;
  for (const auto& setting : m.settings) {
    for (const char c : setting.name + ",") words = (words ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  }
  numbers.push_back(words);
  const auto all = gather(group, numbers);
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < all->size(); ++i) {
    if ((*all)[i] != (*all)[i % numbers.size()])
      return Status(Code::invalid,
                    fmt::format("rank {} was started with options that differ from those of rank 0", i / numbers.size()));
  }
  return {};
}

Result<int> run(Arguments a) {
  for (const auto& word : a.settings) {
    auto setting = parse_setting(word);
    if (!setting.ok()) return Status(Code::invalid, fmt::format("--settings {}: {}", word, setting.status().message()));
    a.measure.settings.push_back(*std::move(setting));
  }
  a.shape.weight_sets = std::min(a.shape.weight_sets, a.shape.blocks);
  a.shape.context = a.measure.prompt + a.measure.tokens;
  auto group = Group::join();
  if (!group.ok()) return group.status();
  if (auto valid = a.shape.validate(group->world_size()); !valid.ok()) return valid;
  if (auto agreed = check_agreement(a, *group); !agreed.ok()) return agreed;
  Transformer model(a.shape, a.measure.weights, {.index = group->rank(), .count = group->world_size()});
  const bool speaks = group->rank() == 0;
  language_model::Progress progress(
      {.title = fmt::format("{} ranks", group->world_size()), .steps = a.measure.repetitions * a.measure.settings.size()});
  auto measured = measure(*group, model, a.measure, [&](size_t runs, const std::string& setting) {
    if (speaks) progress.show(runs, fmt::format("{:<8}", setting));
  });
  if (!measured.ok()) return measured.status();
  const int status = measured->faults.empty() ? 0 : 1;
  if (!speaks) return status;
  const Results results{.shape = a.shape,
                        .options = a.measure,
                        .world_size = group->world_size(),
                        .links = group->link_speeds().to_string(),
                        .kernels = language_model::kernels<float>().name,
                        .weight_bytes = model.weight_bytes(),
                        .measured = *std::move(measured)};
  std::fputs(table(results).c_str(), stdout);
  const auto written = a.out.empty() ? Status() : write_files(results, a.out);
  if (written.ok() && !a.out.empty()) fmt::print("\nWrote {0}/summary.json, {0}/times.svg and {0}/alone.svg\n", a.out);
  std::fflush(stdout);
  for (const auto& fault : results.measured.faults) fmt::print(stderr, "tensor_parallel: FAILED: {}\n", fault);
  if (!written.ok()) return written;
  return status;
}

}  // namespace
}  // namespace tensor_parallel

int main(int argc, char** argv) {
  tensor_parallel::Arguments arguments;
  CLI::App app(
      "Runs prefill and decode of a transformer with random weights, tensor-parallel over Unisono, once for each encoding "
      "of the partial sums.\n"
      "Start it on several processes with: unisono launch -n 4 -- tensor_parallel");
  tensor_parallel::declare_options(app, arguments);
  try {
    app.parse(argc, argv);
    const auto status = tensor_parallel::run(arguments);
    if (status.ok()) return *status;
    fmt::print(stderr, "tensor_parallel: {}\n", status.status().to_string());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tensor_parallel: not enough memory for this model; --weight-sets 1 shares the weights of all blocks\n");
  }
  return 2;
}

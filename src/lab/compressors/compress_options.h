// The options of `unisono-lab bench compress`, from words to a plan that every rank works through alike.
#pragma once

#include <CLI/App.hpp>

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench_ranks.h"
#include "cli/common/command_line.h"
#include "compressors/row_rule.h"
#include "lab/compressors/compress_data.h"
#include "unisono/codec.h"

namespace unisono::cli {

extern const CommandLineText compress_text;

// As typed; parsed by make_compress_plan.
struct CompressOptions {
  std::string methods = "dense,arc,random-k,top-k,power_sgd";
  std::string shapes = "1024x1024";
  double ratio = 0.2;
  uint32_t rank = 4;
  std::string power_rank = "auto";
  std::string feedback = "ef14";
  std::string codec;
  std::string data;
  std::optional<double> noise;
  std::string gradients;
  uint64_t seed = 0;
  uint32_t steps = 20;
  uint32_t warmup = 2;
  std::string timeout = "60s";
  std::string json, plot;
  std::string progress = "auto";
  LaunchOptions launch;
};

void add_compress_options(CLI::App& app, CompressOptions& options);

enum class Method : uint8_t { dense, arc, random_k, top_k, power_sgd };
const char* name(Method method);
// Its average, or that of its values, may be encoded.
bool takes_codec(Method method);

struct CompressPlan {
  std::vector<Method> methods;
  RowRule rule;
  uint32_t power_rank = 0;  // 0: of equal bytes
  bool feedback = true;
  Codec codec{};  // not plain: methods that take one are measured with it, too
  GradientPlan gradients;
  uint64_t seed = 0;
  uint32_t steps = 20, warmup = 2;
  Milliseconds timeout{60'000};
  LinkLimits limits;
};

// invalid: which option is wrong and what it takes.
Result<CompressPlan> make_compress_plan(const CompressOptions& options);

}  // namespace unisono::cli

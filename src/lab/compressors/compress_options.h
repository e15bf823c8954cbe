// Turns the options of `unisono-lab bench compress` into a plan. Every rank executes the same plan.
#pragma once

#include <CLI/App.hpp>

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench_ranks.h"
#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "compressors/row_rule.h"
#include "lab/compressors/compress_data.h"
#include "unisono/codec.h"

namespace unisono::lab {

extern const cli::CommandLineText compress_text;

// Option values as the user typed them; make_compress_plan() parses them.
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
  cli::OutputOptions results = {};
  std::string plot;
  std::string progress = "auto";
  cli::LaunchOptions launch;
};

void add_compress_options(CLI::App& app, CompressOptions& options);

enum class Method : uint8_t { dense, arc, random_k, top_k, power_sgd };
const char* name(Method method);
// True if a codec may encode the gradients or values that this method averages.
bool takes_codec(Method method);

struct CompressPlan {
  std::vector<Method> methods;
  RowRule rule;
  uint32_t power_rank = 0;  // 0: chosen so that PowerSGD sends as many bytes as ARC-Top-K
  bool feedback = true;
  Codec codec{};  // if not plain, each method that can use a codec is measured twice: without this codec, and with it
  GradientPlan gradients;
  uint64_t seed = 0;
  uint32_t steps = 20, warmup = 2;
  Milliseconds timeout{60'000};
  cli::LinkLimits limits;
};

// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<CompressPlan> make_compress_plan(const CompressOptions& options);

}  // namespace unisono::lab

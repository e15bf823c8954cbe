// One step of a training whose processes each own a shard of the parameters, over links that lose packets: gradients in,
// parameters out.
//
// The right way is the library's ShardedStep (unisono/sharded_step.h). Beside it are ways that do one thing wrong, to show what
// the rule is for that they break (wrong_broadcasts.h): nobody should train like that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "unisono/group.h"
#include "unisono/sharded_step.h"
#include "unisono/status.h"

namespace language_model {

// zero_parameters: values that do not arrive become zeros, instead of staying what they were. differences: owners send by how
// much their values have changed, and what arrives is added.
enum class WrongBroadcast : uint8_t { none, zero_parameters, differences };

struct ShardedPlan {
  unisono::ShardedOptions options;
  WrongBroadcast wrong = WrongBroadcast::none;
  std::string ablation = {};  // as it was asked for; empty: nothing is done wrong
};

// text: as ShardedOptions::parse reads it. ablation: empty; count or zero_fill, which are the estimator; zero_parameters or
// differences. clip_norm: where the text says nothing of clip=. invalid: names what is wrong.
unisono::Result<ShardedPlan> parse_sharded(const std::string& text, const std::string& ablation, double clip_norm);

class ShardedExchange {
 public:
  virtual ~ShardedExchange() = default;
  // What this rank computes with: a replica of its own.
  virtual std::span<const float> parameters() const = 0;
  // After so many steps.
  virtual uint32_t step() const = 0;
  // gradients: this rank's, of all parameters. A rank that was away goes on with the others, some steps later.
  virtual unisono::Result<unisono::ShardedReport> run(std::span<const float> gradients, double rate) = 0;
  // The owners' values of all parameters, equal on all ranks. All ranks call it alike.
  virtual unisono::Status owners_values(std::span<float> values) = 0;
};

// All ranks call it; rank 0's parameters are taken. Errors: those of ShardedStep::make.
unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded_exchange(const unisono::Group& group, const ShardedPlan& plan,
                                                                        std::span<const float> parameters,
                                                                        std::unique_ptr<unisono::ShardOptimizer> optimizer);

}  // namespace language_model

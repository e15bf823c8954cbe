// One step of a training whose processes each own a shard of the parameters, over links that lose packets: gradients in,
// parameters out.
//
// The right way is the library's ShardedStep (unisono/sharded_step.h). Other ways break one of its rules on purpose, to show
// what the rule is for (wrong_broadcasts.h). Do not train like that.
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
  std::string ablation = {};  // as the option names it; empty: no rule is broken
};

// text: as ShardedOptions::parse reads it. ablation: empty; count or zero_fill, which are estimators; zero_parameters or
// differences. clip_norm: the value if the text has no clip=. invalid: names the wrong option.
unisono::Result<ShardedPlan> parse_sharded(const std::string& text, const std::string& ablation, double clip_norm);

class ShardedExchange {
 public:
  virtual ~ShardedExchange() = default;
  // The parameters that this rank computes with: its own replica.
  virtual std::span<const float> parameters() const = 0;
  // The number of steps done.
  virtual uint32_t step() const = 0;
  // gradients: this rank's, for all parameters. A rank that was away continues with the others, some steps later.
  virtual unisono::Result<unisono::ShardedReport> run(std::span<const float> gradients, double rate) = 0;
  // The owners' values of all parameters, equal on all ranks. All ranks call it alike.
  virtual unisono::Status owners_values(std::span<float> values) = 0;
};

// All ranks call it; all begin with rank 0's parameters. Errors: those of ShardedStep::make.
unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded_exchange(const unisono::Group& group, const ShardedPlan& plan,
                                                                        std::span<const float> parameters,
                                                                        std::unique_ptr<unisono::ShardOptimizer> optimizer);

}  // namespace language_model

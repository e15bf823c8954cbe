// The steps of a training over links that lose packets. Each process owns a shard of the parameters. A step takes gradients and
// returns new parameters.
//
// The correct implementation is the library's ShardedStep (unisono/sharded_step.h). The other implementations break one of its
// rules on purpose, to show why the rule exists (wrong_broadcasts.h). Do not train with those.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "unisono/group.h"
#include "unisono/sharded_step.h"
#include "unisono/status.h"

namespace language_model {

// Says what happens to a value that does not arrive. zero_parameters: it becomes zero, instead of keeping its old value.
// differences: owners send the changes of values, and receivers add them; a change that is lost is never added.
enum class WrongBroadcast : uint8_t { none, zero_parameters, differences };

struct ShardedPlan {
  unisono::ShardedOptions options;
  WrongBroadcast wrong = WrongBroadcast::none;
  std::string ablation = {};  // text of the option --ablation; empty: no rule is broken
};

// Parses the options of a sharded training. `text` has the options of ShardedOptions::parse. If it has no clip=, the gradients
// are clipped to `clip_norm`. `ablation` names the rule to break; an empty text breaks none. `count` and `zero_fill` select a
// wrong estimator; `zero_parameters` and `differences` select a wrong broadcast. Returns invalid, with the name of the option,
// if an option is wrong.
unisono::Result<ShardedPlan> parse_sharded(const std::string& text, const std::string& ablation, double clip_norm);

class ShardedExchange {
 public:
  virtual ~ShardedExchange() = default;
  // Returns this rank's replica (copy) of the parameters, with which the rank computes its gradients.
  virtual std::span<const float> parameters() const = 0;
  // Returns the number of steps that are done.
  virtual uint32_t step() const = 0;
  // Runs a step. `gradients` are this rank's gradients of all parameters. If the rank was away, it continues at the step of the
  // other ranks.
  virtual unisono::Result<unisono::ShardedReport> run(std::span<const float> gradients, double rate) = 0;
  // Writes, for every parameter, the value that its owner has. The result is equal on all ranks. All ranks must call it
  // together.
  virtual unisono::Status owners_values(std::span<float> values) = 0;
};

// All ranks must call it. All of them start with the parameters of rank 0. Returns the errors of ShardedStep::make.
unisono::Result<std::unique_ptr<ShardedExchange>> make_sharded_exchange(const unisono::Group& group, const ShardedPlan& plan,
                                                                        std::span<const float> parameters,
                                                                        std::unique_ptr<unisono::ShardOptimizer> optimizer);

}  // namespace language_model

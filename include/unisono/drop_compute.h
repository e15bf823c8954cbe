// DropCompute: a compute threshold per step, so that no rank waits long for the slowest of many micro-batches.
//
//   auto drop = unisono::DropCompute::make(*group, 12, *unisono::DropOptions::parse("auto"));
//   for (;;) {
//     if (!drop->begin_step().ok()) break;                               // the step's time begins
//     while (drop->next()) backward(batch(drop->position()), 1.0f / 12);  // adds to the gradients, which began as zeros
//     group->all_reduce(gradients, {.op = unisono::ReduceOp::avg});       // always, whatever was computed: also zeros
//     auto step = drop->end_step();
//     if (step.ok() && step->applied) optimizer.step(gradients, step->scale);
//   }
//
// A rank that exceeds the threshold in a step leaves out its remaining micro-batches, and joins the all-reduce with the
// gradients it has. Ranks decide without communication. Dropped micro-batches do not change the number, order or shape of the
// collectives. DropCompute chooses the threshold itself: it records all ranks' times for some steps, and takes the threshold
// that would have given the most micro-batches per second.
//
// Source: N. Giladi et al., DropCompute, NeurIPS 2023 (arXiv:2306.10598). The guide is docs/guides/stragglers.md; it also
// covers data that every rank reads in an order of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/export.h"
#include "unisono/group.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class Dropper;
}

struct DropOptions {
  // off: drops nothing, and reports times. fixed: `seconds`. automatic: chosen from recorded times.
  enum class Threshold : uint8_t { off = 0, fixed = 1, automatic = 2 };
  // When a rank stops. after: once a micro-batch ends past the threshold. before: when the next micro-batch, of average length,
  // would end past it. at: at the threshold; the running micro-batch ends in the background and is lost (DropCompute::run()
  // only).
  enum class Rule : uint8_t { after = 0, before = 1, at = 2 };
  // Divisor of the summed gradients. maximum: all ranks' micro-batches, as if none had been dropped. computed: the computed
  // ones.
  enum class Normalize : uint8_t { maximum = 0, computed = 1 };
  // Fate of dropped micro-batches. defer: this rank computes them next. discard: they are skipped.
  enum class Tail : uint8_t { defer = 0, discard = 1 };
  // The quantity that the threshold maximizes. step_mean: the mean over steps of each step's speed-up. total: micro-batches per
  // second over all steps.
  enum class Objective : uint8_t { step_mean = 0, total = 1 };
  // exact: searches all thresholds that make a difference. grid: 200 thresholds, with step times that assume knowledge of which
  // micro-batches end in time; for comparison only.
  enum class Search : uint8_t { exact = 0, grid = 1 };

  Threshold threshold = Threshold::off;
  double seconds = 0;  // threshold, if fixed
  Rule rule = Rule::after;
  // Rule after: checks the time of the micro-batch this many before the last one, so that an accelerator's queue need not
  // drain.
  uint32_t lag = 0;
  uint32_t min_computed = 1;  // micro-batches that are always computed; unused with the rule at
  Normalize normalize = Normalize::maximum;
  Tail tail = Tail::defer;
  uint32_t warmup_steps = 5;            // steps without drops and without recording
  uint32_t calibration_steps = 44;      // recorded steps
  uint32_t min_calibration_steps = 10;  // recorded steps that must have all ranks' times
  Objective objective = Objective::step_mean;
  Search search = Search::exact;
  double slack = 0.002;             // share of the gain that may be lost to drop less
  double max_drop = 0.10;           // upper limit of the dropped share of micro-batches
  double min_gain = 0.01;           // drops nothing if the gain is smaller
  uint64_t recalibrate = on_drift;  // never, on_drift, or a number of steps
  uint32_t window = 100;            // steps per report
  // Micro-batches of this rank per epoch; 0: no end. May differ between ranks, like replay.
  uint64_t shard = 0;
  // Micro-batches that this rank computes in each step, instead of checking the time; after the last entry all of them.
  std::vector<uint32_t> replay{};

  static constexpr uint64_t never = 0, on_drift = ~uint64_t{0};
  friend bool operator==(const DropOptions&, const DropOptions&) = default;

  // "off", "auto" or a number of seconds, then ":" and comma-separated options: rule (after, before, at), lag, min_computed,
  // normalize (max, computed), tail (defer, discard), warmup, calibration, min_calibration, objective (step_mean, total),
  // search (exact, grid), slack, max_drop, min_gain, recalibrate (never, on_drift, a number of steps), window. invalid
  // (invalid_threshold, bad_option): names the wrong part.
  UNISONO_EXPORT static Result<DropOptions> parse(std::string_view text);
  // The text that parse() reads; defaults are left out, and so are shard and replay.
  UNISONO_EXPORT std::string to_string() const;
  UNISONO_EXPORT Status check(uint32_t micro_batches) const;
};

// Result of one step on this rank.
struct DropStep {
  uint64_t step = 0;                    // number of the step, from 1
  uint32_t planned = 0;                 // micro-batches; fewer at the end of a shard
  uint32_t computed = 0;                // micro-batches
  bool applied = true;                  // false: no rank computed any micro-batch. Equal on all ranks
  float scale = 1;                      // multiply the averages by it; differs from 1 only if normalize is computed
  bool epoch_ended = false;             // all ranks have finished their shards; the next step begins the next epoch
  int64_t compute_ns = 0;               // from the beginning of the step until this rank stopped
  std::vector<std::string> warnings{};  // new in this step
};

// Report of a window of steps, or of all windows so far. Equal on all ranks.
struct DropReport {
  uint64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;                   // reported steps; excludes warm-up steps
  std::string state;                    // "dropping", "calibrating", "warming up", "off"
  std::string rule;                     // "after"
  std::string off;                      // why nothing is dropped although it should be; empty: it is, or dropping is off
  double threshold = 0;                 // seconds; 0: none
  double other = 0;                     // Tc: seconds of a step outside computing, as last recorded
  double micro_batch = 0;               // lhat: mean seconds of a micro-batch, as last recorded
  double predicted_drop = 0, drop = 0;  // dropped share of micro-batches
  double drop_most = 0;                 // largest dropped share of one rank
  uint32_t drop_most_rank = 0;          // that rank
  // Predicted speed-up: mean over steps, and of micro-batches per second in total. 0: no recorded times to predict from.
  double predicted_step = 0, predicted_total = 0;
  // Micro-batches of all ranks per second: in the recorded steps (0 in the report of all windows), and in these steps.
  double per_second_before = 0, per_second = 0;
  double step_mean = 0, step_deviation = 0;        // seconds, from one beginning to the next
  double compute_mean = 0, compute_deviation = 0;  // compute time of the slowest rank
  double arrival_spread = 0;                       // mean time from the first to the last rank that stopped
  double extra_steps = 0;                          // R: share of additional steps that makes up for the dropped micro-batches
  UNISONO_EXPORT std::string to_string() const;    // one line for logs
};

// Callbacks of a whole step, for run(). Each gets as many values as run() was given.
struct DropWork {
  // Adds the gradient of this rank's micro-batch `position`, divided by the number of micro-batches per step. With the rule at,
  // another thread calls it, and it may still run after run() has returned. So whatever it uses must live until drain(), or the
  // end of the DropCompute; it must not call should_stop().
  std::function<Status(uint64_t position, std::span<float> gradients)> compute;
  // Averages over the group. null: Group::all_reduce().
  std::function<Status(std::span<float> gradients)> reduce;
  // Uses the averages, which are already multiplied by `scale`. It is not called for a step that is not applied.
  std::function<void(std::span<const float> gradients, const DropStep& step)> apply;
};

class UNISONO_EXPORT DropCompute {
 public:
  // All ranks call it with equal arguments. micro_batches: of each rank in a step. It works in a sub-group of its own. replica:
  // the processes that compute one replica together (model or pipeline parallel), if there are several; the first of them
  // decides for all (not with the rule at). A process that joined a re-formed group calls it while the others call resume().
  // invalid (bad_option, config_mismatch, rule_needs_second_buffer).
  static Result<DropCompute> make(const Group& group, uint32_t micro_batches, const DropOptions& options = {},
                                  const std::optional<Group>& replica = {});
  DropCompute(DropCompute&&) noexcept;
  DropCompute& operator=(DropCompute&&) noexcept;
  ~DropCompute();

  // Call right after the optimizer's step. At the end of a window, and of the recorded steps, ranks exchange their times here,
  // before the step's time begins. Errors: those of all-gathers; invalid after a step that failed once its micro-batches were
  // computed. Other ranks may have completed that step, so all ranks call resume().
  Status begin_step();
  // Whether to compute another micro-batch; the previous one must be complete. false: join the all-reduce.
  bool next();
  // Position in this rank's data of the micro-batch that next() requested, counted in micro-batches from 0.
  uint64_t position() const;
  // Whether the running micro-batch is certainly the step's last. If so, complete gradients may be sent while it runs.
  bool last() const;
  // Call inside a micro-batch: whether it is late. The caller may discard its partial gradients, call abandon() and join the
  // all-reduce.
  bool should_stop() const;
  void abandon();
  // Call after the all-reduce. Errors: collective_inside_micro_batch; and those of an all-reduce of three numbers, which runs
  // if some rank may have computed nothing or shards have ends.
  Result<DropStep> end_step();

  // Call between two steps, before work that belongs to no step, such as a validation. It ends the step's time.
  void pause();

  // Runs a whole step under any rule. gradients: zeros at first, of the same size in every step; they are zeros again on
  // return, also after an error. With the rule at, a second thread computes, with a second buffer of the gradients' size. Then
  // apply() waits for the end of an abandoned micro-batch. If that takes longer than the next step, a later run() calls
  // apply(), once per step and in order. drain() calls it now: before parameters are saved or sent to others.
  Result<DropStep> run(std::span<float> gradients, const DropWork& work);
  Status drain(const DropWork& work);

  // Reports of the last window (none yet: steps is 0), and of all windows since make(), load() or resume(). Equal on all ranks.
  // Warm-up steps and the current window are in neither.
  const DropReport& report() const;
  DropReport total() const;
  // Call at the end, between two steps, on all ranks: turns the current window into a report. Returns total().
  Result<DropReport> finish();
  // Times that this rank recorded, as `unisono-lab drop-compute search` reads them (step,rank,wall_ns,end_1_ns,…), and the
  // header line of such a file.
  std::string recorded() const;
  static std::string recorded_head(uint32_t micro_batches);

  // This rank's data position and step. All ranks call load(), each with the bytes it saved after the same step; otherwise the
  // next begin_step() returns invalid (config_mismatch). The first warmup_steps drop nothing. The number of ranks may differ
  // from the saved one: a rank without a checkpoint loads another rank's, including its data position. corrupt, invalid
  // (config_mismatch): nothing has changed.
  std::vector<std::byte> save();
  Status load(std::span<const std::byte> bytes);
  // Call on all ranks after Group::reform(), or after a step that failed on some ranks; processes that joined call make()
  // instead. The threshold stays. replica: the new one, if there was one; re-forming ended the groups that were split from the
  // old group.
  Status resume(const Group& group, const std::optional<Group>& replica = {});

 private:
  explicit DropCompute(std::unique_ptr<internal::Dropper> dropper);
  std::unique_ptr<internal::Dropper> dropper_;
};

}  // namespace unisono

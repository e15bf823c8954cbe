// DropCompute limits the time that each rank computes per step, so that no rank waits long for the slowest of many
// micro-batches.
//
//   auto drop = unisono::DropCompute::make(*group, 12, *unisono::DropOptions::parse("auto"));
//   for (;;) {
//     if (!drop->begin_step().ok()) break;                                // the step's time begins
//     while (drop->next()) backward(batch(drop->position()), 1.0f / 12);  // adds to the gradients, which began as zeros
//     group->all_reduce(gradients, {.op = unisono::ReduceOp::avg});       // in every step, even if nothing was computed
//     auto step = drop->end_step();
//     if (step.ok() && step->applied) optimizer.step(gradients, step->scale);
//   }
//
// If a rank exceeds the threshold, it leaves out the remaining micro-batches of the step, and joins the all-reduce with the
// gradients that it has. Ranks decide this without communication. The number, order and shape of the collectives stay the same.
// For some steps, DropCompute records the times of all ranks. It then chooses the threshold that would have given the most
// micro-batches per second.
//
// Source: N. Giladi et al., DropCompute, NeurIPS 2023 (arXiv:2306.10598). Guide: docs/guides/stragglers.md. The guide also
// covers data sets whose order differs between ranks.
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
  // off: nothing is dropped, but times are reported. fixed: the threshold is `seconds`. automatic: it is chosen from recorded
  // times.
  enum class Threshold : uint8_t { off = 0, fixed = 1, automatic = 2 };
  // When a rank stops computing.
  // - after: it stops when a micro-batch has ended after the threshold.
  // - before: it stops if the next micro-batch would end after the threshold, provided that it has average length.
  // - at: it stops exactly at the threshold. The running micro-batch ends in the background, and its result is discarded. Only
  //   run() supports this.
  enum class Rule : uint8_t { after = 0, before = 1, at = 2 };
  // The number by which the summed gradients are divided. maximum: the number of planned micro-batches of all ranks, including
  // the dropped ones. computed: the number of computed micro-batches.
  enum class Normalize : uint8_t { maximum = 0, computed = 1 };
  // The treatment of dropped micro-batches. defer: this rank computes them in the next step. discard: they are never computed.
  enum class Tail : uint8_t { defer = 0, discard = 1 };
  // The quantity that the automatic threshold maximizes. step_mean: the speed-up of a step, averaged over the steps. total: the
  // number of micro-batches per second over all steps.
  enum class Objective : uint8_t { step_mean = 0, total = 1 };
  // How the automatic threshold is searched. exact: among all thresholds that give different results. grid: among 200
  // thresholds. grid is for comparison only: it assumes that ranks know in advance which micro-batches will end in time.
  enum class Search : uint8_t { exact = 0, grid = 1 };

  Threshold threshold = Threshold::off;
  double seconds = 0;  // the threshold, if it is fixed
  Rule rule = Rule::after;
  // With Rule::after: which micro-batch's end is compared with the threshold. 0: the last completed one; 1: the one before; and
  // so on. With a lag, the queue of an accelerator need not drain before the comparison.
  uint32_t lag = 0;
  uint32_t min_computed = 1;  // this many micro-batches are always computed; Rule::at ignores this
  Normalize normalize = Normalize::maximum;
  Tail tail = Tail::defer;
  uint32_t warmup_steps = 5;            // number of first steps that drop and record nothing
  uint32_t calibration_steps = 44;      // number of steps whose times are recorded
  uint32_t min_calibration_steps = 10;  // at least this many recorded steps must have the times of all ranks
  Objective objective = Objective::step_mean;
  Search search = Search::exact;
  double slack = 0.002;             // this share of the gain may be given up in order to drop fewer micro-batches
  double max_drop = 0.10;           // at most this share of the micro-batches may be dropped
  double min_gain = 0.01;           // nothing is dropped if the predicted gain is smaller
  uint64_t recalibrate = on_drift;  // when to record times again: never, on_drift, or after a number of steps
  uint32_t window = 100;            // number of steps that one report covers
  // Number of micro-batches that this rank has per epoch; 0: unlimited. Like `replay`, it may differ between ranks.
  uint64_t shard = 0;
  // In step i + 1, this rank computes replay[i] micro-batches, whatever their times. In steps after the list, it computes all.
  std::vector<uint32_t> replay{};

  static constexpr uint64_t never = 0, on_drift = ~uint64_t{0};
  friend bool operator==(const DropOptions&, const DropOptions&) = default;

  // Accepts "off", "auto" or a number of seconds, then ":" and options, separated by commas:
  // - rule (after, before, at), lag, min_computed, normalize (max, computed), tail (defer, discard)
  // - warmup, calibration, min_calibration, objective (step_mean, total), search (exact, grid), slack, max_drop, min_gain,
  //   recalibrate (never, on_drift, a number of steps), window
  // Returns invalid (invalid_threshold, bad_option) for any other text. The message names the wrong part.
  UNISONO_EXPORT static Result<DropOptions> parse(std::string_view text);
  // Returns text that parse() reads. `shard`, `replay` and options that have default values are left out.
  UNISONO_EXPORT std::string to_string() const;
  UNISONO_EXPORT Status check(uint32_t micro_batches) const;
};

// The result of one step on this rank.
struct DropStep {
  uint64_t step = 0;                    // number of the step; the first step is 1
  uint32_t planned = 0;                 // number of planned micro-batches; smaller at the end of a shard
  uint32_t computed = 0;                // number of computed micro-batches
  bool applied = true;                  // false: no rank computed any micro-batch. It is equal on all ranks.
  float scale = 1;                      // multiply the averages by it; it differs from 1 only with Normalize::computed
  bool epoch_ended = false;             // true: all ranks have finished their shards, and the next step begins the next epoch
  int64_t compute_ns = 0;               // time from the beginning of the step until this rank stopped computing
  std::vector<std::string> warnings{};  // the warnings that are new in this step
};

// Describes one window of steps, or all windows so far. It is equal on all ranks.
struct DropReport {
  uint64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;                   // number of reported steps; warm-up steps do not count
  std::string state;                    // "dropping", "calibrating", "warming up" or "off"
  std::string rule;                     // the DropOptions::Rule as text, for example "after"
  std::string off;                      // says why nothing is dropped although it was requested; otherwise empty
  double threshold = 0;                 // the threshold in seconds; 0: there is none
  double other = 0;                     // T_c in the paper: the seconds that a step takes besides computing, as last recorded
  double micro_batch = 0;               // l-hat in the paper: the mean duration of a micro-batch in seconds, as last recorded
  double predicted_drop = 0, drop = 0;  // share of the micro-batches that is dropped: as predicted, and as measured
  double drop_most = 0;                 // the largest share of its micro-batches that any rank dropped
  uint32_t drop_most_rank = 0;          // the rank that dropped the share drop_most
  // Predicted speed-ups. predicted_step: the mean over the steps. predicted_total: the speed-up of micro-batches per second
  // over all steps. 0: no times were recorded.
  double predicted_step = 0, predicted_total = 0;
  // Micro-batches per second of all ranks together. per_second_before: in the recorded steps (0 in total()). per_second: in the
  // steps that this report covers.
  double per_second_before = 0, per_second = 0;
  double step_mean = 0, step_deviation = 0;        // seconds from the beginning of one step to that of the next
  double compute_mean = 0, compute_deviation = 0;  // seconds per step that the slowest rank computes
  double arrival_spread = 0;  // Mean time between the moments at which the first and the last rank stop computing.
  // R in the paper: drop / (1 - drop). Training needs this share of additional steps to make up for the drops.
  double extra_steps = 0;
  UNISONO_EXPORT std::string to_string() const;  // one line, for logs
};

// The callbacks with which run() does a whole step. Each callback gets as many values as run() was given.
struct DropWork {
  // Computes the micro-batch `position` of this rank, and adds its gradient / (micro-batches per step) to `gradients`.
  // compute() must not call should_stop().
  //
  // With Rule::at, compute() runs on another thread, and may still run when run() has returned. Everything that it uses must
  // live until drain() returns or the DropCompute is destroyed.
  std::function<Status(uint64_t position, std::span<float> gradients)> compute;
  // Averages the gradients over the group. If it is null, Group::all_reduce() is used.
  std::function<Status(std::span<float> gradients)> reduce;
  // Uses the averages, which are already multiplied by step.scale. If the step is not applied, this is not called.
  std::function<void(std::span<const float> gradients, const DropStep& step)> apply;
};

class UNISONO_EXPORT DropCompute {
 public:
  // All ranks call make() with equal arguments. DropCompute works in a new sub-group. If a process joined a re-formed group, it
  // calls make() while the other ranks call resume(). Errors: invalid (bad_option, config_mismatch, rule_needs_second_buffer).
  //
  // micro_batches: the number of micro-batches per rank and step. replica: if several processes compute one replica together
  // (model or pipeline parallel), pass the group of these processes. The first process of `replica` then decides for all of
  // them. A replica cannot be combined with Rule::at.
  static Result<DropCompute> make(const Group& group, uint32_t micro_batches, const DropOptions& options = {},
                                  const std::optional<Group>& replica = {});
  DropCompute(DropCompute&&) noexcept;
  DropCompute& operator=(DropCompute&&) noexcept;
  ~DropCompute();

  // Call it right after the optimizer's step. Ranks exchange their times here, after the last step of a window and after the
  // last recorded step. The time of the new step begins after this exchange.
  //
  // Errors: those of all-gathers; and invalid, if the previous step failed after its micro-batches were computed. Other ranks
  // may have completed that step, so all ranks must call resume().
  Status begin_step();
  // Returns true if this rank computes another micro-batch, and false if it joins the all-reduce now. Call it when the previous
  // micro-batch is complete.
  bool next();
  // Returns the position of the current micro-batch in this rank's data. Positions count micro-batches from 0.
  uint64_t position() const;
  // Returns true if the running micro-batch is certainly the last one of the step. The caller may then send gradients as soon
  // as they are complete, while the micro-batch still runs.
  bool last() const;
  // Call it inside a micro-batch. Returns true if the micro-batch has run past the threshold. The caller may then discard the
  // gradients of this micro-batch, call abandon() and join the all-reduce.
  bool should_stop() const;
  void abandon();
  // Call it after the all-reduce. If it is possible that a rank computed nothing, or if shards are finite, it runs an
  // all-reduce of three numbers. Errors: those of this all-reduce, and collective_inside_micro_batch.
  Result<DropStep> end_step();

  // Stops the time of the step. Call it between two steps, before work that belongs to no step, such as a validation.
  void pause();

  // Runs a whole step under any rule. gradients: zeros, of the same size in every step. run() sets them to zero again before it
  // returns, even after an error.
  //
  // With Rule::at, a second thread computes into a second buffer of that size. apply() is called only after an abandoned
  // micro-batch has ended. If that takes longer than the next step, later calls of run() make up for the missing calls of
  // apply(), one per step and in order. drain() makes them now. Call drain() before parameters are saved or sent.
  Result<DropStep> run(std::span<float> gradients, const DropWork& work);
  Status drain(const DropWork& work);

  // report() describes the last window; before the first window has ended, its `steps` is 0. total() describes all windows
  // since make(), load() or resume(). Both are equal on all ranks. They leave out the warm-up steps and the current window.
  const DropReport& report() const;
  DropReport total() const;
  // Call it at the end, between two steps, on all ranks. Closes the current window and returns total().
  Result<DropReport> finish();
  // recorded() returns this rank's recorded times as lines of the form "step,rank,wall_ns,end_1_ns,…". recorded_head() returns
  // the line that names these columns. Together they form a file for `unisono-lab drop-compute search`.
  std::string recorded() const;
  static std::string recorded_head(uint32_t micro_batches);

  // save() returns the data position and the step of this rank; load() restores them. All ranks call load() with bytes that
  // were saved after the same step. Otherwise the next begin_step() returns invalid (config_mismatch). After load(), the first
  // warmup_steps steps drop nothing.
  //
  // The number of ranks may have changed. If a rank has no checkpoint, it loads the checkpoint of another rank, including its
  // data position. The errors corrupt and invalid (config_mismatch) leave everything unchanged.
  std::vector<std::byte> save();
  Status load(std::span<const std::byte> bytes);
  // Call it on all ranks after Group::reform(), or after a step that failed on some ranks. Processes that joined the group call
  // make() instead. The threshold is kept. If make() got a replica, pass a new group for it: re-forming a group ends all groups
  // that were split from it.
  Status resume(const Group& group, const std::optional<Group>& replica = {});

 private:
  explicit DropCompute(std::unique_ptr<internal::Dropper> dropper);
  std::unique_ptr<internal::Dropper> dropper_;
};

}  // namespace unisono

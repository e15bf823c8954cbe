// DropCompute: a compute threshold per step, so that nobody waits for the slowest of many micro-batches for long.
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
// A rank that is slower than the threshold in a step leaves out its remaining micro-batches and joins the all-reduce with what
// it has. Nobody asks anybody; collectives are the same, in number, order and shape, whatever is left out. The threshold is
// chosen by itself: all ranks' times are recorded for some steps, and the one that would have given the most micro-batches per
// second is taken.
//
// Source: N. Giladi et al., DropCompute, NeurIPS 2023 (arXiv:2306.10598). Data that every rank keeps the order of its own; see
// docs/guides/stragglers.md.
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
  // off: nothing is dropped, and times are reported. fixed: `seconds`. automatic: chosen from recorded times.
  enum class Threshold : uint8_t { off = 0, fixed = 1, automatic = 2 };
  // When a rank stops. after: when a micro-batch has ended after the threshold. before: when the next one would end after it,
  // as long as they take on average. at: at the threshold, whatever is running, which ends in the background and is lost:
  // DropCompute::run() only.
  enum class Rule : uint8_t { after = 0, before = 1, at = 2 };
  // maximum: the sum of gradients is divided by all ranks' micro-batches, as if none had been dropped. computed: by those that
  // were computed.
  enum class Normalize : uint8_t { maximum = 0, computed = 1 };
  // What becomes of micro-batches that were not computed. defer: they are this rank's next ones. discard: they are left out.
  enum class Tail : uint8_t { defer = 0, discard = 1 };
  // What the threshold makes most of: the mean over steps of how much quicker each is, or micro-batches per second over all of
  // them.
  enum class Objective : uint8_t { step_mean = 0, total = 1 };
  // exact: over all thresholds that make a difference. grid: over 200, with the step time of one who would know before which
  // micro-batches end in time: only to compare with.
  enum class Search : uint8_t { exact = 0, grid = 1 };

  Threshold threshold = Threshold::off;
  double seconds = 0;  // of fixed
  Rule rule = Rule::after;
  uint32_t lag =
      0;  // after: looks at the micro-batch that many before the last one, so that an accelerator's queue need not drain
  uint32_t min_computed = 1;  // micro-batches that are computed however late it is; none with at
  Normalize normalize = Normalize::maximum;
  Tail tail = Tail::defer;
  uint32_t warmup_steps = 5;            // of which nothing is dropped or recorded
  uint32_t calibration_steps = 44;      // recorded
  uint32_t min_calibration_steps = 10;  // of which all ranks' times must be there
  Objective objective = Objective::step_mean;
  Search search = Search::exact;
  double slack = 0.002;             // share of the gain that is given up to drop less
  double max_drop = 0.10;           // no threshold is chosen that would drop more
  double min_gain = 0.01;           // nothing is dropped if that gains less
  uint64_t recalibrate = on_drift;  // never, on_drift, or every so many steps
  uint32_t window = 100;            // steps of a report
  uint64_t shard = 0;  // micro-batches that this rank has in an epoch; 0: without end. May differ between ranks, as replay does
  std::vector<uint32_t>
      replay{};  // what this rank computes in each step, instead of looking at the time; after the last one all of them

  static constexpr uint64_t never = 0, on_drift = ~uint64_t{0};
  friend bool operator==(const DropOptions&, const DropOptions&) = default;

  // "off", "auto" or a number of seconds, then ":" and options, separated by commas: rule (after, before, at), lag,
  // min_computed, normalize (max, computed), tail (defer, discard), warmup, calibration, min_calibration, objective (step_mean,
  // total), search (exact, grid), slack, max_drop, min_gain, recalibrate (never, on_drift, a number of steps), window. invalid
  // (invalid_threshold, bad_option): the part that is wrong.
  UNISONO_EXPORT static Result<DropOptions> parse(std::string_view text);
  // What parse() reads; what has its default is left out. (shard and replay are, too.)
  UNISONO_EXPORT std::string to_string() const;
  UNISONO_EXPORT Status check(uint32_t micro_batches) const;
};

// Of a step, on this rank.
struct DropStep {
  uint64_t step = 0;                    // its number, from 1
  uint32_t planned = 0;                 // micro-batches; fewer at the end of a shard
  uint32_t computed = 0;                // of these
  bool applied = true;                  // false: no rank computed any. The same on all ranks
  float scale = 1;                      // averages are to be multiplied by it; not 1 only if normalize is computed
  bool epoch_ended = false;             // all ranks' shards are through; the next step begins the next epoch
  int64_t compute_ns = 0;               // from the step's begin until this rank stopped
  std::vector<std::string> warnings{};  // new ones
};

// Of a window of steps, or of all windows so far. The same on all ranks.
struct DropReport {
  uint64_t first_step = 0, last_step = 0;
  uint64_t steps = 0;                   // that are told of: not those in which ranks warm up
  std::string state;                    // "dropping", "calibrating", "warming up", "off"
  std::string rule;                     // "after"
  std::string off;                      // why nothing is dropped although it could be; empty: it is, or nobody asked for it
  double threshold = 0;                 // seconds; 0: none
  double other = 0;                     // Tc: what a step takes beside computing, seconds, when it was recorded last
  double micro_batch = 0;               // lhat: what a micro-batch took on average then
  double predicted_drop = 0, drop = 0;  // dropped share of micro-batches
  double drop_most = 0;                 // by one rank,
  uint32_t drop_most_rank = 0;          // this one
  double predicted_step = 0, predicted_total = 0;  // 0: nothing was recorded to predict from. How many times as quick: mean
                                                   // over steps; micro-batches per second in all
  double per_second_before = 0,
         per_second =
             0;  // micro-batches that all ranks computed: in the recorded steps (of all windows: not told), and in these
  double step_mean = 0, step_deviation = 0;        // seconds, from begin to begin
  double compute_mean = 0, compute_deviation = 0;  // of the slowest rank's computing
  double arrival_spread = 0;                       // from the first to the last rank that stopped, mean
  double extra_steps = 0;                          // R: share of steps to be added so that as many micro-batches are computed
  UNISONO_EXPORT std::string to_string() const;    // one line for logs
};

// A step as a whole, for run(). All three add to, or work on, as many values as were given.
struct DropWork {
  // Micro-batch `position` of this rank: adds its gradient, divided by the micro-batches of a step. With the rule at it is
  // called in another thread and may still run when run() has returned: what it uses stays until drain(), or the end of the
  // DropCompute; should_stop() is not for it then.
  std::function<Status(uint64_t position, std::span<float> gradients)> compute;
  // Averages over the group. null: Group::all_reduce.
  std::function<Status(std::span<float> gradients)> reduce;
  // Uses the averages; they are multiplied by `scale` already. Not called for a step that is not applied.
  std::function<void(std::span<const float> gradients, const DropStep& step)> apply;
};

class UNISONO_EXPORT DropCompute {
 public:
  // All ranks call it alike; micro_batches: of each rank in a step. It works in a sub-group of its own. replica: the processes
  // that compute one replica together (model or pipeline parallel), if that is not this process alone: the first of them
  // decides for all (not with the rule at). A process that has joined a group which was re-formed calls it while the others
  // call resume(). invalid (bad_option, config_mismatch, rule_needs_second_buffer).
  static Result<DropCompute> make(const Group& group, uint32_t micro_batches, const DropOptions& options = {},
                                  const std::optional<Group>& replica = {});
  DropCompute(DropCompute&&) noexcept;
  DropCompute& operator=(DropCompute&&) noexcept;
  ~DropCompute();

  // Right after the optimizer's step. At the end of a window, and of the recorded steps, ranks tell each other their times
  // here, before the step's time begins. Errors: those of all-gathers; invalid after a step that failed once its micro-batches
  // were computed, as others may have done it: all call resume().
  Status begin_step();
  // Whether there is another micro-batch to be computed; what was begun before is complete then. False: join the all-reduce.
  bool next();
  // The place in this rank's data of the micro-batch that next() asked for, counted in micro-batches from 0.
  uint64_t position() const;
  // The micro-batch that is being computed is the step's last for certain: gradients that are complete may be sent while it
  // runs.
  bool last() const;
  // In the midst of a micro-batch: it is late. The caller may throw away what it has of it, call abandon(), and join the
  // all-reduce.
  bool should_stop() const;
  void abandon();
  // After the all-reduce. Errors: those of an all-reduce of three numbers, if some rank may have computed none, or shards have
  // ends; collective_inside_micro_batch.
  Result<DropStep> end_step();

  // Between two steps, before something that belongs to none, as a validation: the step's time ends here instead of where the
  // next one begins.
  void pause();

  // All of it, by any rule. gradients: zeros at first, and always as many; zeros again when it returns, also with an error.
  // With the rule at, computing has a thread of its own and a second memory as large as the gradients; apply() waits until the
  // micro-batch that was left is over, and if that takes longer than the next step, it is called in a later run(), once for
  // each step, in order. drain(): now, as before parameters are saved, or told to others.
  Result<DropStep> run(std::span<float> gradients, const DropWork& work);
  Status drain(const DropWork& work);

  // The last window's (none yet: no steps), and that of all windows since make(), load() or resume(); the same on all ranks.
  // Steps of warming up, and of the window that has not ended, are in neither.
  const DropReport& report() const;
  DropReport total() const;
  // At the end: what was not told of yet becomes a window. All ranks call it, between two steps. Returns total().
  Result<DropReport> finish();
  // step,rank,wall_ns,end_1_ns,…: what this rank recorded, as `unisono-lab drop-compute search` reads it; and the head of such
  // a file.
  std::string recorded() const;
  static std::string recorded_head(uint32_t micro_batches);

  // This rank's place in its data, and the step. All ranks call load() alike, each with what it has saved itself after the same
  // step: else the next begin_step() is invalid (config_mismatch). Nothing is dropped in the first warmup_steps. There may be
  // more ranks than when it was saved, or fewer; those without a checkpoint load another rank's, and its place in the data.
  // corrupt, invalid (config_mismatch): nothing has changed.
  std::vector<std::byte> save();
  Status load(std::span<const std::byte> bytes);
  // After Group::reform(), or a step that failed on some ranks: all ranks call it, but those that have joined, which call
  // make(). The threshold stays. replica: the new one, if there was one; a group that was split from the re-formed one has
  // ended.
  Status resume(const Group& group, const std::optional<Group>& replica = {});

 private:
  explicit DropCompute(std::unique_ptr<internal::Dropper> dropper);
  std::unique_ptr<internal::Dropper> dropper_;
};

}  // namespace unisono

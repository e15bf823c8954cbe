// Training in an elastic run: each peer takes optimizer steps of its own, and every few steps an averaging step averages their
// parameters (Moshpit SGD; local SGD over unisono/elastic.h).
//
//   auto options = *unisono::MoshpitSgdOptions::parse("local_steps=8");
//   auto sgd = unisono::MoshpitSgd::make(*run, parameters, options);  // parameters: the run's, if it had some
//   for (;;) {
//     optimizer_step(parameters);  // a local step on this peer's samples
//     if (!sgd->after_step(parameters, samples).ok()) break;  // begins an averaging step, or brings one in
//   }
//   auto last = sgd->finish(parameters);
//   auto left = run->leave();
//
// With overlap after_step() does not wait for the network. A peer that misses an averaging step goes on with the values it has.
// Local steps taken during an averaging step are kept.
//
// Source: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239. Outer optimizers over pseudo-gradients: Douillard et al., DiLoCo,
// arXiv:2311.08105. How they survive averaging steps that are not exact: docs/guides/elastic.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unisono/elastic.h"
#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class MoshpitStepper;
}

struct MoshpitSgdOptions {
  // parameters: every peer goes on from the weighted mean. pseudo_gradients: the mean of (reference - parameters) serves as a
  // gradient; an outer optimizer steps the reference with it, and every peer goes on from there. The two are equal for sgd with
  // rate 1 and no momentum.
  enum class Average : uint8_t { parameters = 0, pseudo_gradients = 1 };
  // As PyTorch's SGD defines them. sgd steps along g, without momentum. nesterov steps along g + momentum · m, with m =
  // momentum · m + g.
  enum class Outer : uint8_t { sgd = 0, nesterov = 1 };

  uint32_t local_steps = 8;  // local steps between the end of an averaging step and the begin of the next
  // If not 0, replaces local_steps: the next averaging step begins when the peers together have computed this many samples. A
  // peer estimates that as its own samples since the last averaging step, times the number of peers.
  uint64_t target_samples = 0;
  Average average = Average::parameters;
  Outer outer = Outer::nesterov;  // used with pseudo_gradients only
  double outer_rate = -1;         // -1: 1 for sgd, 0.7 for nesterov
  double outer_momentum = -1;     // nesterov only; 0 or more and below 1; -1: 0.9
  bool overlap = true;            // true: local steps go on during an averaging step. false: after_step() waits for it

  // Reads "local_steps=8,samples=0,average=pseudo_gradients,outer=nesterov,rate=0.7,momentum=0.9,overlap=on". Error: invalid
  // (bad_option), naming the part that is wrong.
  UNISONO_EXPORT static Result<MoshpitSgdOptions> parse(std::string_view text);
  // A text that parse() reads; leaves out options that have their default.
  UNISONO_EXPORT std::string to_string() const;
  // Error: invalid (bad_option), naming the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const MoshpitSgdOptions&, const MoshpitSgdOptions&) = default;
};

// The outcome of one call of after_step(), drain() or finish().
struct MoshpitStep {
  bool began = false;  // an averaging step began, with the values as of this step
  // The averaging step that ended: it was brought into the parameters, or failed. Null: none ended.
  std::shared_ptr<const AveragingReport> averaging;
  double waited_s = 0;
};

// Counters since make().
struct MoshpitSgdReport {
  uint64_t steps = 0, samples = 0;  // of this peer
  uint64_t averaging_steps = 0;     // averaging steps that ended
  uint64_t exact = 0;               // of these: the result lacks no peer's values
  uint64_t alone = 0;               // of these: no other peer's values came, so nothing changed
  uint64_t without_weight = 0;      // of these: took the mean and gave nothing (a joiner's first; values not finite)
  uint64_t not_finite = 0;          // of these: weight 0 because values were not finite
  uint64_t overlapped_steps = 0;    // local steps taken during an averaging step
  uint32_t peers = 0;               // as of the last averaging step
  // Spread before the last averaging step: square root of the variance in this peer's first group, mean over the elements.
  double spread = 0;
  double total_s = 0;      // since make()
  double waited_s = 0;     // part of total_s: waiting for averaging steps
  double handled_s = 0;    // part of total_s: copying values and bringing results in
  double averaging_s = 0;  // part of total_s: while an averaging step was under way
  // Share of the time that the training loop had for itself. 1 before the first step.
  double useful_share() const { return total_s > 0 ? 1 - (waited_s + handled_s) / total_s : 1; }
  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

class UNISONO_EXPORT MoshpitSgd {
 public:
  using Blobs = std::vector<std::pair<std::string, std::vector<std::byte>>>;
  // State for joiners besides the values: the local optimizer, random generators and the like. Called right before each
  // averaging step. Returns at most 63 blobs.
  using GiveState = std::function<Blobs()>;

  // run is borrowed: it must outlive this object and must not be moved. parameters: as many tensors, each of as many elements,
  // as ElasticOptions::tensor_elements says. If the run had values, they are written into parameters, steps() continues from
  // the donor's, and the first averaging step has weight 0. Otherwise this peer begins from the given parameters. Error:
  // invalid (bad_option): contradictory options, or sizes other than the run's.
  static Result<MoshpitSgd> make(Elastic& run, std::span<const std::span<float>> parameters,
                                 const MoshpitSgdOptions& options = {});
  static Result<MoshpitSgd> make(Elastic& run, std::span<float> parameters, const MoshpitSgdOptions& options = {});
  MoshpitSgd(MoshpitSgd&&) noexcept;
  MoshpitSgd& operator=(MoshpitSgd&&) noexcept;
  ~MoshpitSgd();

  // Call after each step of the local optimizer. samples: how many the step used; 0 is legal. This peer's weight is the number
  // of samples since it last contributed. Errors. invalid: sizes differ from make(). unavailable (SHUTTING_DOWN): the run was
  // left. On an error the parameters are unchanged.
  Result<MoshpitStep> after_step(std::span<const std::span<float>> parameters, uint64_t samples);
  Result<MoshpitStep> after_step(std::span<float> parameters, uint64_t samples);
  // Waits for the averaging step that is under way, if any, and brings it in. Call it before values are saved or evaluated.
  // timeout 0: no limit. Error late: it is still under way.
  Result<MoshpitStep> drain(std::span<const std::span<float>> parameters, Milliseconds timeout = Milliseconds{0});
  Result<MoshpitStep> drain(std::span<float> parameters, Milliseconds timeout = Milliseconds{0});
  // Like drain(), then one more averaging step, so that the last local steps count too. Up to two more follow while other peers
  // still contribute changes. Peers that finish within one averaging step of each other end with the same parameters.
  Result<MoshpitStep> finish(std::span<const std::span<float>> parameters);
  Result<MoshpitStep> finish(std::span<float> parameters);
  // Leaves the averaging step that is under way, for a process that must stop at once. Only this peer loses its result.
  void abandon();

  void give_state(GiveState give);
  // Steps since the run began, as this peer counts them: its own, plus the donor's when it joined. Use it for learning-rate
  // schedules.
  uint64_t steps() const;
  MoshpitSgdReport report() const;

  // The outer optimizer and the counters, to be saved beside the parameters for a restart of all peers. Call it after drain().
  std::vector<std::byte> save() const;
  // Errors. corrupt: cut or changed. invalid: other sizes or another outer optimizer. On an error nothing changes.
  Status load(std::span<const std::byte> bytes);

 private:
  explicit MoshpitSgd(std::unique_ptr<internal::MoshpitStepper> stepper);
  std::unique_ptr<internal::MoshpitStepper> stepper_;
};

}  // namespace unisono

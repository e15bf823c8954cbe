// Training in an elastic run: every peer takes steps of its own, and every few steps an averaging step averages what they have
// come to (Moshpit SGD; local SGD over unisono/elastic.h).
//
//   auto sgd = unisono::MoshpitSgd::make(*run, parameters, *unisono::MoshpitSgdOptions::parse("local_steps=8"));  // parameters
//   are the run's now, if it had some for (;;) {
//     optimizer_step(parameters);                             // of one's own, on one's own samples
//     if (!sgd->after_step(parameters, samples).ok()) break;  // begins an averaging step, or brings one in; with overlap it
//     never waits
//   }
//   sgd->finish(parameters), run->leave();
//
// Peers that take no part in an averaging step, or lose it, go on with what they have; steps that were taken while it went on
// are kept. Source: M. Ryabinin et al., Moshpit SGD, arXiv:2103.03239; outer optimizers over pseudo-gradients as in Douillard
// et al., DiLoCo, arXiv:2311.08105; how they survive averaging steps that are not exact: docs/guides/elastic.md.
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
  // parameters: everybody goes on from the weighted mean. pseudo_gradients: the mean of (reference - parameters) is a gradient,
  // with which an outer optimizer steps the reference, and everybody goes on from there. Both are the same for sgd with rate 1
  // and without momentum.
  enum class Average : uint8_t { parameters = 0, pseudo_gradients = 1 };
  // As PyTorch's SGD has them: sgd steps along g, without momentum; nesterov along g + momentum m, with m = momentum m + g.
  enum class Outer : uint8_t { sgd = 0, nesterov = 1 };

  uint32_t local_steps = 8;  // from when an averaging step was brought in until the next begins
  // Instead, if not 0: until the peers together have computed so many samples, as a peer reckons: its own since the last
  // averaging step times the peers that are there.
  uint64_t target_samples = 0;
  Average average = Average::parameters;
  Outer outer = Outer::nesterov;  // of pseudo_gradients
  double outer_rate = -1;         // -1: 1 of sgd, 0.7 of nesterov
  double outer_momentum = -1;     // -1: 0.9; else from 0 to below 1; of nesterov
  bool overlap = true;            // steps are taken while an averaging step goes on. false: after_step() waits for it

  // "local_steps=8,samples=0,average=pseudo_gradients,outer=nesterov,rate=0.7,momentum=0.9,overlap=on". invalid (bad_option):
  // the part that is wrong.
  UNISONO_EXPORT static Result<MoshpitSgdOptions> parse(std::string_view text);
  // What parse() reads; what has its default is left out.
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): names the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const MoshpitSgdOptions&, const MoshpitSgdOptions&) = default;
};

// What one call of after_step(), drain() or finish() did.
struct MoshpitStep {
  bool began = false;  // an averaging step, with the values as of this step
  std::shared_ptr<const AveragingReport>
      averaging;  // that was brought into the parameters, or came to nothing; null: none ended
  double waited_s = 0;
};

// Since this process made it.
struct MoshpitSgdReport {
  uint64_t steps = 0, samples = 0;  // of this peer
  uint64_t averaging_steps = 0;     // that ended
  uint64_t exact = 0;               // of them: the result lacks no peer's values
  uint64_t alone = 0;               // of them: nobody else's values came, so nothing has changed
  uint64_t without_weight = 0;      // of them: took the mean and gave nothing (a joiner's first; values that were not finite)
  uint64_t not_finite = 0;          // of them: because values were not
  uint64_t overlapped_steps = 0;    // taken while an averaging step went on
  uint32_t peers = 0;               // as of the last averaging step
  double spread =
      0;  // of what the last averaging step averaged: root of the variance in this peer's first group, mean over elements
  double total_s = 0;      // since make()
  double waited_s = 0;     // of it, standing still for averaging steps
  double handled_s = 0;    // of it, copying values and bringing results in
  double averaging_s = 0;  // of it, with an averaging step on its way
  // Share of the time in which the training loop had the processor. 1 at the beginning.
  double useful_share() const { return total_s > 0 ? 1 - (waited_s + handled_s) / total_s : 1; }
  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

class UNISONO_EXPORT MoshpitSgd {
 public:
  using Blobs = std::vector<std::pair<std::string, std::vector<std::byte>>>;
  // For joiners, besides the values: the own optimizer's state, random generators, … Called right before each averaging step.
  // At most 63.
  using GiveState = std::function<Blobs()>;

  // run is borrowed: it outlives this object and is not moved. parameters: of as many tensors, of as many elements, as
  // ElasticOptions::tensor_elements says. Where the run had values, they are written there, and the first averaging step takes
  // the mean and gives nothing; else they are where this peer begins. steps() goes on where the donor's was. invalid
  // (bad_option): options make no sense; the run's tensors have other sizes.
  static Result<MoshpitSgd> make(Elastic& run, std::span<const std::span<float>> parameters,
                                 const MoshpitSgdOptions& options = {});
  static Result<MoshpitSgd> make(Elastic& run, std::span<float> parameters, const MoshpitSgdOptions& options = {});
  MoshpitSgd(MoshpitSgd&&) noexcept;
  MoshpitSgd& operator=(MoshpitSgd&&) noexcept;
  ~MoshpitSgd();

  // After each step of the own optimizer. samples: that the step was made of; how much this peer counts is their number since
  // it last gave. 0 is legal. invalid: other sizes than in make(). unavailable (SHUTTING_DOWN): the run was left. Parameters
  // are as they were then.
  Result<MoshpitStep> after_step(std::span<const std::span<float>> parameters, uint64_t samples);
  Result<MoshpitStep> after_step(std::span<float> parameters, uint64_t samples);
  // Waits for the averaging step that goes on, if one does, and brings it in: before values are saved or evaluated. late: it
  // goes on still. timeout 0: as long as it takes.
  Result<MoshpitStep> drain(std::span<const std::span<float>> parameters, Milliseconds timeout = Milliseconds{0});
  Result<MoshpitStep> drain(std::span<float> parameters, Milliseconds timeout = Milliseconds{0});
  // The same, then one more averaging step, so that the last steps count, too. While others bring news in it, up to two more:
  // those that end about then, within an averaging step of each other, have the same parameters.
  Result<MoshpitStep> finish(std::span<const std::span<float>> parameters);
  Result<MoshpitStep> finish(std::span<float> parameters);
  // Takes part no longer in the averaging step that goes on: when the process has to go. What it had brought is lost to this
  // peer alone.
  void abandon();

  void give_state(GiveState give);
  // Steps since the run began, as this peer counts them: the own ones, and those of the donor before. For schedules of the
  // learning rate.
  uint64_t steps() const;
  MoshpitSgdReport report() const;

  // The outer optimizer and the counters, to go on with after a restart of all peers, beside saved parameters. After drain().
  std::vector<std::byte> save() const;
  // corrupt: cut or changed; invalid: of other sizes or another outer optimizer. Nothing has changed then.
  Status load(std::span<const std::byte> bytes);

 private:
  explicit MoshpitSgd(std::unique_ptr<internal::MoshpitStepper> stepper);
  std::unique_ptr<internal::MoshpitStepper> stepper_;
};

}  // namespace unisono

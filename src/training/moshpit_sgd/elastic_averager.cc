#include "training/moshpit_sgd/elastic_averager.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace unisono::internal {
namespace {

class ElasticAverager final : public Averager {
 public:
  explicit ElasticAverager(Elastic& run) : run_(run) {}

  Status begin(std::span<const std::span<float>> values, double weight, StateBlobs blobs) override {
    if (auto set = run_.set_state(std::move(blobs)); !set.ok()) return set;
    auto work = run_.average_async({values.begin(), values.end()}, weight);
    if (!work.ok()) return work.status();
    work_ = *std::move(work);
    return {};
  }
  bool done() const override { return work_.done(); }
  // The stepper does not change the values between begin() and end(). Therefore they are exactly the mean after end().
  Result<AveragingReport> end(Milliseconds timeout) override { return work_.wait(timeout); }
  void abandon() override { work_.cancel(); }
  Nanos now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  Elastic& run_;
  ElasticWork work_;
};

}  // namespace

std::unique_ptr<Averager> make_elastic_averager(Elastic& run) { return std::make_unique<ElasticAverager>(run); }

MoshpitStart start_state_of(const Elastic& run) {
  const auto& state = run.state();
  const auto status = run.status();
  const auto is_present = [](const ElasticPeer& peer) {
    return peer.self || peer.status == "alive" || peer.status == "suspect";
  };
  MoshpitStart start{.late = state.step >= 0,
                     .loaded = state.loaded,
                     .averaging = state.step,
                     .peers = static_cast<uint32_t>(std::ranges::count_if(status.peers, is_present))};
  // If another peer has finished a step, the run is in progress. If this process then fails to load the state of the run, its
  // initial values must not enter the mean.
  start.late |=
      std::ranges::any_of(status.peers, [](const ElasticPeer& peer) { return !peer.self && peer.finished_step >= 0; });
  if (state.loaded) start.values = state.values, start.blobs = state.blobs;
  return start;
}

}  // namespace unisono::internal

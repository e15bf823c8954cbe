// Implements unisono/elastic.h with elastic/peer/elastic_run.
#include "unisono/elastic.h"

#include <utility>

#include "base/concat.h"
#include "elastic/peer/elastic_run.h"

namespace unisono {

namespace {

// In a child made by fork(), returns the error of every call. Otherwise returns ok.
Status check_process(const std::shared_ptr<internal::ElasticRun>& run) {
  return run == nullptr ? Status() : run->process().check();
}

}  // namespace

ElasticWork::ElasticWork(std::shared_ptr<internal::ElasticCall> call) : call_(std::move(call)) {}

bool ElasticWork::done() const {
  if (call_ == nullptr || !check_process(call_->run.lock()).ok()) return true;
  const std::lock_guard lock(call_->mutex);
  return call_->done;
}

Result<AveragingReport> ElasticWork::wait(Milliseconds timeout) {
  if (call_ == nullptr) return Status(Code::invalid, "no averaging step was begun");
  if (auto status = check_process(call_->run.lock()); !status.ok()) return status;
  std::unique_lock lock(call_->mutex);
  const auto over = [&] { return call_->done; };
  if (timeout.count() == 0) call_->ended.wait(lock, over);
  else if (!call_->ended.wait_for(lock, timeout, over))
    return Status(Code::late, concat("the averaging step is not done after ", timeout.count(), " ms"));
  if (call_->taken) return Status(Code::invalid, "the result of this averaging step has been taken already");
  return call_->take();
}

void ElasticWork::cancel() {
  if (call_ == nullptr || done()) return;
  if (const auto run = call_->run.lock()) run->cancel();
}

Elastic::Elastic(std::shared_ptr<internal::ElasticRun> run) : run_(std::move(run)) {}
Elastic::Elastic(Elastic&&) noexcept = default;
Elastic& Elastic::operator=(Elastic&&) noexcept = default;
Elastic::~Elastic() = default;

Result<Elastic> Elastic::join(const ElasticOptions& options) {
  auto run = internal::ElasticRun::join(options);
  if (!run.ok()) return run.status();
  return Elastic(std::move(*run));
}

const ElasticState& Elastic::state() const { return run_->state(); }

bool Elastic::ready(Milliseconds timeout) { return check_process(run_).ok() && run_->ready(timeout.count() * millisecond); }

Result<AveragingReport> Elastic::average(std::span<const std::span<float>> tensors, double weight) {
  if (auto status = check_process(run_); !status.ok()) return status;
  auto call = run_->begin({tensors.begin(), tensors.end()}, weight, false);
  if (!call.ok()) return call.status();
  return ElasticWork(std::move(*call)).wait();
}

Result<AveragingReport> Elastic::average(std::span<float> tensor, double weight) {
  return average(std::span<const std::span<float>>(&tensor, 1), weight);
}

Result<ElasticWork> Elastic::average_async(std::vector<std::span<float>> tensors, double weight) {
  if (auto status = check_process(run_); !status.ok()) return status;
  auto call = run_->begin(std::move(tensors), weight, true);
  if (!call.ok()) return call.status();
  return ElasticWork(std::move(*call));
}

Status Elastic::set_state(std::vector<std::pair<std::string, std::vector<std::byte>>> blobs) {
  if (auto status = check_process(run_); !status.ok()) return status;
  return run_->set_blobs(std::move(blobs));
}

Status Elastic::offer_values(std::span<const std::span<float>> tensors) {
  if (auto status = check_process(run_); !status.ok()) return status;
  return run_->offer(tensors);
}

Result<Group> Elastic::group(Milliseconds timeout, const Options& options) {
  if (auto status = check_process(run_); !status.ok()) return status;
  return run_->group(timeout.count() * millisecond, options);
}

ElasticStatus Elastic::status() const { return check_process(run_).ok() ? run_->status() : ElasticStatus{}; }

Status Elastic::leave() {
  if (auto status = check_process(run_); !status.ok()) return status;
  return run_->leave();
}

}  // namespace unisono

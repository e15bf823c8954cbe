// One process of an elastic run, as the public API uses it: an ElasticDriver in its own thread, called unisono-elastic.
//
// Callers queue commands and wait for what the thread publishes; they never touch the driver. The thread sleeps in the kernel
// until a message arrives, a deadline passes or a command comes.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "elastic/peer/elastic_driver.h"
#include "elastic/peer/elastic_group.h"
#include "unisono/elastic.h"

namespace unisono::internal {

// An averaging step, as its caller sees it.
struct ElasticCall {
  std::vector<std::span<float>> tensors;
  bool overlaps = false;  // the caller changes the tensors meanwhile
  std::weak_ptr<ElasticRun> run;

  std::mutex mutex;
  std::condition_variable ended;
  bool done = false, taken = false;
  Status status;  // not ok: there was no averaging step
  FinishedStep step;

  // Brings the result into the tensors. Call it once.
  Result<AveragingReport> take();
};

class ElasticRun : public std::enable_shared_from_this<ElasticRun> {
 public:
  static Result<std::shared_ptr<ElasticRun>> join(const ElasticOptions& options);
  ~ElasticRun();
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  const ElasticState& state() const { return state_; }
  bool ready(Nanos timeout);
  Result<std::shared_ptr<ElasticCall>> begin(std::vector<std::span<float>> tensors, double weight, bool overlaps);
  void cancel();
  Status set_blobs(std::vector<NamedBlob> blobs);
  Status offer(std::span<const std::span<float>> tensors);
  ElasticStatus status();
  Result<Group> group(Nanos timeout, const Options& options);
  Status leave();

 private:
  using Command = std::function<void(Nanos now)>;

  ElasticRun(const ElasticOptions& options, std::unique_ptr<ElasticDriver> driver, int wake_fd);
  Status check_tensors(std::span<const std::span<float>> tensors) const;
  // The tensors' values, one after the other.
  SharedBuffer joined(std::span<const std::span<float>> tensors) const;
  // True: the command will run. False: it never will, because the thread has ended.
  bool command(Command what);
  Status wait_joined();
  // Runs the question on the thread and returns its answer; empty if the thread has ended.
  template <typename Answer>
  std::optional<Answer> ask(std::function<Answer(Nanos now)> question);

  // Called by the thread only.
  void drive();
  bool end(Nanos now);
  bool run_commands(Nanos now);
  void publish();
  void sleep(Nanos now, Nanos at_most_until);
  void end_call(Status status, std::optional<FinishedStep> step);

  const ElasticOptions options_;
  const std::unique_ptr<ElasticDriver> driver_;  // used by the thread only, while it runs
  const int wake_fd_;
  ElasticState state_;                 // set before join() returns
  std::shared_ptr<ElasticCall> call_;  // the averaging step under way; used by the thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  bool joined_ = false, ready_ = false, left_ = false, stop_ = false, ended_ = false;
  Status failure_;
  std::optional<ElasticState> loaded_;
  ElasticStatus last_status_;
  ElasticRendezvous rendezvous_;
  std::thread thread_;
};

}  // namespace unisono::internal

// One process of an elastic run as its user has it: an ElasticDriver in a thread of its own, called unisono-elastic.
//
// Callers hand in commands and wait for what the thread publishes; they never touch the driver. The thread sleeps in the kernel
// until something arrives, a deadline passes or a command comes.
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

// An averaging step as its caller sees it.
struct ElasticCall {
  std::vector<std::span<float>> tensors;
  bool overlaps = false;  // the caller goes on changing the tensors meanwhile
  std::weak_ptr<ElasticRun> run;

  std::mutex mutex;
  std::condition_variable ended;
  bool done = false, taken = false;
  Status status;  // if not ok there is no averaging step
  FinishedStep step;

  // Brings the result into the tensors; once.
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
  // Their values, one after the other.
  SharedBuffer joined(std::span<const std::span<float>> tensors) const;
  // True: it will run. False: it never will, as the thread has ended.
  bool command(Command what);
  Status wait_joined();
  // What the thread knows, as `ask` puts it; nothing if the thread has ended.
  template <typename Answer>
  std::optional<Answer> ask(std::function<Answer(Nanos now)> question);

  // Of the thread.
  void drive();
  bool end(Nanos now);
  bool run_commands(Nanos now);
  void publish();
  void sleep(Nanos now, Nanos at_most_until);
  void end_call(Status status, std::optional<FinishedStep> step);

  const ElasticOptions options_;
  const std::unique_ptr<ElasticDriver> driver_;  // the thread's, while it runs
  const int wake_fd_;
  ElasticState state_;                 // set before join() returns
  std::shared_ptr<ElasticCall> call_;  // under way; the thread's

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

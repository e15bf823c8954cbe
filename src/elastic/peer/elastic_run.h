// One process of an elastic run, as the public API uses it. It runs an ElasticDriver in a thread named unisono-elastic.
//
// Callers queue commands, and wait for the results that the thread publishes. They never access the driver. The thread sleeps
// in the kernel until a message arrives, a deadline passes or a command comes.
#pragma once

#include <atomic>
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
#include "elastic/peer/run_events.h"
#include "forks/fork.h"
#include "unisono/elastic.h"

namespace unisono::internal {

// With this, the caller refers to an averaging step that it has begun.
struct ElasticCall {
  std::vector<std::span<float>> tensors;
  bool overlaps = false;  // true: the caller may change the tensors while the averaging step runs
  std::weak_ptr<ElasticRun> run;

  std::mutex mutex;
  std::condition_variable ended;
  bool done = false, taken = false;
  Status status;  // if this is an error, there was no averaging step
  FinishedStep step;

  // Writes the result into the tensors. Must be called only once.
  Result<AveragingReport> take();
};

class ElasticRun : public std::enable_shared_from_this<ElasticRun> {
 public:
  static Result<std::shared_ptr<ElasticRun>> join(const ElasticOptions& options);
  // The process that joined. In a child made by fork(), call nothing but this function.
  const OwnerProcess& process() const { return process_; }
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

  ElasticRun(const ElasticOptions& options, std::unique_ptr<ElasticDriver> driver, EventLog& log, int wake_fd);
  Status check_tensors(std::span<const std::span<float>> tensors) const;
  // Returns a copy of the values of all tensors in one buffer, one tensor after the other.
  SharedBuffer joined(std::span<const std::span<float>> tensors) const;
  // Queues a command. Returns false if the thread has ended, so that the command will never run.
  bool command(Command what);
  Status wait_joined();
  // Calls `question` on the thread, and returns its result. Returns nothing if the thread has ended. If this is the thread,
  // which is delivering an event, calls `question` at once.
  template <typename Answer>
  std::optional<Answer> ask(std::function<Answer(Nanos now)> question);

  // Only the thread calls these functions.
  void drive();
  bool end(Nanos now);
  bool run_commands(Nanos now);
  void publish();
  void report_events(Nanos now);
  void sleep(Nanos now, Nanos at_most_until);
  void end_call(Status status, std::optional<FinishedStep> step);

  const OwnerProcess process_;
  const ElasticOptions options_;
  const std::unique_ptr<ElasticDriver> driver_;  // only the thread uses it, as long as the thread runs
  const int wake_fd_;
  ElasticState state_;  // written before join() returns, and constant afterwards
  EventQueue events_;
  RunEvents run_events_;               // only the thread uses it
  std::shared_ptr<ElasticCall> call_;  // the averaging step that is running; only the thread uses it

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  bool joined_ = false, ready_ = false, left_ = false, stop_ = false, ended_ = false;
  Status failure_;
  std::optional<ElasticState> loaded_;
  ElasticStatus last_status_;
  ElasticRendezvous rendezvous_;
  std::atomic<std::thread::id> driving_thread_{};
  std::thread thread_;
};

}  // namespace unisono::internal

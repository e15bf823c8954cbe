// A peer of an elastic run. It averages known values again and again, and checks the results.
//
// Element i of the values of peer p is 1 if i mod 8 is p or 7. Otherwise it is 0. Therefore each chunk of a mean shows which
// peers' values it contains, and with which shares. No matter which peers are absent, the shares must add up to one, and each
// eighth element must stay exactly one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "group_command.h"
#include "unisono/elastic.h"

namespace unisono::testing {

// The result of one averaging step on this peer.
struct AveragingOutcome {
  AveragingReport report;
  std::string error{};  // the error of the call; empty: none
  std::string wrong{};  // describes values that are impossible; empty: there are none
  // the smallest and the largest number of peers whose values are in a chunk of the mean
  uint32_t members_min = 0, members_max = 0;
  bool same = true;      // true: the shares are equal in all chunks
  std::string shares{};  // the shares in the first chunk, such as "0.25/0.75/0/0/0/0/0"
  uint64_t hash = 0;
};

class ElasticRunner {
 public:
  ElasticRunner() = default;
  ~ElasticRunner();
  ElasticRunner(const ElasticRunner&) = delete;

  // Commands:
  // - elastic_join: joins a run. It takes the options of ElasticOptions under short names; seeds are separated by "+". `weight`
  //   and `index` are those of this peer. After this command, SIGTERM makes the process leave the run, print `left` and end.
  // - elastic_step: makes one averaging step. elastic_loop: makes averaging steps in the background until elastic_stop.
  // - elastic_wait: waits for a background averaging step that has the given `exact`, `members`, `group`, `absent` and
  //   `outcome`. `from` is the first step that counts; without it, this is the step that is running. `ms` is a time limit;
  //   after it, the answer is late.
  // - elastic_receive: waits until `bytes` more bytes have been received. Only a round brings that many bytes.
  // - elastic_summary: sums up all averaging steps. It fails if any values were wrong. There are also elastic_status and
  //   elastic_leave.
  Answer run(const Command& command);

 private:
  Answer join(const Command& command);
  Answer loop();
  Answer wait(const Command& command);
  Answer receive(const Command& command);
  Answer stop();
  Answer summary();
  Answer status();
  Answer leave();

  void handle_termination();
  bool step();  // returns false if the averaging call has failed
  AveragingOutcome measure(AveragingReport report) const;
  Answer answer_of(size_t number) const;

  std::optional<Elastic> run_;
  double weight_ = 1;
  bool reducer_ = false;
  size_t elements_ = 0;
  std::vector<float> own_, values_;  // These need no lock, because only one thread makes averaging steps at a time.

  std::mutex mutex_;  // It guards the members below.
  std::condition_variable changed_;
  std::vector<std::unique_ptr<AveragingOutcome>> history_;
  bool looping_ = false, stop_ = false;

  std::thread loop_, termination_;
  std::atomic<bool> over_ = false;
};

}  // namespace unisono::testing

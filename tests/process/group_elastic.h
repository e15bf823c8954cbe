// A peer of an elastic run that averages known values, averaging step after averaging step, and checks what comes back.
//
// Element i of the values of peer `index` is 1 where i mod 8 is its index, and where that is 7; else 0. So a mean says in each
// of its chunks whose values are in it, and with which share. Shares must add up to one, and the last of eight must stay one,
// to the bit, whoever is absent.
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

// The outcome of one averaging step at this peer.
struct Swept {
  AveragingReport report;
  std::string error{};                        // of the call
  std::string wrong{};                        // of the values
  uint32_t members_min = 0, members_max = 0;  // peers whose values are in a mean; over chunks
  bool same = true;                           // all chunks have the same shares
  std::string shares{};                       // in the first chunk: "0.25/0.75/0/0/0/0/0"
  uint64_t hash = 0;
};

class ElasticRunner {
 public:
  ElasticRunner() = default;
  ~ElasticRunner();
  ElasticRunner(const ElasticRunner&) = delete;

  // elastic_join: options of ElasticOptions by short names, seeds with "+" between them; `weight` and `index` of this peer.
  // From then on SIGTERM makes the process leave the run, print `left` and end. elastic_step: one averaging step. elastic_loop:
  // averaging steps in the background, until elastic_stop. elastic_wait: waits for a background averaging step that is as asked
  // for (`exact`, `members`, `group`, `absent`, `outcome`). It looks from this process's step `from` on, by default the one
  // under way, and answers late after `ms`. elastic_hear: waits until `bytes` more bytes were received; only a round brings
  // that many. elastic_summary: sums up all averaging steps, and fails if values were ever wrong. elastic_status,
  // elastic_leave.
  Answer run(const Command& command);

 private:
  Answer join(const Command& command);
  Answer loop();
  Answer wait(const Command& command);
  Answer hear(const Command& command);
  Answer stop();
  Answer summary();
  Answer status();
  Answer leave();

  void heed_termination();
  bool step();  // false: the call failed
  Swept measure(AveragingReport report) const;
  Answer answer_of(size_t number) const;

  std::optional<Elastic> run_;
  double weight_ = 1;
  bool reducer_ = false;
  size_t elements_ = 0;
  std::vector<float> own_, values_;  // only the thread that makes averaging steps uses them; there is one at a time

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Swept>> history_;
  bool looping_ = false, stop_ = false;

  std::thread loop_, termination_;
  std::atomic<bool> over_ = false;
};

}  // namespace unisono::testing

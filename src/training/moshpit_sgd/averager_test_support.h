// Averaging steps among peers of one process, for tests. close() averages the values of all peers that have called begin(). It
// computes the mean in double. Time is virtual.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "training/moshpit_sgd/averager.h"

namespace unisono::test {

struct SharedAveragingSteps {
  struct Entry {
    std::vector<std::span<float>> values;
    double weight = 0;
    internal::StateBlobs blobs;
    bool closed = false;
    AveragingReport report;
  };
  std::map<uint32_t, Entry> entries;  // key: number of the peer
  uint64_t next_averaging = 0;
  Nanos now = 0;
  Nanos averaging_time = 0;         // how far end() advances the clock if the averaging step is not closed
  std::function<void()> meanwhile;  // called while end() waits: the actions of other peers
  Status refusal;                   // returned by begin() if set
  Status failure;                   // returned by end() if set

  // Closes the averaging step of all peers that have called begin(). Peers in `cut` are left out: they keep their values, and
  // their reports show no other contributor.
  void close(uint32_t peers, const std::vector<uint32_t>& cut = {}) {
    std::vector<Entry*> in;
    for (auto& [peer, entry] : entries) {
      if (entry.closed) continue;
      entry.closed = true;
      entry.report = {};
      entry.report.step = next_averaging, entry.report.peers = peers;
      entry.report.rounds.resize(1);
      if (std::ranges::find(cut, peer) == cut.end()) in.push_back(&entry);
    }
    ++next_averaging;
    double weight = 0;
    for (const auto* entry : in) weight += entry->weight;
    if (in.size() < 2 || weight == 0) return;
    for (size_t tensor = 0; tensor < in[0]->values.size(); ++tensor) {
      for (size_t i = 0; i < in[0]->values[tensor].size(); ++i) {
        double sum = 0;
        for (const auto* entry : in) {
          if (entry->weight > 0) sum += entry->weight * static_cast<double>(entry->values[tensor][i]);
        }
        for (auto* entry : in) entry->values[tensor][i] = static_cast<float>(sum / weight);
      }
    }
    const bool exact = in.size() == peers;
    for (auto* entry : in) {
      entry->report.exact = exact;
      auto& round = entry->report.rounds[0];
      round.group = static_cast<uint32_t>(in.size()), round.committed = 1, round.variance = 0.25, round.total_weight = weight;
    }
  }
};

class SharedAverager final : public internal::Averager {
 public:
  SharedAverager(SharedAveragingSteps& averaging_steps, uint32_t peer) : averaging_steps_(averaging_steps), peer_(peer) {}

  Status begin(std::span<const std::span<float>> values, double weight, internal::StateBlobs blobs) override {
    EXPECT_FALSE(averaging_steps_.entries.contains(peer_)) << "two averaging steps at once";
    if (!averaging_steps_.refusal.ok()) return averaging_steps_.refusal;
    averaging_steps_.entries[peer_] = {
        .values = {values.begin(), values.end()}, .weight = weight, .blobs = std::move(blobs), .closed = false, .report = {}};
    return {};
  }
  bool done() const override { return averaging_steps_.entries.at(peer_).closed; }
  Result<AveragingReport> end(Milliseconds timeout) override {
    auto& entry = averaging_steps_.entries.at(peer_);
    if (!entry.closed && timeout.count() > 0) return Status(Code::late, "goes on");
    // Calls a copy of the function, because the function may assign to averaging_steps_.meanwhile.
    if (const auto meanwhile = averaging_steps_.meanwhile; !entry.closed && meanwhile) meanwhile();
    if (!entry.closed)
      averaging_steps_.now += averaging_steps_.averaging_time,
          averaging_steps_.close(static_cast<uint32_t>(averaging_steps_.entries.size()));
    const auto report = entry.report;
    averaging_steps_.entries.erase(peer_);
    if (!averaging_steps_.failure.ok()) return averaging_steps_.failure;
    return report;
  }
  void abandon() override { averaging_steps_.entries.erase(peer_); }
  Nanos now() const override { return averaging_steps_.now; }

 private:
  SharedAveragingSteps& averaging_steps_;
  uint32_t peer_;
};

}  // namespace unisono::test
